"""Claims of resources: conditional updates, so that concurrent claims cannot exceed the capacity of a provider. All
transactions lock rows in the same order: nodes (by uuid), their inventories, allocations."""

import functools
from collections.abc import Callable, Collection
from typing import Any, Literal

import sqlalchemy as sa
from oslo_db import exception as db_exception

from nova import exception
from nova.db import tables
from nova.db.sql import clock, hot
from nova.objects.hosts.scheduling import Selection
from nova.objects.hosts.trees import Allocation

INVENTORIES = tables.inventories
ALLOCATIONS = tables.allocations
MIGRATIONS = tables.migrations
NODES = tables.compute_nodes
SERVICES = tables.services
_NO_ROOM = "not enough free resources"
Usable = Literal["any", "enabled", "up"]  # required state of the nova-compute of a host for a claim on it
# Condition for claims of servers and migrations. Only consumers of Placement API clients have a row in ``consumers``.
OF_SERVERS = ~sa.exists().where(tables.consumers.c.uuid == ALLOCATIONS.c.consumer_uuid)
ROOT = sa.func.coalesce(ALLOCATIONS.c.root_uuid, ALLOCATIONS.c.provider_uuid)  # uuid of the node of an allocation


def claim(connection: sa.Connection, consumer: str, selection: Selection, resources: dict[str, int],
          project_id: str, user_id: str, service: Usable = "any",
          choose: Callable[[], Allocation] | None = None) -> None:
    """Claim ``resources`` on the node of ``selection`` for ``consumer`` (an instance or a migration). The providers are
    those of ``selection.allocations`` or, if it is empty, the root provider of the node. ``choose``, if given, selects
    the providers instead, while the node is locked. The node's numbers of instances and of heavy operations grow by 1.
    ``service``: required state of the host's nova-compute. Raises ClaimLost if a resource is not available."""
    root = selection.node_uuid
    # Transactions lock the row of the node first: the second of two on one node waits here, so they cannot deadlock at
    # the inventories.
    if not _count(connection, root, instances=1, io_ops=1, service=service, host=selection.host,
                  limits=(selection.max_instances, selection.max_io_ops)):
        raise exception.ClaimLost(node=root, reason=_why_not(connection, root, selection.host))
    chosen = choose() if choose is not None else selection.allocations or {root: resources}
    providers = sorted({root: {}, **chosen}.items())
    allocated = [{"consumer_uuid": consumer, "provider_uuid": provider, "root_uuid": root, "resources": amounts,
                  "project_id": project_id, "user_id": user_id, "created_at": clock.now()}
                 for provider, amounts in providers]
    if len(providers) == 1 and providers[0][1] and connection.dialect.name == "postgresql":
        values = _amounts(*providers[0]) | {f"new_{name}": value for name, value in allocated[0].items()}
        if not hot.execute(connection, _take_and_allocate(tuple(providers[0][1])), values).rowcount:
            raise exception.ClaimLost(node=root, reason=_NO_ROOM)
        return
    for provider, amounts in providers:
        if not take(connection, provider, amounts):
            raise exception.ClaimLost(node=root, reason=_NO_ROOM)
    connection.execute(sa.insert(ALLOCATIONS), allocated)


def release(connection: sa.Connection, consumer: str, root: str | None = None) -> list[str]:
    """Release the claims of ``consumer`` (on one node, if ``root`` is given). Return the uuids of their nodes."""
    these = ALLOCATIONS.c.consumer_uuid == consumer
    if root is not None:
        these &= ROOT.in_([root])
    # Read without locks: the rows of nodes must be locked first, as by a claim and by the removal of a node.
    held = connection.execute(sa.select(ALLOCATIONS.c.provider_uuid, ROOT.label("root"), ALLOCATIONS.c.resources)
                              .where(these)).all()
    roots = sorted({row.root for row in held})
    for node in roots:
        _count(connection, node, instances=-1)
    for provider, resources in sorted((row.provider_uuid, row.resources) for row in held):
        give_back(connection, provider, resources)
    if held and connection.execute(sa.delete(ALLOCATIONS).where(these)).rowcount != len(held):
        raise db_exception.RetryRequest(exception.ServiceUnavailable("The claimed resources have changed meanwhile."))
    return roots


