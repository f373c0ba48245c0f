"""Providers that clients of the Placement API created below compute nodes."""

from collections.abc import Sequence

import sqlalchemy as sa

from nova.db import tables

PROVIDERS = tables.providers
ALLOCATIONS = tables.allocations
CONSUMERS = tables.consumers
NAMES = tables.placement_names
MEMBERSHIPS = tables.provider_aggregates


def forget(connection: sa.Connection, roots: Sequence[str]) -> None:
    """Remove names, memberships and consumers of the providers in these trees, before the trees are removed."""
    tree = sa.select(PROVIDERS.c.uuid).where(PROVIDERS.c.root_uuid.in_(roots))
    connection.execute(sa.delete(MEMBERSHIPS).where(MEMBERSHIPS.c.provider_uuid.in_(tree)))
    connection.execute(sa.delete(NAMES).where(NAMES.c.kind == "provider", NAMES.c.name.in_(
        sa.select(PROVIDERS.c.name).where(PROVIDERS.c.root_uuid.in_(roots), PROVIDERS.c.external == sa.true()))))
    here = ALLOCATIONS.c.provider_uuid.in_(tree)
    elsewhere = sa.select(ALLOCATIONS.c.consumer_uuid).where(
        ALLOCATIONS.c.consumer_uuid == CONSUMERS.c.uuid, ALLOCATIONS.c.provider_uuid.not_in(tree))
    connection.execute(sa.delete(CONSUMERS).where(
        CONSUMERS.c.uuid.in_(sa.select(ALLOCATIONS.c.consumer_uuid).where(here)), ~elsewhere.exists()))
