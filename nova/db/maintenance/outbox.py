"""The outbox: notifications for the bus, written in the transaction of their change, and the leases of their senders.
All notifications about one subject are in one partition, and a partition has one sender at a time. So they are sent in
the order of their ids, which is the order of commits if the transactions lock the row of the subject."""

import datetime
import zlib
from collections.abc import Sequence

import sqlalchemy as sa

from nova.db import tables
from nova.db.sql import rows
from nova.objects.accounts.notification import Notification

TABLE = tables.outbox
HELD = tables.outbox_lanes

PARTITIONS = 16

# Built once: building a statement costs several times as much as running it.
_ADD = sa.insert(TABLE)
_BUSY = sa.select(TABLE.c.lane).distinct()
_PAGE = sa.select(TABLE).where(TABLE.c.lane == sa.bindparam("of")).order_by(TABLE.c.id)
# A lease that ends later than ``never`` was written before the clock was set back, and counts as expired.
_TAKE = sa.update(HELD).where(HELD.c.lane == sa.bindparam("of"), sa.or_(
    HELD.c.lease_until < sa.bindparam("now"), HELD.c.lease_until > sa.bindparam("never"),
    HELD.c.owner == sa.bindparam("me")))
_OF_ITS_OWNER = sa.update(HELD).where(HELD.c.lane == sa.bindparam("of"), HELD.c.owner == sa.bindparam("me"))


def partition_of(subject: str) -> int:
    return zlib.crc32(subject.encode()) % PARTITIONS


def add(connection: sa.Connection, notifications: Sequence[Notification]) -> None:
    """Write notifications by one statement; none for an empty list."""
    if notifications:
        connection.execute(_ADD, [{**rows.values_of(TABLE, notification), "lane": partition_of(notification.subject)}
                                  for notification in notifications])


def busy(connection: sa.Connection) -> list[int]:
    """Return the partitions that have notifications."""
    return list(connection.scalars(_BUSY))


def take(connection: sa.Connection, partition: int, owner: str, now: datetime.datetime,
         until: datetime.datetime) -> bool:
    """Take the lease of a partition until ``until``; return True if ``owner`` has it."""
    never = until + (until - now)
    if connection.execute(_TAKE, {"of": partition, "now": now, "never": never, "me": owner, "owner": owner,
                                  "lease_until": until}).rowcount:
        return True
    if connection.scalar(sa.select(HELD.c.lane).where(HELD.c.lane == partition)) is not None:
        return False
    with rows.on_duplicate():
        connection.execute(sa.insert(HELD).values(lane=partition, owner=owner, lease_until=until))
    return True


def page(connection: sa.Connection, partition: int, limit: int) -> list[Notification]:
    """Return the next notifications of a partition, in the order in which they are sent."""
    return [Notification(subject="", **{name: getattr(row, name) for name in _FIELDS})
            for row in connection.execute(_PAGE.limit(limit), {"of": partition})]


_FIELDS = tuple(name for name in Notification.__struct_fields__ if name in TABLE.c)


def sent(connection: sa.Connection, partition: int, owner: str, ids: Sequence[int], until: datetime.datetime) -> bool:
    """Delete sent notifications and renew the lease until ``until``; return False if ``owner`` has lost the lease."""
    connection.execute(sa.delete(TABLE).where(TABLE.c.id.in_(ids)))
    return bool(connection.execute(_OF_ITS_OWNER, {"of": partition, "me": owner, "lease_until": until}).rowcount)


def release(connection: sa.Connection, partition: int, owner: str, now: datetime.datetime) -> None:
    """End the lease of a partition, so that another sender may take it immediately."""
    connection.execute(_OF_ITS_OWNER, {"of": partition, "me": owner, "lease_until": now})


def drop(connection: sa.Connection, before: datetime.datetime, most: int, limit: int) -> int:
    """Delete at most ``limit`` notifications that are older than ``before`` or not among the ``most`` newest."""
    newest_too_many = connection.scalar(sa.select(TABLE.c.id).order_by(TABLE.c.id.desc()).offset(most).limit(1))
    over = TABLE.c.created_at < before
    if newest_too_many is not None:
        over = sa.or_(over, TABLE.c.id <= newest_too_many)
    ids = list(connection.scalars(sa.select(TABLE.c.id).where(over).order_by(TABLE.c.id).limit(limit)))
    if not ids:
        return 0
    return int(connection.execute(sa.delete(TABLE).where(TABLE.c.id.in_(ids))).rowcount)


def waiting(connection: sa.Connection) -> int:
    """Return how many notifications are still to be sent."""
    return rows.count(connection, TABLE)