def take(connection: sa.Connection, provider: str, amounts: dict[str, int]) -> bool:
    """Increase the usage of a provider, whose node is locked. Return False if an amount is not available."""
    return not amounts or len(amounts) == hot.execute(
        connection, _take(tuple(amounts)), _amounts(provider, amounts)).rowcount


def give_back(connection: sa.Connection, provider: str, amounts: dict[str, int]) -> None:
    """Decrease the usage of a provider, whose node is locked."""
    if amounts:
        hot.execute(connection, _give_back(tuple(amounts)), _amounts(provider, amounts))


def hold(connection: sa.Connection, nodes: Collection[str], consumers: Collection[str], moving: str = "") -> None:
    """Lock these nodes and the nodes with claims of these consumers, in the order of uuids. Called before several of
    these nodes are written. ``moving``: an instance whose open migrations are also consumers."""
    who: sa.ColumnElement[bool] = ALLOCATIONS.c.consumer_uuid.in_(consumers)
    if moving:
        who |= ALLOCATIONS.c.consumer_uuid.in_(sa.select(MIGRATIONS.c.uuid).where(
            MIGRATIONS.c.instance_uuid == moving, MIGRATIONS.c.open == sa.true()))
    # Lock nodes by uuid alone: with a subquery, MariaDB would also wait for locks of all rows that the subquery reads.
    these = {*nodes, *connection.scalars(sa.select(ROOT).where(who))}
    connection.execute(sa.select(NODES.c.id).where(NODES.c.uuid.in_(these)).order_by(NODES.c.uuid)
                       .with_for_update()).all()


def rekey(connection: sa.Connection, from_consumer: str, to_consumer: str) -> None:
    """Transfer the allocations of ``from_consumer`` to ``to_consumer``; no provider may have allocations of both."""
    connection.execute(sa.update(ALLOCATIONS).where(ALLOCATIONS.c.consumer_uuid == from_consumer)
                       .values(consumer_uuid=to_consumer))


def finish_io(connection: sa.Connection, node_uuid: str, failed: bool | None) -> None:
    """Decrement num_io_ops of a node. ``failed``: True to count a failed build, False to reset that count, or None."""
    hot.execute(connection, _finish_io(failed), {"node": node_uuid})


def root_of(connection: sa.Connection, consumer: str) -> str | None:
    """Return the root provider (the uuid of the node) of the claim of a consumer, or None without a claim."""
    root: str | None = connection.scalar(_ROOT_OF, {"consumer": consumer})
    return root


# --- statements, built once, since building costs several times as much as executing -------------
_ROOT_OF = sa.select(ROOT).where(ALLOCATIONS.c.consumer_uuid == sa.bindparam("consumer")).limit(1)


@functools.cache
def _count_statement(service: Usable, limited: bool) -> sa.Update:
    statement = sa.update(NODES).where(NODES.c.uuid == sa.bindparam("node")).values(
        num_instances=NODES.c.num_instances + sa.bindparam("instances"),
        num_io_ops=NODES.c.num_io_ops + sa.bindparam("io_ops"), generation=NODES.c.generation + 1)
    if limited:
        statement = statement.where(*(sa.or_(sa.bindparam(name, type_=sa.Integer) == 0, column < sa.bindparam(name))
                                      for name, column in (("max_instances", NODES.c.num_instances),
                                                           ("max_io_ops", NODES.c.num_io_ops))))
    if service == "any":
        return statement
    # Check the host, too: another host may have taken over a shared node after the scheduler selected it.
    usable = sa.and_(SERVICES.c.id == NODES.c.service_id, SERVICES.c.host == sa.bindparam("of_host"),
                     SERVICES.c.disabled == sa.false())
    if service == "up":
        usable &= sa.and_(SERVICES.c.up == sa.true(), SERVICES.c.forced_down == sa.false())
    return statement.where(sa.exists().where(usable))


