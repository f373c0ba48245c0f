"""Progress of the notifications about the servers of an audit period: one row, which all conductors share."""

import datetime

import sqlalchemy as sa

from nova.db import tables
from nova.db.sql import rows
from nova.objects.servers.instance import Instance

TABLE = tables.usage_audits
INSTANCES = tables.instances


def begin(connection: sa.Connection, ending: datetime.datetime) -> int | None:
    """Start the notifications of the period that ends then; return the id of the last notified server (0: none yet), or
    None if all servers are notified."""
    row = connection.execute(sa.select(TABLE).where(TABLE.c.period_ending == ending)).first()
    if row is not None:
        return None if row.finished else int(row.marker)
    connection.execute(sa.delete(TABLE).where(TABLE.c.period_ending < ending))
    with rows.on_duplicate():
        connection.execute(sa.insert(TABLE).values(period_ending=ending, marker=0, finished=False))
    return 0


def is_finished(connection: sa.Connection, ending: datetime.datetime) -> bool:
    """Return True if the notifications of the period that ends then are complete."""
    return bool(connection.scalar(sa.select(TABLE.c.finished).where(TABLE.c.period_ending == ending)))


def advance(connection: sa.Connection, ending: datetime.datetime, marker: int, reported: int, finished: bool) -> bool:
    """Record that servers after ``marker`` up to id ``reported`` are notified; False if another conductor did it."""
    return connection.execute(sa.update(TABLE).where(
        TABLE.c.period_ending == ending, TABLE.c.marker == marker, TABLE.c.finished == sa.false())
        .values(marker=reported, finished=finished)).rowcount == 1


def page(connection: sa.Connection, begin: datetime.datetime, ending: datetime.datetime, marker: int,
         limit: int) -> list[Instance]:
    """Return servers, including deleted ones, that were on a host in the period, by id after ``marker``."""
    return rows.to_objects(Instance, connection.execute(sa.select(INSTANCES).where(
        INSTANCES.c.id > marker, INSTANCES.c.host.is_not(None), INSTANCES.c.launched_at < ending,
        sa.or_(INSTANCES.c.terminated_at.is_(None), INSTANCES.c.terminated_at > begin))
        .order_by(INSTANCES.c.id).limit(limit)))
