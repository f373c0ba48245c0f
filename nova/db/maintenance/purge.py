"""Removal of deleted servers with all rows that belong to them, of the history of existing servers, of expired
certificates, and of EC2 ids that no request has used since the given time.

A purge may run while services and other purges run, and may be killed: it uses one short transaction per page, in the
order of (created_at, uuid), and pauses as long as the page took. Rows are archived before they are removed, so rows
that a killed purge has archived but not removed are archived again by the next purge."""

import collections
import contextlib
import dataclasses
import datetime
import functools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any

import msgspec
import sqlalchemy as sa

from nova.db import tables
from nova.db.sql import rows
from nova.db.sql.engine import Database

INSTANCES = tables.instances
ACTIONS = tables.actions
MIGRATIONS = tables.migrations
ALLOCATIONS = tables.allocations
EC2_IDS = tables.ec2_ids
CERTIFICATES = tables.certificates
ROOTS = tables.certificate_roots

# Tables of the rows that belong to an instance, by their column instance_uuid.
GO_ALONG = (ACTIONS, MIGRATIONS, tables.external_events, tables.security_group_members, tables.drain_servers,
            tables.console_tokens)
# Tables in which a row protects its instance from the purge, because work on it is pending.
KEEP = (tables.evictions, tables.fixed_ips, tables.floating_ips, tables.volumes, tables.share_accesses)
PAGE = 200  # number of rows per page
_ENDED_AT = sa.func.coalesce(INSTANCES.c.terminated_at, INSTANCES.c.updated_at, INSTANCES.c.created_at)

Removed = collections.Counter[str]
Place = tuple[Any, ...]  # position of a row in the order of removal


@dataclasses.dataclass(frozen=True)
class What:
    """The rows to remove: servers deleted and certificates expired before a time, and optionally the history of
    existing servers that ended before another time. ``keep``: number of newest actions of each server that stay,
    whatever their age."""

    servers_before: datetime.datetime
    history_before: datetime.datetime | None = None
    keep: int = 0


def count(db: Database, what: What) -> Removed:
    """Return how many rows of each kind would be removed now, without the rows that belong to deleted servers."""
    return db.read(lambda connection: Removed({
        kind.name: rows.count(connection, kind.table, kind.over) for kind in _kinds(what)}))


def purge(db: Database, what: What, archive: IO[bytes] | None = None, page: int = PAGE,
          sleep: Callable[[float], None] = time.sleep) -> Iterator[Removed]:
    """Remove rows; yield after each page the number of removed rows by table. ``archive`` receives a line of JSON per
    row, {"table": ..., "row": {...}}, which is on disk before the row is removed."""
    for kind in _kinds(what):
        after: Place | None = None
        while True:
            started = time.monotonic()
            places = db.read(functools.partial(kind.page, after=after, limit=page))
            keys = [place[-1] for place in places]
            if archive is not None and keys:
                _write(archive, db.read(functools.partial(kind.rows, keys=keys)))
            if keys:
                yield db.write(functools.partial(kind.remove, keys=keys))
            if len(places) < page:
                break
            after = places[-1]
            sleep(time.monotonic() - started)


def compact(db: Database) -> None:
    """Return the space of removed rows to the file system. Each table is locked while its rows are copied."""
    if db.dialect == "sqlite":
        with contextlib.closing(db.engine.raw_connection()) as raw:  # The connection is in autocommit mode.
            for statement in ("VACUUM", "PRAGMA wal_checkpoint(TRUNCATE)"):
                raw.cursor().execute(statement)
        return
    with db.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        verb = "VACUUM (FULL, ANALYZE)" if db.dialect == "postgresql" else "OPTIMIZE TABLE"
        for table in (INSTANCES, *GO_ALONG):
            connection.exec_driver_sql(f"{verb} {table.name}").close()


def _write(archive: IO[bytes], rows: Sequence[tuple[str, dict[str, Any]]]) -> None:
    archive.writelines(msgspec.json.encode({"table": table, "row": row}) + b"\n" for table, row in rows)
    archive.flush()
    os.fsync(archive.fileno())


