"""Drains of hosts, and a row ("line") for each server of a drain. One conductor at a time processes a drain: the holder
of its lease, which alone may write its lines."""

import dataclasses
import datetime
from collections.abc import Collection, Sequence
from typing import Any

import sqlalchemy as sa

from nova import exception
from nova.db import tables
from nova.db.servers import server_migrations
from nova.db.sql import clock, rows
from nova.objects.hosts import drain as drain_types
from nova.objects.hosts.drain import Drain, DrainedServer
from nova.objects.servers import migration as migration_states
from nova.objects.servers import states
from nova.objects.servers.action import Action
from nova.objects.servers.migration import Migration

TABLE = tables.drains
SERVERS = tables.drain_servers
INSTANCES = tables.instances
MIGRATIONS = tables.migrations
ACTIONS = tables.actions

_OPEN = TABLE.c.state != drain_types.ENDED


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A server on a host that is drained. ``busy``: an operation of the server is running or queued."""

    uuid: str
    host: str | None
    vm_state: str
    task_state: str | None
    busy: bool
    deleted: bool


@dataclasses.dataclass(frozen=True)
class Survey:
    """The waiting and moving servers of a drain. ``coming``: number of servers that move to the drained host."""

    lines: list[DrainedServer]
    servers: dict[str, Candidate]
    actions: dict[str, Action]
    unconfirmed: dict[str, Migration]
    coming: int


_CANDIDATE = (INSTANCES.c.uuid, INSTANCES.c.host, INSTANCES.c.vm_state, INSTANCES.c.task_state,
              INSTANCES.c.action_uuid, INSTANCES.c.deleted)


def _candidate(row: Any) -> Candidate:
    return Candidate(uuid=row.uuid, host=row.host, vm_state=row.vm_state, task_state=row.task_state,
                     busy=row.action_uuid is not None or row.task_state is not None, deleted=row.deleted)


# --- requests of operators -----------------------------------------------------------------------
def begin(connection: sa.Connection, wanted: Drain) -> Drain:
    """Begin to drain the host. A running drain continues with the new options and retries the servers that it had left.
    The caller has locked the host's service. Raises DrainConflict if another kind of drain is running."""
    running = find(connection, wanted.host)
    if running is not None and running.state != drain_types.ENDED:
        if running.kind != wanted.kind:
            raise exception.DrainConflict(host=wanted.host, kind=running.kind)
        connection.execute(sa.update(TABLE).where(TABLE.c.uuid == running.uuid).values(
            state=drain_types.RUNNING, parallel=wanted.parallel, cold=wanted.cold, target=wanted.target,
            patience=wanted.patience))
        connection.execute(sa.delete(SERVERS).where(
            SERVERS.c.drain_uuid == running.uuid, SERVERS.c.state == drain_types.LEFT))
        return _get(connection, wanted.host)
    forget_host(connection, wanted.host)
    connection.execute(sa.insert(TABLE).values(rows.values_of(TABLE, wanted)))
    return wanted


def find(connection: sa.Connection, host: str) -> Drain | None:
    """Return the newest drain of a host, running or ended, or None."""
    row = connection.execute(sa.select(TABLE).where(TABLE.c.host == host)).first()
    return rows.to_object(Drain, row) if row is not None else None


def _get(connection: sa.Connection, host: str) -> Drain:
    drain = find(connection, host)
    if drain is None:
        raise exception.DrainNotFound(host=host)
    return drain


def stop(connection: sa.Connection, host: str) -> Drain:
    """Stop a drain: it starts no further moves, and running moves continue. Raises DrainNotFound."""
    connection.execute(sa.update(TABLE).where(TABLE.c.host == host, _OPEN).values(state=drain_types.STOPPING))
    return _get(connection, host)


def get(connection: sa.Connection, host: str) -> tuple[Drain, list[DrainedServer]]:
    """Return the newest drain of a host and its lines in the order of their start. Raises DrainNotFound."""
    drain = _get(connection, host)
    return drain, rows.to_objects(DrainedServer, connection.execute(
        sa.select(SERVERS).where(SERVERS.c.drain_uuid == drain.uuid).order_by(
            sa.func.coalesce(SERVERS.c.started_at, SERVERS.c.since), SERVERS.c.instance_uuid)))


def forget_host(connection: sa.Connection, host: str) -> None:
    """Delete the drains of a host that was deleted or is drained again."""
    connection.execute(sa.delete(SERVERS).where(
        SERVERS.c.drain_uuid.in_(sa.select(TABLE.c.uuid).where(TABLE.c.host == host))))
    connection.execute(sa.delete(TABLE).where(TABLE.c.host == host))


# --- the lease -------------------------------------------------------------------------------------
def due(connection: sa.Connection) -> list[Drain]:
    """Return running drains without a lease holder."""
    return rows.to_objects(Drain, connection.execute(sa.select(TABLE).where(_OPEN, _free()).order_by(TABLE.c.host)))


def _free() -> sa.ColumnElement[bool]:
    return sa.or_(TABLE.c.lease_until.is_(None), TABLE.c.lease_until < clock.now())


def take(connection: sa.Connection, uuid: str, owner: str, until: datetime.datetime) -> bool:
    """Take the lease until ``until``; return False if another conductor has it, or the drain has ended."""
    return connection.execute(sa.update(TABLE).where(TABLE.c.uuid == uuid, _OPEN, _free()).values(
        owner=owner, lease_until=until)).rowcount == 1


