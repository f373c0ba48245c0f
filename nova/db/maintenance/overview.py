"""An overview of the deployment: nine statements, none of which reads more rows than there are nodes or operations. The
numbers of services and operations are metrics, too."""

import collections
import datetime
import itertools
from typing import Any

import sqlalchemy as sa

from nova.db import liveness, tables
from nova.db.hosts import services
from nova.db.sql import clock
from nova.objects.hosts import overview as overviews
from nova.objects.hosts.node import DISK_GB, MEMORY_MB, VCPU

ACTIONS = tables.actions
INSTANCES = tables.instances
INVENTORIES = tables.inventories
NODES = tables.compute_nodes
SERVICES = tables.services

_SHOWN = (VCPU, MEMORY_MB, DISK_GB)
_LATEST = 10_000  # number of newest actions that are searched for failures and boots, since no index finds these
_MINUTES = 30  # number of past minutes for which the boots of each minute are counted

Counts = dict[tuple[str, ...], float]


def get(connection: sa.Connection, limit: int) -> overviews.Overview:
    """Return the overview, see :class:`nova.rpcapi.hosts.Overviews`."""
    node_count, servers = connection.execute(sa.select(
        sa.func.count(), sa.func.coalesce(sa.func.sum(NODES.c.num_instances), 0)).select_from(NODES)).one()
    unfinished = connection.scalar(sa.select(sa.func.count()).where(ACTIONS.c.outcome.is_(None)))
    return overviews.Overview(
        at=clock.now(), node_count=node_count, servers=int(servers), capacity=_capacity(connection),
        services=_services(connection), nodes=_nodes(connection, limit), unfinished=unfinished or 0,
        operations=_operations(connection, limit), failures=_failures(connection, limit), boots=_boots(connection))


def _room() -> sa.ColumnElement[Any]:
    return (INVENTORIES.c.total - INVENTORIES.c.reserved) * INVENTORIES.c.ratio


def _capacity(connection: sa.Connection) -> dict[str, overviews.Capacity]:
    rows = connection.execute(
        sa.select(INVENTORIES.c.resource_class, sa.func.sum(_room()), sa.func.sum(INVENTORIES.c.used))
        .join(NODES, NODES.c.uuid == INVENTORIES.c.provider_uuid)
        .where(INVENTORIES.c.resource_class.in_(_SHOWN)).group_by(INVENTORIES.c.resource_class))
    return {name: overviews.Capacity(total=int(room), used=int(used)) for name, room, used in rows}


def _services(connection: sa.Connection) -> list[overviews.BinaryOverview]:
    counts: dict[str, dict[str, int]] = collections.defaultdict(dict)
    for (binary, state), count in services_by_state(connection).items():
        counts[binary][state] = int(count)
    return [overviews.BinaryOverview(binary=binary, **states) for binary, states in sorted(counts.items())]


def _nodes(connection: sa.Connection, limit: int) -> list[overviews.NodeOverview]:
    up = sa.case((liveness.up(), 1), else_=0).label("up")
    usable = sa.case((sa.and_(liveness.up(), SERVICES.c.disabled == sa.false()), 1), else_=0)
    rows = connection.execute(
        sa.select(NODES.c.uuid, NODES.c.host, NODES.c.hypervisor_hostname, NODES.c.num_instances, NODES.c.num_io_ops,
                  NODES.c.failed_builds, SERVICES.c.disabled, SERVICES.c.disabled_reason, SERVICES.c.forced_down,
                  SERVICES.c.last_seen, up)
        .join(SERVICES, sa.and_(SERVICES.c.host == NODES.c.host, SERVICES.c.binary == services.COMPUTE))
        .order_by(usable, NODES.c.num_io_ops.desc(), NODES.c.host, NODES.c.hypervisor_hostname).limit(limit)).all()
    capacities: dict[str, dict[str, overviews.Capacity]] = collections.defaultdict(dict)
    if rows:
        for uuid, name, room, used in connection.execute(
                sa.select(INVENTORIES.c.provider_uuid, INVENTORIES.c.resource_class, _room(), INVENTORIES.c.used)
                .where(INVENTORIES.c.provider_uuid.in_([row.uuid for row in rows]),
                       INVENTORIES.c.resource_class.in_(_SHOWN))):
            capacities[uuid][name] = overviews.Capacity(total=int(room), used=used)
    return [overviews.NodeOverview(
        host=row.host, name=row.hypervisor_hostname, up=bool(row.up), forced_down=row.forced_down,
        disabled=row.disabled, reason=row.disabled_reason, last_seen=row.last_seen, servers=row.num_instances,
        under_way=row.num_io_ops, failed_builds=row.failed_builds, capacity=capacities[row.uuid]) for row in rows]


_OF_ACTIONS = (ACTIONS.c.uuid, ACTIONS.c.request_id, ACTIONS.c.instance_uuid, ACTIONS.c.project_id, ACTIONS.c.action)


