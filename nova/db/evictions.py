"""Evictions: the word of a row by which a host removes the guest of an instance that it was given up with."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from nova.db import clock, models, servers
from nova.objects.guest import Eviction, Whereabouts

TABLE = models.evictions


def add(connection: sa.Connection, instance_uuid: str, host: str, keep_disks: bool) -> None:
    """The guest may not stay on the host. A second word replaces the first."""
    connection.execute(sa.delete(TABLE).where(TABLE.c.instance_uuid == instance_uuid, TABLE.c.host == host))
    connection.execute(sa.insert(TABLE).values(
        instance_uuid=instance_uuid, host=host, keep_disks=keep_disks, created_at=clock.now()))


def remove(connection: sa.Connection, host: str, instance_uuids: Sequence[str]) -> None:
    """The host has removed these guests."""
    connection.execute(sa.delete(TABLE).where(TABLE.c.host == host, TABLE.c.instance_uuid.in_(instance_uuids)))


def of_host(connection: sa.Connection, host: str, limit: int = 1000, marker: str | None = None) -> list[Eviction]:
    """The guests that the host has to remove, by uuid after ``marker`` (not those that may be there again)."""
    there = sa.exists().where(servers.TABLE.c.uuid == TABLE.c.instance_uuid, servers.placed_on(host))
    statement = (sa.select(TABLE.c.instance_uuid, TABLE.c.keep_disks)
                 .where(TABLE.c.host == host, TABLE.c.instance_uuid > (marker or ""), ~there)
                 .order_by(TABLE.c.instance_uuid).limit(limit))
    return [Eviction(uuid=row.instance_uuid, keep_disks=row.keep_disks) for row in connection.execute(statement)]


def hosts(connection: sa.Connection, instance_uuid: str) -> list[str]:
    """Where something may be left of the instance: it must not be placed there before that is removed."""
    return list(connection.scalars(sa.select(TABLE.c.host).where(TABLE.c.instance_uuid == instance_uuid)))


def whereabouts(connection: sa.Connection, host: str, uuids: Sequence[str]) -> list[Whereabouts]:
    """Where the rows say that these guests may be, and whether ``host`` has to let them go; those that rows know of.

    An eviction waits while the host is a place of the guest, whatever has led to that.
    """
    evicted = dict(connection.execute(sa.select(TABLE.c.instance_uuid, TABLE.c.keep_disks).where(
        TABLE.c.host == host, TABLE.c.instance_uuid.in_(uuids))).all())
    alive = servers.places(connection, uuids)
    found = [Whereabouts(uuid=uuid, places=sorted(places), gone=uuid in evicted and host not in places,
                         keep_disks=evicted.get(uuid, False)) for uuid, places in alive.items()]
    rest = [uuid for uuid in uuids if uuid not in alive]
    deleted = servers.ever(connection, rest) if rest else set()
    return found + [Whereabouts(uuid=uuid, gone=True, keep_disks=evicted.get(uuid, False))
                    for uuid in rest if uuid in deleted or uuid in evicted]
