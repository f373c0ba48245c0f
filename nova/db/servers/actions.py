"""The journal of operations: a row per action with its steps as events, and its lease."""

import datetime
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from oslo_db import exception as db_exception

from nova import exception
from nova.conf import CONF
from nova.db import tables
from nova.db.sql import clock, hot, rows
from nova.objects.servers.action import Action, Event
from nova.objects.servers.instance import Instance
from nova.objects.volumes.volume import journal_without_secrets

TABLE = tables.actions
INSTANCES = tables.instances
_LEASES = 2  # maximum lease of an action with an owner, in multiples of [conductor]lease
# Outcomes after which a cleanup deletes the objects that the steps of the action created in external services.
_WITHOUT_SUCCESS = ("superseded", "error")
_ENDED = (*_WITHOUT_SUCCESS, "success")

# Columns of lists for users. Payload and events of an action may have a hundred kilobytes each.
LISTED = tuple(column for column in TABLE.c if column.name not in ("payload", "events"))

# Built once: building a statement costs several times as much as running it.
_GET = sa.select(TABLE).where(TABLE.c.uuid == sa.bindparam("this"))
_GET_WITH_INSTANCE = sa.select(TABLE, INSTANCES).join_from(
    TABLE, INSTANCES, INSTANCES.c.uuid == TABLE.c.instance_uuid).where(TABLE.c.uuid == sa.bindparam("this"))
_UPDATE = sa.update(TABLE).where(TABLE.c.uuid == sa.bindparam("this"), TABLE.c.attempt == sa.bindparam("held"),
                                 TABLE.c.outcome.is_(None))
_QUEUED = sa.select(TABLE).where(TABLE.c.instance_uuid == sa.bindparam("instance"), TABLE.c.outcome.is_(None),
                                 TABLE.c.queued == sa.true()).order_by(TABLE.c.id)
_NEXT_QUEUED = _QUEUED.where(TABLE.c.id > sa.bindparam("after")).limit(1)


def insert(connection: sa.Connection, actions: Sequence[Action]) -> None:
    """Insert the first actions of new instances by one statement, which does not return their ids."""
    connection.execute(sa.insert(TABLE), [rows.values_of(TABLE, action) for action in actions])


def follow(connection: sa.Connection, action: Action) -> None:
    """Insert an action of a locked instance. Its id is greater than those of all earlier actions of the instance."""
    done = connection.execute(sa.insert(TABLE), rows.values_of(TABLE, action))
    action.id = done.inserted_primary_key[0]  # type: ignore[index] # never None after a single INSERT


def get(connection: sa.Connection, uuid: str) -> Action | None:
    row = hot.execute(connection, _GET, {"this": uuid}).first()
    return rows.to_object(Action, row) if row else None


def get_with_instance(connection: sa.Connection, uuid: str) -> tuple[Action, Instance] | None:
    """Return an action and its instance, which may be deleted, by one statement."""
    row = hot.execute(connection, _GET_WITH_INSTANCE, {"this": uuid}).first()
    return rows.to_joined(row, (Action, TABLE), (Instance, INSTANCES)) if row else None


def update(connection: sa.Connection, held: Action, **changes: Any) -> None:
    """Write to an unfinished action under the current attempt. Raises StaleReport if another attempt has begun."""
    done = hot.execute(connection, _UPDATE, {
        "updated_at": clock.now(), **changes, "this": held.uuid, "held": held.attempt})
    if done.rowcount != 1:
        raise exception.StaleReport(action=held.uuid, step=held.step, attempt=held.attempt)


class Preemption:
    """Locks the current action of an instance before the instance, as all transactions do. The action is known only
    after the instance is locked: lock() then has the transaction repeated, and begin() locks the action first."""

    def __init__(self) -> None:
        self._locked_uuid: str | None = None

    def begin(self, connection: sa.Connection) -> None:
        """Lock the action that :meth:`lock` found in the previous run of the transaction, if there was one."""
        if self._locked_uuid is not None:
            connection.execute(sa.select(TABLE.c.id).where(TABLE.c.uuid == self._locked_uuid).with_for_update())

    def lock(self, connection: sa.Connection, uuid: str) -> Action | None:
        """Return the unfinished action of the locked instance, locked, or None if it has ended. Raises RetryRequest if
        begin() did not lock this action."""
        if uuid != self._locked_uuid and connection.dialect.name != "sqlite":  # SQLite has one lock for all rows.
            self._locked_uuid = uuid
            raise db_exception.RetryRequest(exception.ServiceUnavailable("An operation of the server is running."))
        row = connection.execute(sa.select(TABLE).where(
            TABLE.c.uuid == uuid, TABLE.c.outcome.is_(None)).with_for_update()).first()
        return rows.to_object(Action, row) if row else None


