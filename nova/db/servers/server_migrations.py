"""Migrations of servers: the rows of os-migrations."""

import datetime
from collections.abc import Collection, Sequence
from typing import Any

import sqlalchemy as sa

from nova import exception
from nova.db import liveness, tables
from nova.db.sql import clock, rows, scans, searches
from nova.objects.servers import migration as migration_states
from nova.objects.servers import states
from nova.objects.servers.migration import Migration, MigrationQuery

TABLE = tables.migrations
SERVERS = tables.instances
EVICTIONS = tables.evictions
NODES = tables.compute_nodes

# Columns of filters, ordered by the number of rows with one value; columns with the fewest come first.
_SELECTIVE = ("instance_uuid", "source_compute", "user_id", "project_id", "status", "migration_type")

_GET = sa.select(TABLE).where(TABLE.c.uuid == sa.bindparam("this"))
_OPEN_OF = sa.select(TABLE).where(TABLE.c.instance_uuid.in_(sa.bindparam("these", expanding=True)),
                                  TABLE.c.open == sa.true()).order_by(TABLE.c.id)
_UPDATE = sa.update(TABLE).where(TABLE.c.uuid == sa.bindparam("this"))
# UPDATE that also sets dest_host to the address of the new destination, or "" if the node no longer exists.
_UPDATE_DESTINATION = _UPDATE.values(dest_host=sa.select(sa.func.coalesce(sa.func.max(NODES.c.host_ip), "")).where(
    NODES.c.host == sa.bindparam("to_host"), NODES.c.hypervisor_hostname == sa.bindparam("to_node")).scalar_subquery())


def insert(connection: sa.Connection, migration: Migration) -> None:
    """Insert a migration and set its id."""
    done = connection.execute(sa.insert(TABLE), rows.values_of(TABLE, migration))
    migration.id = done.inserted_primary_key[0]  # type: ignore[index] # never None after a single INSERT


def get(connection: sa.Connection, uuid: str) -> Migration:
    """Return a migration. Raises MigrationNotFound."""
    return rows.first(connection, Migration, _GET, exception.MigrationNotFound(migration_id=uuid), {"this": uuid})


def update(connection: sa.Connection, uuid: str, changes: dict[str, Any]) -> None:
    """Change a migration. If ``changes`` has a destination (``dest_compute`` and ``dest_node``), set ``dest_host``."""
    values = {"updated_at": clock.now(), **changes, "this": uuid}
    if "dest_node" in changes:
        connection.execute(_UPDATE_DESTINATION, {
            **values, "to_host": changes["dest_compute"], "to_node": changes["dest_node"]})
    else:
        connection.execute(_UPDATE, values)


def index(connection: sa.Connection, query: MigrationQuery) -> list[Migration]:
    """Return a page of the migrations that match the query, newest first. Raises MarkerNotFound."""
    equal = {name: [value] for name in _SELECTIVE if (value := getattr(query, name, None)) is not None}
    prefixes: list[scans.Prefix] = [{}]
    if query.host is not None:
        prefixes = [{"source_compute": query.host}, {"dest_compute": query.host}]
    changes = [*([TABLE.c.updated_at >= query.changes_since] if query.changes_since is not None else []),
               *([TABLE.c.updated_at <= query.changes_before] if query.changes_before is not None else [])]
    marker = rows.marker_row(connection, sa.select(TABLE).where(
        TABLE.c.uuid == query.marker, *rows.equal(TABLE.c.project_id, query.project_id)), query.marker)
    wanted = searches.Search(TABLE, [("created_at", "desc"), ("id", "desc")], _SELECTIVE, prefixes, equal=equal,
                             indexed={"updated_at": sa.and_(*changes)} if changes else {})
    return rows.to_objects(Migration, searches.page(connection, wanted, list(TABLE.c), query.limit, marker).rows)


def live(connection: sa.Connection, instance_uuid: str, migration_id: int) -> Migration:
    """Return a live migration of the instance by its number. Raises MigrationNotFoundForInstance."""
    return rows.first(
        connection, Migration, sa.select(TABLE).where(
            TABLE.c.id == migration_id, TABLE.c.instance_uuid == instance_uuid,
            TABLE.c.migration_type == migration_states.LIVE_MIGRATION),
        exception.MigrationNotFoundForInstance(migration_id=migration_id, instance_id=instance_uuid))


