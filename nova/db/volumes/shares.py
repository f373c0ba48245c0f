"""The embedded shares: rows with the directory, the project and the host of each share."""

import sqlalchemy as sa

from nova import exception
from nova.db import tables
from nova.db.sql import clock, rows
from nova.objects.volumes.share import Share

TABLE = tables.shares
ACCESSES = tables.share_accesses


def index(connection: sa.Connection, project_id: str | None = None, limit: int | None = None,
          offset: int = 0) -> list[Share]:
    """Return the shares of a project (None: all projects), newest first."""
    return rows.to_objects(Share, connection.execute(
        sa.select(TABLE).where(*rows.equal(TABLE.c.project_id, project_id)).order_by(TABLE.c.id.desc())
        .limit(limit).offset(offset)))


def get(connection: sa.Connection, uuid: str, project_id: str | None = None, lock: bool = False) -> Share:
    """Return a share. Raises ShareNotFound, also for a share of another project."""
    statement = sa.select(TABLE).where(TABLE.c.uuid == uuid, *rows.equal(TABLE.c.project_id, project_id))
    return rows.first(connection, Share, statement.with_for_update() if lock else statement,
                      exception.ShareNotFound(share_id=uuid))


def create(connection: sa.Connection, share: Share) -> Share:
    """Add a share of the project; a repeated call changes nothing."""
    if (made := connection.execute(sa.select(TABLE).where(TABLE.c.uuid == share.uuid)).first()) is not None:
        return rows.to_object(Share, made)
    with rows.on_duplicate():
        connection.execute(sa.insert(TABLE).values({**rows.values_of(TABLE, share), "created_at": clock.now()}))
    return get(connection, share.uuid)


def delete(connection: sa.Connection, uuid: str) -> Share:
    """Delete the row of a share without servers; its directory stays. Raises ShareNotFound, ShareInUse."""
    share = get(connection, uuid, lock=True)
    used = connection.execute(sa.select(ACCESSES.c.instance_uuid).where(
        ACCESSES.c.share_id == uuid).order_by(ACCESSES.c.id).limit(1)).scalar()
    if used is not None:
        raise exception.ShareInUse(share_id=uuid, instance_uuid=used)
    connection.execute(sa.delete(TABLE).where(TABLE.c.uuid == uuid))
    return share


def bind(connection: sa.Connection, uuid: str, host: str, everywhere: bool) -> None:
    """Bind a share to the first host that uses it and so has its directory, unless all hosts have the directory
    (``everywhere``). Raises ShareNotFound, ShareUnusable (bound to another host)."""
    share = get(connection, uuid, lock=True)
    if everywhere or share.host == host:
        return
    if share.host is not None:
        raise exception.ShareUnusable(share_id=uuid, reason=f"its directory is on host {share.host}, not on {host}")
    connection.execute(sa.update(TABLE).where(TABLE.c.uuid == uuid).values(host=host))
