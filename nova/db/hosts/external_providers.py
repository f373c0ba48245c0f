"""Providers that clients of the Placement API created below compute nodes."""

from collections.abc import Collection, Sequence

import sqlalchemy as sa

from nova.db import tables
from nova.objects.hosts.placement import PROVIDER

PROVIDERS = tables.providers
ALLOCATIONS = tables.allocations
CONSUMERS = tables.consumers
NAMES = tables.placement_names
MEMBERSHIPS = tables.provider_aggregates


def with_ancestors(connection: sa.Connection, root: str, uuids: Collection[str]) -> set[str]:
    """Return these providers of a tree, the external providers of the tree, and the ancestors of all these."""
    tree = connection.execute(sa.select(PROVIDERS.c.uuid, PROVIDERS.c.parent_uuid, PROVIDERS.c.external).where(
        PROVIDERS.c.root_uuid == root)).all()
    parents = {row.uuid: row.parent_uuid for row in tree}
    result: set[str] = set()
    for uuid in (*uuids, *(row.uuid for row in tree if row.external)):
        above: str | None = uuid
        while above is not None and above not in result:
            result.add(above)
            above = parents.get(above)
    return result


def forget(connection: sa.Connection, roots: Sequence[str]) -> None:
    """Remove the names and the consumers of external providers in these trees, before the trees are removed."""
    # Select the names first: MariaDB would wait for the locks of all rows that a DELETE with a subquery reads.
    names = list(connection.scalars(sa.select(PROVIDERS.c.name).where(
        PROVIDERS.c.root_uuid.in_(roots), PROVIDERS.c.external == sa.true())))
    if names:
        connection.execute(sa.delete(NAMES).where(NAMES.c.kind == PROVIDER, NAMES.c.name.in_(names)))
    elsewhere = ALLOCATIONS.alias("elsewhere")
    consumers = list(connection.scalars(
        sa.select(CONSUMERS.c.uuid).distinct().join(ALLOCATIONS, ALLOCATIONS.c.consumer_uuid == CONSUMERS.c.uuid).where(
            ALLOCATIONS.c.root_uuid.in_(roots), ~sa.exists().where(
                elsewhere.c.consumer_uuid == CONSUMERS.c.uuid, elsewhere.c.root_uuid.not_in(roots)))))
    if consumers:
        connection.execute(sa.delete(CONSUMERS).where(CONSUMERS.c.uuid.in_(consumers)))
