"""Events of other services about instances, stored until the step that waits for them has read them."""

import datetime
from collections.abc import Collection

import sqlalchemy as sa

from nova.db import tables
from nova.db.sql import clock, rows

TABLE = tables.external_events
LONGEST: int = getattr(TABLE.c.name.type, "length", 0)  # maximum length of a key


def add(connection: sa.Connection, instance_uuid: str, key: str, status: str) -> None:
    """Store an event; it replaces an earlier event with the same key."""
    this = sa.and_(TABLE.c.instance_uuid == instance_uuid, TABLE.c.name == key)
    if not connection.execute(sa.update(TABLE).where(this).values(status=status, created_at=clock.now())).rowcount:
        with rows.on_duplicate():
            connection.execute(sa.insert(TABLE).values(
                instance_uuid=instance_uuid, name=key, status=status, created_at=clock.now()))


def came(connection: sa.Connection, instance_uuid: str, keys: Collection[str]) -> dict[str, str]:
    """Return key -> status of the events with these keys that have arrived."""
    return dict(connection.execute(sa.select(TABLE.c.name, TABLE.c.status).where(
        TABLE.c.instance_uuid == instance_uuid, TABLE.c.name.in_(keys))).all())


def forget(connection: sa.Connection, instance_uuid: str, keys: Collection[str]) -> None:
    """Delete these events: after a step has read them, or before a step begins to wait for them."""
    connection.execute(sa.delete(TABLE).where(TABLE.c.instance_uuid == instance_uuid, TABLE.c.name.in_(keys)))


def forget_old(connection: sa.Connection, before: datetime.datetime) -> int:
    """Delete events that arrived before ``before`` and that no step has read; return their number."""
    return connection.execute(sa.delete(TABLE).where(TABLE.c.created_at < before)).rowcount
