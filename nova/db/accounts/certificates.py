"""Root certificates of projects, and the certificates that they signed."""

import datetime

import msgspec
import sqlalchemy as sa

from nova import exception
from nova.db import tables
from nova.db.accounts import quotas
from nova.db.sql import clock, rows
from nova.objects.accounts.certificate import Issued, Root

ROOTS = tables.certificate_roots
TABLE = tables.certificates


def lock(connection: sa.Connection, project_id: str) -> None:
    """Serialize transactions that add roots or certificates of the project."""
    quotas.serialize(connection, f"certificates:{project_id}"[:255])


# --- roots -----------------------------------------------------------------------------------
def current_root(connection: sa.Connection, project_id: str) -> Root | None:
    """Return the root that signs new certificates of the project, the newest of :func:`roots`, or None without one."""
    return next(iter(roots(connection, project_id)), None)


def roots(connection: sa.Connection, project_id: str) -> list[Root]:
    """Return the roots of the project that have a key and have not expired, the newest first."""
    return rows.to_objects(Root, connection.execute(sa.select(ROOTS).where(
        ROOTS.c.project_id == project_id, ROOTS.c.not_after > clock.now(), ROOTS.c.encrypted_key.is_not(None))
        .order_by(ROOTS.c.id.desc())))


def add_root(connection: sa.Connection, root: Root) -> Root:
    """Add a root, which signs all further certificates of its project. The caller holds :func:`lock`."""
    values = {**rows.values_of(ROOTS, root), "created_at": clock.now()}
    key = connection.execute(sa.insert(ROOTS).values(values)).inserted_primary_key
    assert key is not None
    return msgspec.structs.replace(root, id=key[0])


def encrypted_keys(connection: sa.Connection, after: int, limit: int) -> list[tuple[int, str]]:
    """Return (id, encrypted key) of the roots that have a key and an id greater than ``after``, ordered by id."""
    return [(row.id, row.encrypted_key) for row in connection.execute(
        sa.select(ROOTS.c.id, ROOTS.c.encrypted_key).where(ROOTS.c.id > after, ROOTS.c.encrypted_key.is_not(None))
        .order_by(ROOTS.c.id).limit(limit))]


def set_encrypted_key(connection: sa.Connection, root_id: int, encrypted_key: str) -> None:
    connection.execute(sa.update(ROOTS).where(ROOTS.c.id == root_id, ROOTS.c.encrypted_key.is_not(None))
                       .values(encrypted_key=encrypted_key))


def forget_keys(connection: sa.Connection) -> int:
    """Delete the keys of all roots, so that these sign no further certificates. Return the number of deleted keys."""
    return connection.execute(sa.update(ROOTS).where(ROOTS.c.encrypted_key.is_not(None)).values(
        encrypted_key=None)).rowcount


# --- certificates ----------------------------------------------------------------------------
def check_room(connection: sa.Connection, project_id: str, most: int) -> None:
    """Check that the project may have a further certificate. ``most``: limit of certificates that are neither expired
    nor revoked (-1: unlimited). The caller holds :func:`lock`. Raises QuotaLimit."""
    if most >= 0 and rows.count(connection, TABLE, *_valid(project_id)) >= most:
        raise exception.QuotaLimit(f"Quota exceeded, the project has {most} valid certificates already, its limit. "
                                   "Certificates that expire or are revoked no longer count.")


def add(connection: sa.Connection, issued: Issued) -> None:
    connection.execute(sa.insert(TABLE).values(rows.values_of(TABLE, issued)))


def index(connection: sa.Connection, project_id: str, user_id: str | None, limit: int, after: int = 0) -> list[Issued]:
    """Return the certificates of the project, or of a user in it, with ids greater than ``after``, ordered by id."""
    return rows.to_objects(Issued, connection.execute(sa.select(TABLE).where(
        TABLE.c.project_id == project_id, TABLE.c.id > after, *rows.equal(TABLE.c.user_id, user_id))
        .order_by(TABLE.c.id).limit(limit)))


def revoke(connection: sa.Connection, project_id: str, serial: str | None = None, user_id: str | None = None) -> int:
    """Revoke the valid certificates of the project, or those with this serial number or user; return their number."""
    return connection.execute(sa.update(TABLE).where(
        *_valid(project_id), *rows.equal(TABLE.c.serial, serial), *rows.equal(TABLE.c.user_id, user_id))
        .values(revoked_at=clock.now())).rowcount


def revoked(connection: sa.Connection, root_id: int) -> list[tuple[str, datetime.datetime]]:
    """Return the serial numbers and revocation times of the revoked certificates of a root that have not expired."""
    return [(row.serial, row.revoked_at) for row in connection.execute(
        sa.select(TABLE.c.serial, TABLE.c.revoked_at).where(
            TABLE.c.root_id == root_id, TABLE.c.revoked_at.is_not(None), TABLE.c.not_after > clock.now())
        .order_by(TABLE.c.id))]


def _valid(project_id: str) -> tuple[sa.ColumnElement[bool], ...]:
    return TABLE.c.project_id == project_id, TABLE.c.not_after > clock.now(), TABLE.c.revoked_at.is_(None)