@dataclasses.dataclass(frozen=True)
class _Kind:
    """Rows of one table to remove. ``order`` ends with the key; rows of the tables ``along`` are removed with them, by
    instance_uuid."""

    name: str
    table: sa.Table
    order: tuple[sa.Column[Any], ...]
    over: sa.ColumnElement[bool]
    along: tuple[sa.Table, ...] = ()

    @property
    def key(self) -> sa.Column[Any]:
        return self.order[-1]

    def page(self, connection: sa.Connection, after: Place | None, limit: int) -> list[Place]:
        """Return the positions of the next rows to remove."""
        statement = sa.select(*self.order).where(self.over).order_by(*self.order).limit(limit)
        if after is not None:
            # The first condition follows from the second, but lets each database start in the middle of the index.
            statement = statement.where(self.order[0] >= after[0], _behind(self.order, after))
        return [tuple(row) for row in connection.execute(statement)]

    def rows(self, connection: sa.Connection, keys: Sequence[Any]) -> list[tuple[str, dict[str, Any]]]:
        """Return all rows that are removed with these keys, by table."""
        rows_of_tables = []
        for table, of in ((self.table, self.key.in_(keys)),
                          *((table, table.c.instance_uuid.in_(keys)) for table in self.along)):
            rows_of_tables += [(str(table.name), {str(name): value for name, value in row._mapping.items()})
                               for row in connection.execute(sa.select(table).where(of))]
        return rows_of_tables

    def remove(self, connection: sa.Connection, keys: Sequence[Any]) -> Removed:
        """Remove the rows with these keys that may still be removed."""
        still = list(connection.scalars(
            sa.select(self.key).where(self.key.in_(keys), self.over).order_by(*self.order).with_for_update()))
        removed: Removed = Removed()
        for table in self.along:
            removed[table.name] += connection.execute(sa.delete(table).where(table.c.instance_uuid.in_(still))).rowcount
        removed[self.table.name] += connection.execute(sa.delete(self.table).where(self.key.in_(still))).rowcount
        return removed


def _behind(order: Sequence[sa.Column[Any]], after: Place) -> sa.ColumnElement[bool]:
    """Return the condition that a row comes after the position ``after``."""
    further: sa.ColumnElement[bool] = order[0] > after[0]
    return sa.or_(further, sa.and_(order[0] == after[0], _behind(order[1:], after[1:]))) if order[1:] else further


def _kinds(what: What) -> list[_Kind]:
    kinds = [_Kind("deleted servers", INSTANCES, (INSTANCES.c.created_at, INSTANCES.c.uuid), sa.and_(
        INSTANCES.c.deleted == sa.true(), what.servers_before > _ENDED_AT, *_nobody_needs()), GO_ALONG)]
    # If the id of the object is needed again, it gets the same number (a CRC-32 of its uuid).
    kinds.append(_Kind("unused EC2 ids", EC2_IDS, (EC2_IDS.c.used_at, EC2_IDS.c.id),
                       EC2_IDS.c.used_at < what.servers_before))
    kinds += [_Kind("expired certificates", CERTIFICATES, (CERTIFICATES.c.not_after, CERTIFICATES.c.id),
                    CERTIFICATES.c.not_after < what.servers_before),
              # No certificate is valid for longer than its root, so all certificates of the root were removed before.
              _Kind("expired root certificates", ROOTS, (ROOTS.c.not_after, ROOTS.c.id), sa.and_(
                  ROOTS.c.not_after < what.servers_before,
                  ~sa.exists().where(CERTIFICATES.c.root_id == ROOTS.c.id)))]
    if what.history_before is None:
        return kinds
    moving = _moving(ACTIONS.c.instance_uuid)
    claims = sa.exists().where(ALLOCATIONS.c.consumer_uuid == MIGRATIONS.c.uuid)
    return [*kinds, _Kind("ended actions", ACTIONS, (ACTIONS.c.id,), sa.and_(
        ~_under_way(), ACTIONS.c.finish_time < what.history_before, ~moving, *_has_newer(what.keep))),
        _Kind("ended migrations", MIGRATIONS, (MIGRATIONS.c.id,), sa.and_(
            MIGRATIONS.c.open == sa.false(), ~claims,
            sa.func.coalesce(MIGRATIONS.c.updated_at, MIGRATIONS.c.created_at) < what.history_before))]


def _has_newer(number: int) -> Iterator[sa.ColumnElement[bool]]:
    """Return the condition that the server of an action has ``number`` newer actions. Only newer actions are read."""
    if number:
        newer = ACTIONS.alias()
        yield sa.select(newer.c.id).where(newer.c.instance_uuid == ACTIONS.c.instance_uuid, newer.c.id > ACTIONS.c.id) \
            .order_by(newer.c.id).limit(1).offset(number - 1).scalar_subquery().is_not(None)


def _under_way() -> sa.ColumnElement[bool]:
    """Return the condition that an action runs, or that its deferred cleanup has not ended."""
    return sa.or_(ACTIONS.c.outcome.is_(None), ACTIONS.c.lease_until.is_not(None))


def _moving(instance_uuid: sa.Column[Any]) -> sa.ColumnElement[bool]:
    """Return the condition that the instance has an open migration."""
    table = MIGRATIONS.alias()
    return sa.exists().where(table.c.instance_uuid == instance_uuid, table.c.open == sa.true())


def _nobody_needs() -> Iterator[sa.ColumnElement[bool]]:
    """Return the conditions to remove a deleted instance: no guest to remove, no running action, and no resources."""
    this = INSTANCES.c.uuid
    for table in KEEP:
        yield ~sa.exists().where(table.c.instance_uuid == this)
    yield ~sa.exists().where(ACTIONS.c.instance_uuid == this, _under_way())
    yield ~_moving(this)
    yield ~sa.exists().where(ALLOCATIONS.c.consumer_uuid == this)
    yield ~sa.exists().where(MIGRATIONS.c.instance_uuid == this, ALLOCATIONS.c.consumer_uuid == MIGRATIONS.c.uuid)