def supersede(connection: sa.Connection, action: Action, events: Sequence[Event],
              cleanup: dict[str, Any] | None = None, until: datetime.datetime | None = None) -> None:
    """End an action because another action has preempted it. Later reports of the ended action are refused.
    ``cleanup``: the payload with the deferred cleanup that is due at ``until``, or None. No volume keys are stored."""
    now = clock.now()
    owner = {} if cleanup is None else {"owner": None}
    payload = journal_without_secrets(action.payload if cleanup is None else cleanup)
    connection.execute(sa.update(TABLE).where(TABLE.c.uuid == action.uuid, TABLE.c.outcome.is_(None)).values(
        outcome="superseded", finish_time=now, updated_at=now, lease_until=None if cleanup is None else until,
        queued=False, waits_for=None, events=list(events), payload=payload, **owner))


def due_cleanups(connection: sa.Connection, now: datetime.datetime, limit: int) -> list[Action]:
    """Return ended actions with a deferred cleanup that is due, ordered by its time."""
    return rows.to_objects(Action, connection.execute(sa.select(TABLE).where(
        TABLE.c.outcome.in_(_ENDED), TABLE.c.lease_until < now).order_by(TABLE.c.lease_until).limit(limit)))


def schedule_cleanup(connection: sa.Connection, uuid: str, payload: dict[str, Any]) -> Action | None:
    """Make a cleanup due now and return the action, or None if the action is unfinished or succeeded."""
    done = connection.execute(sa.update(TABLE).where(
        TABLE.c.uuid == uuid, TABLE.c.outcome.in_(_WITHOUT_SUCCESS)).values(
        attempt=TABLE.c.attempt + 1, lease_until=clock.now(), owner=None, payload=payload))
    return get(connection, uuid) if done.rowcount else None


def postpone_cleanup(connection: sa.Connection, held: Action, until: datetime.datetime | None,
                     payload: dict[str, Any]) -> None:
    """Record that the deferred cleanup of an action runs after ``until`` (None: finished). Raises StaleReport if
    another conductor executes it."""
    done = connection.execute(sa.update(TABLE).where(
        TABLE.c.uuid == held.uuid, TABLE.c.attempt == held.attempt, TABLE.c.lease_until.is_not(None)).values(
        attempt=held.attempt + 1, lease_until=until, payload=payload))
    if done.rowcount != 1:
        raise exception.StaleReport(action=held.uuid, step=held.step, attempt=held.attempt)


def queued(connection: sa.Connection, instance_uuid: str) -> list[Action]:
    """Return the actions that wait for the instance, oldest first."""
    return rows.to_objects(Action, connection.execute(_QUEUED, {"instance": instance_uuid}))


def next_queued(connection: sa.Connection, instance_uuid: str, operations: Sequence[str] = (),
                after: int = 0) -> Action | None:
    """Return the oldest queued action (among these ``operations``) whose id is greater than ``after``."""
    statement = _NEXT_QUEUED.where(TABLE.c.operation.in_(operations)) if operations else _NEXT_QUEUED
    row = connection.execute(statement, {"instance": instance_uuid, "after": after}).first()
    return rows.to_object(Action, row) if row else None


def waiting(connection: sa.Connection, instance_uuid: str, keys: Collection[str]) -> Action | None:
    """Lock and return the unfinished action of the instance that waits for one of these external events, or None."""
    queued = connection.execute(sa.select(TABLE).where(
        TABLE.c.instance_uuid == instance_uuid, TABLE.c.outcome.is_(None)).order_by(TABLE.c.id).with_for_update())
    return next((rows.to_object(Action, row) for row in queued
                 if any(f",{key}," in (row.waits_for or "") for key in keys)), None)


def confirm(connection: sa.Connection, uuid: str, attempt: int, owner: str, until: datetime.datetime) -> bool:
    """Extend the lease of this attempt; return False if ``owner`` no longer has it."""
    done = connection.execute(sa.update(TABLE).where(
        TABLE.c.uuid == uuid, TABLE.c.attempt == attempt, TABLE.c.owner == owner, TABLE.c.outcome.is_(None))
        .values(lease_until=until))
    return done.rowcount == 1


