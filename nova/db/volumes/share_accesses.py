"""Access of hosts to shares: a row for each server that needs an access, stored before the access is granted, so that
no access is left behind. Servers on one host with the same share need one access; it is revoked when the last of them
leaves. Until it is revoked (``leaving``), another server that needs it waits. Rows of one share and host are locked in
the order of their ids."""

import datetime
from collections.abc import Callable

import sqlalchemy as sa

from nova import exception
from nova.db import tables
from nova.db.sql import clock, rows
from nova.objects.volumes.share import ShareAccess

TABLE = tables.share_accesses
INSTANCES = tables.instances


def _locked(connection: sa.Connection, share_id: str, host: str) -> list[ShareAccess]:
    statement = sa.select(TABLE).where(
        TABLE.c.share_id == share_id, TABLE.c.host == host).order_by(TABLE.c.id).with_for_update()
    accesses = connection.execute(statement).all()
    if accesses:
        # Repeated: PostgreSQL does not return rows that were inserted while the first query waited for a lock.
        accesses = connection.execute(statement).all()
    return rows.to_objects(ShareAccess, accesses)


def _this(share_id: str, host: str, instance_uuid: str) -> sa.ColumnElement[bool]:
    return sa.and_(TABLE.c.share_id == share_id, TABLE.c.host == host, TABLE.c.instance_uuid == instance_uuid)


def want(connection: sa.Connection, share_id: str, host: str, instance_uuid: str) -> bool:
    """Record that the server needs access to the share from the host; return False if the access is being revoked."""
    accesses = _locked(connection, share_id, host)
    if any(access.leaving for access in accesses if access.instance_uuid != instance_uuid):
        return False
    if any(access.instance_uuid == instance_uuid for access in accesses):
        connection.execute(sa.update(TABLE).where(_this(share_id, host, instance_uuid)).values(
            leaving=False, updated_at=clock.now()))
        return True
    with rows.on_duplicate():
        connection.execute(sa.insert(TABLE).values(
            share_id=share_id, host=host, instance_uuid=instance_uuid, leaving=False, updated_at=clock.now()))
    return True


def leave(connection: sa.Connection, share_id: str, host: str, instance_uuid: str,
          unless: Callable[[sa.Connection], bool] | None = None) -> bool:
    """Record that the server no longer needs the access. Return True if no server needs it: the caller then revokes it
    and calls removed(). ``unless``: called while the rows are locked; True keeps the access, since it is needed."""
    accesses = _locked(connection, share_id, host)
    if not any(access.instance_uuid == instance_uuid for access in accesses):
        return False
    if unless is not None and unless(connection):
        return False
    if any(access.instance_uuid != instance_uuid for access in accesses):
        connection.execute(sa.delete(TABLE).where(_this(share_id, host, instance_uuid)))
        return False
    connection.execute(sa.update(TABLE).where(_this(share_id, host, instance_uuid)).values(
        leaving=True, updated_at=clock.now()))
    return True


def removed(connection: sa.Connection, share_id: str, host: str, instance_uuid: str) -> bool:
    """Record that an access was revoked; return True if the server needs it again, so that it must be granted anew."""
    connection.execute(sa.delete(TABLE).where(_this(share_id, host, instance_uuid), TABLE.c.leaving == sa.true()))
    return connection.scalar(sa.select(TABLE.c.id).where(_this(share_id, host, instance_uuid))) is not None


def of_instance(connection: sa.Connection, instance_uuid: str) -> list[ShareAccess]:
    return rows.to_objects(ShareAccess, connection.execute(
        sa.select(TABLE).where(TABLE.c.instance_uuid == instance_uuid).order_by(TABLE.c.id)))


def check_host(connection: sa.Connection, host: str) -> None:
    """Raise ServiceHasShares if a host to be deleted has accesses: without its address they could not be revoked."""
    share = connection.scalar(sa.select(TABLE.c.share_id).where(TABLE.c.host == host).limit(1))
    if share is not None:
        raise exception.ServiceHasShares(share_id=share)


def at_rest(connection: sa.Connection, before: datetime.datetime, after: str, limit: int) -> list[str]:
    """Return the uuids, greater than ``after``, of servers without a running operation that have accesses not changed
    since ``before``."""
    held = sa.select(INSTANCES.c.uuid).where(
        INSTANCES.c.uuid == TABLE.c.instance_uuid, INSTANCES.c.deleted == sa.false(),
        INSTANCES.c.action_uuid.is_not(None)).exists()
    return list(connection.scalars(sa.select(TABLE.c.instance_uuid).where(
        TABLE.c.instance_uuid > after, TABLE.c.updated_at < before, ~held).distinct().order_by(
        TABLE.c.instance_uuid).limit(limit)))


def of_deleted(connection: sa.Connection, before: datetime.datetime, limit: int) -> list[str]:
    """Return the uuids of deleted servers with accesses that were not changed since ``before``."""
    return list(connection.scalars(sa.select(TABLE.c.instance_uuid).join(
        INSTANCES, INSTANCES.c.uuid == TABLE.c.instance_uuid).where(
        INSTANCES.c.deleted == sa.true(), TABLE.c.updated_at < before).distinct().limit(limit)))
