"""Claims: conditional updates that cannot oversell a provider, whoever else is claiming."""

from __future__ import annotations

import functools
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
    # The node's row first, always: whoever has it has the node, and no two wait for each other's inventories.
    _count(connection, provider, instances=1, io_ops=1)
    if resources:
        taken = connection.execute(_take(tuple(resources)), _amounts(provider, resources))
        if taken.rowcount != len(resources):
            raise exception.ClaimLost(node=provider)
    connection.execute(sa.insert(ALLOCATIONS), {
        "consumer_uuid": consumer, "provider_uuid": provider, "resources": resources, "project_id": project_id,
        "user_id": user_id, "created_at": utcnow()})


def release(connection: sa.Connection, consumer: str) -> list[str]:
    """Give back all that ``consumer`` holds; answers the providers it was on."""
    held = connection.execute(
        sa.select(ALLOCATIONS.c.provider_uuid, ALLOCATIONS.c.resources)
        .where(ALLOCATIONS.c.consumer_uuid == consumer).with_for_update()).all()
    for provider, resources in sorted(held, key=lambda row: str(row.provider_uuid)):
        _count(connection, provider, instances=-1)
        if resources:
            connection.execute(_give_back(tuple(resources)), _amounts(provider, resources))
    if held:
        connection.execute(sa.delete(ALLOCATIONS).where(ALLOCATIONS.c.consumer_uuid == consumer))
    return [provider for provider, _resources in held]


def finish_io(connection: sa.Connection, node_uuid: str, failed: bool | None) -> None:
    """One heavy operation less on a node; a failed build counts, a good one clears the count (None: neither)."""
    connection.execute(_finish_io(failed), {"node": node_uuid})


def provider_of(connection: sa.Connection, consumer: str) -> str | None:
    """The provider that a consumer has a claim on."""
    return connection.scalar(_PROVIDER_OF, {"consumer": consumer})


# --- statements: built once, since building one anew costs several times what running it does -----
_PROVIDER_OF = sa.select(ALLOCATIONS.c.provider_uuid).where(ALLOCATIONS.c.consumer_uuid == sa.bindparam("consumer"))
_COUNT = sa.update(NODES).where(NODES.c.uuid == sa.bindparam("node")).values(
    num_instances=NODES.c.num_instances + sa.bindparam("instances"),
    num_io_ops=NODES.c.num_io_ops + sa.bindparam("io_ops"), generation=NODES.c.generation + 1)


@functools.cache
def _finish_io(failed: bool | None) -> sa.Update:
    builds = {True: NODES.c.failed_builds + 1, False: 0, None: NODES.c.failed_builds}[failed]
    return sa.update(NODES).where(NODES.c.uuid == sa.bindparam("node")).values(
        num_io_ops=sa.case((NODES.c.num_io_ops > 0, NODES.c.num_io_ops - 1), else_=0),
        failed_builds=builds, generation=NODES.c.generation + 1)


@functools.lru_cache(64)
def _take(classes: tuple[str, ...]) -> sa.Update:
    """One row per class, each only if there is room."""
    room = (INVENTORIES.c.total - INVENTORIES.c.reserved) * INVENTORIES.c.ratio
    after = INVENTORIES.c.used + _amount(classes)
    return sa.update(INVENTORIES).where(
        INVENTORIES.c.provider_uuid == sa.bindparam("provider"), INVENTORIES.c.resource_class.in_(classes),
        after <= room).values(used=after)


@functools.lru_cache(64)
def _give_back(classes: tuple[str, ...]) -> sa.Update:
    return sa.update(INVENTORIES).where(
        INVENTORIES.c.provider_uuid == sa.bindparam("provider"), INVENTORIES.c.resource_class.in_(classes),
    ).values(used=INVENTORIES.c.used - _amount(classes))


def _amount(classes: tuple[str, ...]) -> sa.ColumnElement[Any]:
    """The amount that belongs to the row's resource class."""
    return sa.case(*((INVENTORIES.c.resource_class == name, sa.bindparam(f"amount{index}", type_=sa.BigInteger))
                     for index, name in enumerate(classes)), else_=0)


def _amounts(provider: str, resources: dict[str, int]) -> dict[str, Any]:
    return {"provider": provider, **{f"amount{index}": amount for index, amount in enumerate(resources.values())}}


def _count(connection: sa.Connection, node_uuid: str, instances: int, io_ops: int = 0) -> None:
    connection.execute(_COUNT, {"node": node_uuid, "instances": instances, "io_ops": io_ops})