def renew(connection: sa.Connection, owner: str, uuids: Sequence[str], until: datetime.datetime) -> list[str]:
    """Extend the leases of these actions; return those that ``owner`` does not hold any more."""
    if not uuids:
        return []
    mine = sa.and_(TABLE.c.uuid.in_(uuids), TABLE.c.owner == owner, TABLE.c.outcome.is_(None))
    held = set(connection.scalars(sa.select(TABLE.c.uuid).where(mine)))
    if held:
        connection.execute(sa.update(TABLE).where(mine).values(lease_until=until))
    return [uuid for uuid in uuids if uuid not in held]


def renew_of(connection: sa.Connection, owners: Mapping[str, str], until: datetime.datetime) -> None:
    """Extend the leases of these actions (by uuid) that are still held by their given owners."""
    if not owners:
        return
    held = connection.execute(sa.select(TABLE.c.uuid, TABLE.c.owner).where(
        TABLE.c.uuid.in_(owners), TABLE.c.outcome.is_(None)))
    mine = [row.uuid for row in held if owners[row.uuid] == row.owner]
    if mine:
        connection.execute(sa.update(TABLE).where(
            TABLE.c.uuid.in_(mine), TABLE.c.owner.in_(set(owners.values())), TABLE.c.outcome.is_(None))
            .values(lease_until=until))


def expired(connection: sa.Connection, now: datetime.datetime, limit: int, of_hosts: bool = True) -> list[Action]:
    """Return unfinished actions with expired leases, oldest lease first. ``of_hosts``: include those owned by hosts."""
    # A lease of an owner that ends after this time was written before the clock was set back, and counts as expired.
    never = TABLE.c.lease_until > now + datetime.timedelta(seconds=_LEASES * CONF.conductor.lease)
    statement = (sa.select(TABLE).where(sa.or_(
        sa.and_(TABLE.c.outcome.is_(None), TABLE.c.lease_until < now),
        sa.and_(TABLE.c.outcome.is_(None), never, TABLE.c.owner.is_not(None))))
        .order_by(TABLE.c.lease_until).limit(limit))
    if not of_hosts:
        statement = statement.where(sa.or_(TABLE.c.owner.is_(None), TABLE.c.owner.not_like("compute@%")))
    return rows.to_objects(Action, connection.execute(statement))


def owned(connection: sa.Connection, owner: str) -> list[Action]:
    """Return the unfinished actions that ``owner`` executes."""
    statement = sa.select(TABLE).where(TABLE.c.outcome.is_(None), TABLE.c.owner == owner).order_by(TABLE.c.id)
    return rows.to_objects(Action, connection.execute(statement))


def index(connection: sa.Connection, instance_uuid: str, limit: int | None = None, marker: str | None = None,
          changes_since: datetime.datetime | None = None, changes_before: datetime.datetime | None = None, *,
          columns: Sequence[sa.Column[Any]] = tuple(TABLE.c)) -> list[Action]:
    """Return actions, newest first, with these columns. ``marker``: a request id. Raises MarkerNotFound."""
    statement = sa.select(*columns).where(TABLE.c.instance_uuid == instance_uuid).order_by(TABLE.c.id.desc())
    if marker is not None:
        first_id = connection.scalar(sa.select(sa.func.min(TABLE.c.id)).where(
            TABLE.c.instance_uuid == instance_uuid, TABLE.c.request_id == marker))
        if first_id is None:
            raise exception.MarkerNotFound(marker=marker)
        statement = statement.where(TABLE.c.id < first_id)
    if changes_since is not None:
        statement = statement.where(TABLE.c.updated_at >= changes_since)
    if changes_before is not None:
        statement = statement.where(TABLE.c.updated_at <= changes_before)
    return rows.to_objects(Action, connection.execute(statement.limit(limit)))


def by_request(connection: sa.Connection, instance_uuid: str, request_id: str) -> Action:
    return rows.first(
        connection, Action, sa.select(TABLE).where(
            TABLE.c.instance_uuid == instance_uuid, TABLE.c.request_id == request_id).order_by(TABLE.c.id).limit(1),
        exception.InstanceActionNotFound(request_id=request_id, instance_uuid=instance_uuid))


def hand_over(connection: sa.Connection, owner: str) -> int:
    """End all leases of ``owner``; return their number. Any conductor may take these actions over."""
    return connection.execute(
        sa.update(TABLE).where(TABLE.c.outcome.is_(None), TABLE.c.owner == owner)
        .values(lease_until=clock.now(), owner=None)).rowcount