def _operations(connection: sa.Connection, limit: int) -> list[overviews.OperationOverview]:
    """Return the oldest running operations. A queued operation has the name of the one that holds its server."""
    front = ACTIONS.alias("front")
    rows = connection.execute(
        sa.select(*_OF_ACTIONS, ACTIONS.c.step, ACTIONS.c.owner, ACTIONS.c.queued, ACTIONS.c.waits_for,
                  ACTIONS.c.attempt, ACTIONS.c.start_time, _state_of(clock.now()).label("state"),
                  INSTANCES.c.display_name, front.c.action.label("behind"))
        .outerjoin(INSTANCES, INSTANCES.c.uuid == ACTIONS.c.instance_uuid)
        .outerjoin(front, sa.and_(front.c.uuid == INSTANCES.c.action_uuid, front.c.uuid != ACTIONS.c.uuid))
        .where(ACTIONS.c.outcome.is_(None)).order_by(ACTIONS.c.id).limit(limit))
    return [overviews.OperationOverview(
        request_id=row.request_id, server_uuid=row.instance_uuid, server_name=row.display_name,
        project_id=row.project_id, operation=row.action, step=row.step, state="queued" if row.queued else row.state,
        owner=row.owner, behind=row.behind if row.queued else None, attempt=row.attempt, since=row.start_time,
        events=[event for event in (row.waits_for or "").split(",") if event]) for row in rows]


def _before_latest() -> sa.ColumnElement[Any]:
    """Return the greatest id below those of the ``_LATEST`` newest actions."""
    return sa.select(sa.func.max(ACTIONS.c.id)).scalar_subquery() - _LATEST


def _boots(connection: sa.Connection) -> list[int]:
    """Return the completed builds of each past minute; -1 if it began before the oldest examined action."""
    now = clock.now()
    ends = [now - datetime.timedelta(minutes=minute) for minute in range(_MINUTES, -1, -1)]
    done = sa.and_(ACTIONS.c.operation == "build", ACTIONS.c.outcome == "success")
    finished = ACTIONS.c.finish_time
    counts = [sa.func.sum(sa.case((sa.and_(done, finished > begin, finished <= end), 1), else_=0))
              for begin, end in itertools.pairwise(ends)]
    newest, oldest, *sums = connection.execute(
        sa.select(sa.func.max(ACTIONS.c.id), sa.func.min(ACTIONS.c.start_time), *counts)
        .where(ACTIONS.c.id > _before_latest())).one()
    complete = (newest or 0) <= _LATEST
    return [int(count or 0) if complete or begin >= oldest else -1 for begin, count in zip(ends, sums, strict=False)]


def _failures(connection: sa.Connection, limit: int) -> list[overviews.FailureOverview]:
    rows = connection.execute(
        sa.select(*_OF_ACTIONS, ACTIONS.c.finish_time, ACTIONS.c.events, INSTANCES.c.display_name)
        .outerjoin(INSTANCES, INSTANCES.c.uuid == ACTIONS.c.instance_uuid)
        .where(ACTIONS.c.id > _before_latest(), ACTIONS.c.outcome == "error")
        .order_by(ACTIONS.c.id.desc()).limit(limit))
    return [overviews.FailureOverview(
        request_id=row.request_id, server_uuid=row.instance_uuid, server_name=row.display_name,
        project_id=row.project_id, operation=row.action, at=row.finish_time,
        message=next((event.details for event in row.events if event.details), None)) for row in rows]


# --- metrics -----------------------------------------------------------------------------------
def operations_by_state(connection: sa.Connection, now: datetime.datetime) -> Counts:
    """Return {(operation, state): number of running actions}; states as in the metric nova_actions_unfinished."""
    groups = (sa.select(ACTIONS.c.operation.label("operation"), _state_of(now).label("state"))
              .where(ACTIONS.c.outcome.is_(None)).subquery())
    counts = connection.execute(
        sa.select(groups.c.operation, groups.c.state, sa.func.count()).group_by(groups.c.operation, groups.c.state))
    return {(operation or "none", state): count for operation, state, count in counts}


def _state_of(now: datetime.datetime) -> sa.ColumnElement[str]:
    """Return the state of a running action: waiting, overdue, undoing, or its executor (host, conductor)."""
    return sa.case(
        (ACTIONS.c.owner.is_(None), "waiting"), (ACTIONS.c.lease_until < now, "overdue"),
        (ACTIONS.c.undoing == sa.true(), "undoing"), (ACTIONS.c.owner.like("compute@%"), "host"), else_="conductor")


def services_by_state(connection: sa.Connection) -> Counts:
    """Return {(binary, state): number of services}: up or down, and in addition disabled."""
    up = sa.case((liveness.up(), 1), else_=0)
    groups = sa.select(SERVICES.c.binary.label("binary"), SERVICES.c.disabled.label("disabled"),
                       up.label("up")).subquery()
    rows = connection.execute(
        sa.select(groups.c.binary, groups.c.up, groups.c.disabled, sa.func.count())
        .group_by(groups.c.binary, groups.c.up, groups.c.disabled))
    counts: collections.Counter[tuple[str, ...]] = collections.Counter()
    for binary, is_up, disabled, count in rows:
        # Report zero counts, too: an alert on the number of services that are down ends when it reads 0.
        states = {"up": is_up, "down": not is_up, "disabled": disabled}
        counts.update({(binary, state): count if holds else 0 for state, holds in states.items()})
    return dict(counts)
