"""Claims: conditional updates that cannot oversell a provider, whoever else is claiming."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from nova import exception
from nova.db import models
from nova.objects.base import utcnow

INVENTORIES = models.inventories
ALLOCATIONS = models.allocations
NODES = models.compute_nodes


def claim(connection: sa.Connection, consumer: str, provider: str, resources: dict[str, int], project_id: str,
          user_id: str) -> None:
    """Take ``resources`` of ``provider`` for ``consumer``: all or ClaimLost.

    The node counts one instance and one heavy operation more. The transaction that claims also
    moves its operation on, so a step that runs twice claims once.
    """
    if resources:
        amount = _per_class(resources)
        room = (INVENTORIES.c.total - INVENTORIES.c.reserved) * INVENTORIES.c.ratio
        taken = connection.execute(sa.update(INVENTORIES).where(
            INVENTORIES.c.provider_uuid == provider,
            INVENTORIES.c.resource_class.in_(list(resources)),
            INVENTORIES.c.used + amount <= room,
        ).values(used=INVENTORIES.c.used + amount))
        if taken.rowcount != len(resources):
            raise exception.ClaimLost(node=provider)
    _count(connection, provider, instances=1, io_ops=1)
    connection.execute(sa.insert(ALLOCATIONS).values(
        consumer_uuid=consumer, provider_uuid=provider, resources=resources, project_id=project_id, user_id=user_id,
        created_at=utcnow()))


def release(connection: sa.Connection, consumer: str) -> list[str]:
    """Give back all that ``consumer`` holds; answers the providers it was on."""
    held = connection.execute(
        sa.select(ALLOCATIONS.c.provider_uuid, ALLOCATIONS.c.resources)
        .where(ALLOCATIONS.c.consumer_uuid == consumer).with_for_update()).all()
    for provider, resources in held:
        if resources:
            connection.execute(sa.update(INVENTORIES).where(
                INVENTORIES.c.provider_uuid == provider, INVENTORIES.c.resource_class.in_(list(resources)),
            ).values(used=INVENTORIES.c.used - _per_class(resources)))
        _count(connection, provider, instances=-1)
    if held:
        connection.execute(sa.delete(ALLOCATIONS).where(ALLOCATIONS.c.consumer_uuid == consumer))
    return [provider for provider, _resources in held]


def finish_io(connection: sa.Connection, node_uuid: str, failed: bool | None) -> None:
    """One heavy operation less on a node; a failed build counts, a good one clears the count (None: neither)."""
    builds = {True: NODES.c.failed_builds + 1, False: 0, None: NODES.c.failed_builds}[failed]
    connection.execute(sa.update(NODES).where(NODES.c.uuid == node_uuid).values(
        num_io_ops=sa.case((NODES.c.num_io_ops > 0, NODES.c.num_io_ops - 1), else_=0),
        failed_builds=builds,
        generation=NODES.c.generation + 1))


def provider_of(connection: sa.Connection, consumer: str) -> str | None:
    """The provider that a consumer has a claim on."""
    return connection.scalar(sa.select(ALLOCATIONS.c.provider_uuid).where(ALLOCATIONS.c.consumer_uuid == consumer))


def _per_class(resources: dict[str, int]) -> sa.ColumnElement[Any]:
    """The amount that belongs to the row's resource class."""
    return sa.case(*((INVENTORIES.c.resource_class == name, amount) for name, amount in resources.items()), else_=0)


def _count(connection: sa.Connection, node_uuid: str, instances: int, io_ops: int = 0) -> None:
    connection.execute(sa.update(NODES).where(NODES.c.uuid == node_uuid).values(
        num_instances=NODES.c.num_instances + instances, num_io_ops=NODES.c.num_io_ops + io_ops,
        generation=NODES.c.generation + 1))
