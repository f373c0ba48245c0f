"""Evictions: rows that instruct a host to remove the guest of an instance that has left the host."""

import datetime
from collections.abc import Mapping, Sequence

import sqlalchemy as sa

from nova.db import tables
from nova.db.servers import servers
from nova.db.sql import clock
from nova.objects.servers.guest import Eviction, Whereabouts

TABLE = tables.evictions


def add(connection: sa.Connection, instance_uuid: str, host: str, keep_disks: bool) -> None:
    """Record that the host must remove the guest. A second record replaces the first."""
    connection.execute(sa.delete(TABLE).where(TABLE.c.instance_uuid == instance_uuid, TABLE.c.host == host))
    connection.execute(sa.insert(TABLE).values(
        instance_uuid=instance_uuid, host=host, keep_disks=keep_disks, created_at=clock.now()))


def remove(connection: sa.Connection, host: str, instance_uuids: Sequence[str]) -> None:
    connection.execute(sa.delete(TABLE).where(TABLE.c.host == host, TABLE.c.instance_uuid.in_(instance_uuids)))


def carried_out(connection: sa.Connection, host: str, since: Mapping[str, datetime.datetime]) -> None:
    """Delete the evictions that the host has executed; later evictions of the same guests stay."""
    if since:
        connection.execute(sa.delete(TABLE).where(
            TABLE.c.host == host, TABLE.c.instance_uuid == sa.bindparam("this"),
            TABLE.c.created_at == sa.bindparam("said")), [
            {"this": uuid, "said": said} for uuid, said in sorted(since.items())])


def of_host(connection: sa.Connection, host: str, limit: int = 1000, marker: str | None = None) -> list[Eviction]:
    """Return guests that the host must remove, with uuids greater than ``marker``. An eviction waits if the host is
    again a possible host of the server."""
    there = sa.exists().where(servers.TABLE.c.uuid == TABLE.c.instance_uuid, servers.placed_on(host))
    statement = (sa.select(TABLE.c.instance_uuid, TABLE.c.keep_disks, TABLE.c.created_at)
                 .where(TABLE.c.host == host, TABLE.c.instance_uuid > (marker or ""), ~there)
                 .order_by(TABLE.c.instance_uuid).limit(limit))
    return [Eviction(uuid=row.instance_uuid, keep_disks=row.keep_disks, since=row.created_at)
            for row in connection.execute(statement)]


def hosts(connection: sa.Connection, instance_uuid: str) -> list[str]:
    """Return the hosts with evictions of the instance. It is not scheduled to a host with an eviction."""
    return list(connection.scalars(sa.select(TABLE.c.host).where(TABLE.c.instance_uuid == instance_uuid)))


def whereabouts(connection: sa.Connection, host: str, uuids: Sequence[str]) -> list[Whereabouts]:
    """Return the possible hosts of these guests, and True for each that ``host`` must remove. Guests without rows are
    left out. An eviction waits while ``host`` is a possible host of the guest."""
    evicted = {row.instance_uuid: row for row in connection.execute(sa.select(TABLE).where(
        TABLE.c.host == host, TABLE.c.instance_uuid.in_(uuids)))}
    alive = servers.places(connection, uuids)
    result = [Whereabouts(uuid=uuid, possible_hosts=sorted(places), must_leave=uuid in evicted and host not in places)
              for uuid, places in alive.items()]
    rest = [uuid for uuid in uuids if uuid not in alive]
    deleted = servers.ever(connection, rest) if rest else set()
    result += [Whereabouts(uuid=uuid, must_leave=True) for uuid in rest if uuid in deleted or uuid in evicted]
    for where in result:
        if where.uuid in evicted:
            where.keep_disks, where.since = evicted[where.uuid].keep_disks, evicted[where.uuid].created_at
    return result