def let_go(connection: sa.Connection, uuid: str, owner: str) -> None:
    connection.execute(sa.update(TABLE).where(TABLE.c.uuid == uuid, TABLE.c.owner == owner).values(
        owner=None, lease_until=None))


def note(connection: sa.Connection, uuid: str, owner: str, until: datetime.datetime,
         lines: Sequence[DrainedServer]) -> str | None:
    """Write these lines and renew the lease. Return the drain's state, or None if ``owner`` no longer has the lease."""
    held = sa.and_(TABLE.c.uuid == uuid, TABLE.c.owner == owner, _OPEN)
    if not connection.execute(sa.update(TABLE).where(held).values(lease_until=until)).rowcount:
        return None
    if lines:
        connection.execute(sa.delete(SERVERS).where(
            SERVERS.c.drain_uuid == uuid, SERVERS.c.instance_uuid.in_([line.instance_uuid for line in lines])))
        connection.execute(sa.insert(SERVERS), [rows.values_of(SERVERS, line) for line in lines])
    return connection.scalar(sa.select(TABLE.c.state).where(TABLE.c.uuid == uuid))


def end(connection: sa.Connection, uuid: str, owner: str) -> bool:
    """End a drain; return True if ``owner`` had the lease. Servers that still waited are recorded as not moved."""
    ended = connection.execute(sa.update(TABLE).where(TABLE.c.uuid == uuid, TABLE.c.owner == owner, _OPEN).values(
        state=drain_types.ENDED, ended_at=clock.now(), owner=None, lease_until=None)).rowcount == 1
    if ended:
        connection.execute(sa.update(SERVERS).where(
            SERVERS.c.drain_uuid == uuid, SERVERS.c.state == drain_types.WAITING).values(
            state=drain_types.LEFT, reason="the drain was stopped before the server was moved"))
    return ended


# --- remaining work ----------------------------------------------------------------------------------
def survey(connection: sa.Connection, drain: Drain) -> Survey:
    """Return the open lines of a drain with the progress of their servers, by five statements, however many."""
    lines = rows.to_objects(DrainedServer, connection.execute(sa.select(SERVERS).where(
        SERVERS.c.drain_uuid == drain.uuid, SERVERS.c.state.in_((drain_types.WAITING, drain_types.MOVING)))
        .order_by(SERVERS.c.since, SERVERS.c.instance_uuid)))
    uuids = [line.instance_uuid for line in lines]
    requests = [line.request_id for line in lines if line.state == drain_types.MOVING]
    coming = connection.scalar(sa.select(sa.func.count()).select_from(MIGRATIONS.join(
        INSTANCES, INSTANCES.c.uuid == MIGRATIONS.c.instance_uuid)).where(
        MIGRATIONS.c.open == sa.true(), MIGRATIONS.c.dest_compute == drain.host,
        INSTANCES.c.host != drain.host, INSTANCES.c.action_uuid.is_not(None))) or 0
    if not lines:
        return Survey([], {}, {}, {}, coming)
    candidates = {row.uuid: _candidate(row) for row in connection.execute(
        sa.select(*_CANDIDATE).where(INSTANCES.c.uuid.in_(uuids)))}
    actions = {action.request_id: action for action in rows.to_objects(Action, connection.execute(
        sa.select(ACTIONS).where(ACTIONS.c.instance_uuid.in_(uuids), ACTIONS.c.request_id.in_(requests))))}
    resized = [uuid for uuid, server in candidates.items() if server.vm_state == states.RESIZED]
    unconfirmed = {migration.instance_uuid: migration for migration in (
        server_migrations.open_of(connection, resized) if resized else [])
        if migration.status == migration_states.FINISHED}
    return Survey(lines, candidates, actions, unconfirmed, coming)


def candidates(connection: sa.Connection, drain: Drain, limit: int, after: str = "") -> list[Candidate]:
    """Return servers on the host that have no line in the drain, with uuids greater than ``after``."""
    return [_candidate(row) for row in connection.execute(sa.select(*_CANDIDATE).where(
        INSTANCES.c.host == drain.host, INSTANCES.c.deleted == sa.false(), INSTANCES.c.uuid > after,
        _without_line(drain)).order_by(INSTANCES.c.uuid).limit(limit))]


def moved_out(connection: sa.Connection, drain: Drain) -> list[tuple[str, str]]:
    """Return (uuid, new host) of servers without a line whose move away from the host is not confirmed yet."""
    return [(row.uuid, row.host) for row in connection.execute(
        sa.select(INSTANCES.c.uuid, INSTANCES.c.host).select_from(MIGRATIONS.join(
            INSTANCES, INSTANCES.c.uuid == MIGRATIONS.c.instance_uuid)).where(
            MIGRATIONS.c.open == sa.true(), MIGRATIONS.c.source_compute == drain.host,
            MIGRATIONS.c.status == migration_states.FINISHED, INSTANCES.c.host != drain.host,
            INSTANCES.c.vm_state == states.RESIZED, INSTANCES.c.deleted == sa.false(), _without_line(drain))
        .order_by(INSTANCES.c.uuid))]


def _without_line(drain: Drain) -> sa.ColumnElement[bool]:
    return ~sa.exists().where(SERVERS.c.drain_uuid == drain.uuid, SERVERS.c.instance_uuid == INSTANCES.c.uuid)


def names(connection: sa.Connection, uuids: Collection[str]) -> dict[str, str]:
    """Return uuid -> name of the servers."""
    return dict(connection.execute(sa.select(INSTANCES.c.uuid, INSTANCES.c.display_name).where(
        INSTANCES.c.uuid.in_(uuids))).all())