@functools.cache
def _finish_io(failed: bool | None) -> sa.Update:
    builds = {True: NODES.c.failed_builds + 1, False: 0, None: NODES.c.failed_builds}[failed]
    return sa.update(NODES).where(NODES.c.uuid == sa.bindparam("node")).values(
        num_io_ops=sa.case((NODES.c.num_io_ops > 0, NODES.c.num_io_ops - 1), else_=0),
        failed_builds=builds, generation=NODES.c.generation + 1)


@functools.lru_cache(64)
def _take(classes: tuple[str, ...]) -> sa.Update:
    """Return an UPDATE that increases the usage of each of these classes whose capacity and unit limits allow it."""
    room = (INVENTORIES.c.total - INVENTORIES.c.reserved) * INVENTORIES.c.ratio
    amount, step = _amount(classes), INVENTORIES.c.step_size
    after = INVENTORIES.c.used + amount
    return sa.update(INVENTORIES).where(
        *_these(classes), after <= room, INVENTORIES.c.min_unit <= amount, INVENTORIES.c.max_unit >= amount,
        sa.or_(step <= 1, amount % sa.func.nullif(step, 0) == 0)).values(used=after)


@functools.lru_cache(64)
def _take_and_allocate(classes: tuple[str, ...]) -> sa.Insert:
    """Return a statement of PostgreSQL that inserts an allocation and increases the usage. If an amount is not
    available, it inserts no row, and the transaction must be rolled back."""
    taken = _take(classes).returning(INVENTORIES.c.resource_class).cte("taken")
    names = [column.name for column in ALLOCATIONS.c if column.name not in ("numa_topology", "pci_devices")]
    return sa.insert(ALLOCATIONS).from_select(names, sa.select(
        *(sa.bindparam(f"new_{name}", type_=ALLOCATIONS.c[name].type) for name in names)).where(
        sa.select(sa.func.count()).select_from(taken).scalar_subquery() == len(classes)))


@functools.lru_cache(64)
def _give_back(classes: tuple[str, ...]) -> sa.Update:
    return sa.update(INVENTORIES).where(*_these(classes)).values(used=INVENTORIES.c.used - _amount(classes))


def _these(classes: tuple[str, ...]) -> tuple[sa.ColumnElement[bool], ...]:
    """Return the conditions for these inventories of a provider. Literals keep the SQL text of IN constant."""
    return (INVENTORIES.c.provider_uuid == sa.bindparam("provider"),
            INVENTORIES.c.resource_class.in_([sa.literal(name) for name in classes]))


def _amount(classes: tuple[str, ...]) -> sa.ColumnElement[Any]:
    """Return an expression for the amount of the row's resource class, from the parameters amount0, amount1, …"""
    return sa.case(*((INVENTORIES.c.resource_class == name, sa.bindparam(f"amount{index}", type_=sa.BigInteger))
                     for index, name in enumerate(classes)), else_=0)


def _amounts(provider: str, resources: dict[str, int]) -> dict[str, Any]:
    return {"provider": provider, **{f"amount{index}": amount for index, amount in enumerate(resources.values())}}


def _count(connection: sa.Connection, node_uuid: str, instances: int, io_ops: int = 0, service: Usable = "any",
           limits: tuple[int, int] = (0, 0), host: str = "") -> bool:
    """Lock the node and change its counters. Return False if its service is not on ``host``, its service is not in the
    required state, or a limit is reached. ``limits``: of instances and of heavy operations (0: unlimited)."""
    values: dict[str, Any] = {"node": node_uuid, "instances": instances, "io_ops": io_ops}
    if service != "any":
        values["of_host"] = host
    if any(limits):
        values.update(max_instances=limits[0], max_io_ops=limits[1])
    return bool(hot.execute(connection, _count_statement(service, any(limits)), values).rowcount)


def _why_not(connection: sa.Connection, node_uuid: str, host: str) -> str:
    """Return the reason why :func:`_count` refused a claim."""
    row = connection.execute(sa.select(SERVICES).join(NODES, NODES.c.service_id == SERVICES.c.id).where(
        NODES.c.uuid == node_uuid)).first()
    if row is None:
        return "it was removed"
    if row.host != host:
        return "another compute service manages it now"
    if row.disabled:
        return "its compute service is disabled"
    return "it has reached its limit of servers or operations" if row.up and not row.forced_down else (
        "its compute service is down")