def in_progress(connection: sa.Connection, instance_uuid: str) -> list[Migration]:
    """Return the live migrations of the instance that are in progress, newest first."""
    return rows.to_objects(Migration, connection.execute(sa.select(TABLE).where(
        TABLE.c.instance_uuid == instance_uuid, TABLE.c.status.in_(migration_states.IN_PROGRESS),
        TABLE.c.migration_type == migration_states.LIVE_MIGRATION).order_by(TABLE.c.id.desc())))


def interrupted(connection: sa.Connection, limit: int = 1000) -> list[Migration]:
    """Return open migrations that a user has requested to abort or to force to complete."""
    return rows.to_objects(Migration, connection.execute(sa.select(TABLE).where(
        TABLE.c.open == sa.true(), TABLE.c.wanted != "").order_by(TABLE.c.id).limit(limit)))


def under_way(connection: sa.Connection, host: str) -> bool:
    """Return True if a migration from or to the host is running, or waits for its confirmation or revert."""
    return connection.scalar(sa.select(TABLE.c.id).where(
        TABLE.c.open == sa.true(), TABLE.c.status.not_in(migration_states.ENDED),
        sa.or_(TABLE.c.source_compute == host, TABLE.c.dest_compute == host)).limit(1)) is not None


def unconfirmed_evacuations(connection: sa.Connection, host: str, limit: int = 1000) -> list[str]:
    """Return the uuids of servers evacuated from the host whose guests the host has not confirmed as removed."""
    left = sa.exists().where(EVICTIONS.c.host == host, EVICTIONS.c.instance_uuid == TABLE.c.instance_uuid)
    return list(connection.scalars(sa.select(TABLE.c.instance_uuid).where(_evacuations(host), left)
                                   .distinct().order_by(TABLE.c.instance_uuid).limit(limit)))


def complete_evacuations(connection: sa.Connection, host: str, instance_uuids: Sequence[str]) -> None:
    """Complete the evacuations of these instances, whose guests the host has removed."""
    left = sa.exists().where(EVICTIONS.c.host == host, EVICTIONS.c.instance_uuid == TABLE.c.instance_uuid)
    connection.execute(sa.update(TABLE).where(
        _evacuations(host), TABLE.c.instance_uuid.in_(instance_uuids), ~left).values(
        status=migration_states.COMPLETED, updated_at=clock.now()))


def _evacuations(host: str) -> sa.ColumnElement[bool]:
    return sa.and_(TABLE.c.open == sa.false(), TABLE.c.source_compute == host, TABLE.c.status == migration_states.DONE,
                   TABLE.c.migration_type == migration_states.EVACUATION)


def newest(connection: sa.Connection, instance_uuid: str, statuses: Collection[str]) -> Migration | None:
    """Return the instance's newest migration in one of these states."""
    row = connection.execute(sa.select(TABLE).where(
        TABLE.c.instance_uuid == instance_uuid, TABLE.c.status.in_(statuses)).order_by(TABLE.c.id.desc()).limit(1)
    ).first()
    return rows.to_object(Migration, row) if row else None


def open_of(connection: sa.Connection, instance_uuids: Sequence[str]) -> list[Migration]:
    """Return the open migrations of these instances, oldest first."""
    return rows.to_objects(Migration, connection.execute(_OPEN_OF, {"these": list(instance_uuids)}))


def unconfirmed(connection: sa.Connection, before: datetime.datetime, after: int, limit: int) -> list[Migration]:
    """Return resizes and cold migrations with ids above ``after`` that have waited for confirmation since ``before``.
    Migrations that cannot be confirmed now are left out: another operation runs on the server, or its old host is
    down."""
    # The acceptance of the confirmation checks these conditions again.
    there = liveness.host_up(TABLE.c.source_compute)
    ready = sa.exists().where(SERVERS.c.uuid == TABLE.c.instance_uuid, SERVERS.c.vm_state == states.RESIZED,
                              SERVERS.c.action_uuid.is_(None), SERVERS.c.deleted == sa.false())
    return rows.to_objects(Migration, connection.execute(sa.select(TABLE).where(
        TABLE.c.open == sa.true(), TABLE.c.status == migration_states.FINISHED, TABLE.c.updated_at < before,
        TABLE.c.id > after, ready, there).order_by(TABLE.c.id).limit(limit)))
