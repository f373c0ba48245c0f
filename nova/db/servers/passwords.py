"""Secrets of servers, encrypted by conductors, and an encrypted value by which a conductor checks its key."""

from typing import Any

import sqlalchemy as sa

from nova.db import tables

INSTANCES = tables.instances
CHECK = tables.key_check
_ID = 1

# Secret columns of an instance, with their values when the secrets are deleted.
NONE: dict[str, Any] = {"admin_pass": None, "encrypted_pass": None}


def check_value(connection: sa.Connection) -> str | None:
    """Return the encrypted check value, or None before the first conductor has stored it."""
    return connection.scalar(sa.select(CHECK.c.encrypted).where(CHECK.c.id == _ID))


def set_check_value(connection: sa.Connection, encrypted: str | None) -> None:
    """Store the check value. Raises DBDuplicateEntry if another conductor is storing the first check value."""
    if not connection.execute(sa.update(CHECK).where(CHECK.c.id == _ID).values(encrypted=encrypted)).rowcount \
            and check_value(connection) is None:
        connection.execute(sa.insert(CHECK).values(id=_ID, encrypted=encrypted))


def with_volume_keys(connection: sa.Connection, after: str, limit: int) -> list[str]:
    """Return the uuids, greater than ``after``, of servers with keys of volumes or of a virtual TPM, in order."""
    devices = sa.type_coerce(INSTANCES.c.block_devices, sa.Text)
    has_keys = sa.or_(devices.like('%"sealed"%'), INSTANCES.c.encrypted_tpm_secret.is_not(None))
    return list(connection.scalars(sa.select(INSTANCES.c.uuid).where(
        INSTANCES.c.uuid > after, has_keys).order_by(INSTANCES.c.uuid).limit(limit)))


def forget(connection: sa.Connection) -> int:
    """Delete the passwords of all servers and the check value; return the number of servers that had passwords."""
    connection.execute(sa.delete(CHECK))
    return connection.execute(sa.update(INSTANCES).where(
        sa.or_(*(INSTANCES.c[name].is_not(None) for name in NONE))).values(NONE)).rowcount
