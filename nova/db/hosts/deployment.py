"""The identity of the deployment of this database, and the hosts that may register as if for the first time.

A host stores the deployment with which it registered. To another database, or to one restored from before the host
registered, its guests would be unknown: the host does not start with it.
"""

from __future__ import annotations

import sqlalchemy as sa

from nova import exception
from nova.db import tables
from nova.db.sql import clock

DELETED = tables.deleted_hosts
_UUID = sa.select(tables.deployment.c.uuid)
_WAY_OUT = "remove the file \"deployment\" in its state_path"


def uuid(connection: sa.Connection) -> str:
    """The same for as long as the database lives, and in all its copies."""
    return str(connection.execute(_UUID).scalar_one())


def check(connection: sa.Connection, host: str, remembered: str | None) -> None:
    """``remembered``: what the host belongs to; None: nothing yet. Raises HostIdentityMismatch."""
    if remembered is not None and remembered != uuid(connection):
        raise exception.HostIdentityMismatch(host=host, reason=(
            f"it belongs to deployment {remembered}, and this database is of deployment {uuid(connection)}. Is this "
            "the right database ([database]connection of the conductors), and the right broker? If the host shall "
            f"belong to this one from now on, {_WAY_OUT}."))


def admit(connection: sa.Connection, host: str, identity: str | None, returning: bool) -> None:
    """Check that a host without a row may register. Raises HostIdentityMismatch.

    ``returning``: it has had one, so an operator has deleted it, or the database is not what it was.
    """
    if identity is None:
        return
    deleted = connection.execute(sa.delete(DELETED).where(DELETED.c.identity == identity)).rowcount
    if returning and not deleted:
        raise exception.HostIdentityMismatch(host=host, reason=(
            "it has registered with this deployment before, and the database does not know it. Was the database "
            f"restored from before that time? If the host shall register as a new one, {_WAY_OUT}."))


def forget(connection: sa.Connection, identity: str | None) -> None:
    """An operator deleted the service of this machine: it may come back, by the same name or another one."""
    if identity is None:
        return
    connection.execute(sa.delete(DELETED).where(DELETED.c.identity == identity))
    connection.execute(sa.insert(DELETED).values(identity=identity, deleted_at=clock.now()))
