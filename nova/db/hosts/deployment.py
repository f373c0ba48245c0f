"""The identity of the deployment of this database, and the hosts that may register for the first time.

A host stores the deployment with which it registered. With another database, or one restored from a time before the
host registered, its guests would be unknown: the host refuses to start.
"""

import sqlalchemy as sa

from nova import exception
from nova.db import tables
from nova.db.sql import clock

DELETED = tables.deleted_hosts
_UUID = sa.select(tables.deployment.c.uuid)
_WAY_OUT = "remove the file \"deployment\" in its state_path"


def uuid(connection: sa.Connection) -> str:
    """Return the id of the deployment, which stays the same in all copies of the database."""
    return str(connection.execute(_UUID).scalar_one())


def check(connection: sa.Connection, host: str, remembered: str | None) -> None:
    """Check the deployment ``remembered`` by a host (None: none yet). Raises HostIdentityMismatch."""
    if remembered is not None and remembered != uuid(connection):
        raise exception.HostIdentityMismatch(host=host, reason=(
            f"it belongs to deployment {remembered}, and this database is of deployment {uuid(connection)}. Is this "
            "the right database ([database]connection of the conductors), and the right broker? If the host shall "
            f"belong to this one from now on, {_WAY_OUT}."))


def admit(connection: sa.Connection, host: str, identity: str | None, returning: bool) -> None:
    """Check that a host without a row may register. Raises HostIdentityMismatch. ``returning``: the host was registered
    before, so an operator has deleted it, or the database is another one."""
    if identity is None:
        return
    deleted = connection.execute(sa.delete(DELETED).where(DELETED.c.identity == identity)).rowcount
    if returning and not deleted:
        raise exception.HostIdentityMismatch(host=host, reason=(
            "it has registered with this deployment before, but the database has no record of it. Was the database "
            f"restored from an earlier backup? To register the host as a new one, {_WAY_OUT}."))


def forget(connection: sa.Connection, identity: str | None) -> None:
    """Record that an operator deleted the service of this machine, which may register again under any name."""
    if identity is None:
        return
    connection.execute(sa.delete(DELETED).where(DELETED.c.identity == identity))
    connection.execute(sa.insert(DELETED).values(identity=identity, deleted_at=clock.now()))
