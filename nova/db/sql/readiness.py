"""Can the configured database be used? If not, why, in one line for the operator."""

from __future__ import annotations

import logging
import os
import pathlib
import re
import time
from typing import Any

import sqlalchemy as sa
from oslo_db import exception as db_exception

from nova import exception
from nova.db import migrations
from nova.db.sql.engine import Database

LOG = logging.getLogger(__name__)

_SYNC = "run nova-manage db sync"
# What a URL may name of PyMySQL, which says of none that it is missing.
_FILES = frozenset({"ssl_ca", "ssl_cert", "ssl_key"})
# Seconds between two attempts to connect to a server that is not there.
_PAUSE = 1.0


class Unreachable(exception.DatabaseUnusable):
    """Nobody answers, or not as one should: it may come, or be given the right password."""


def check(url: str) -> None:
    """Raises DatabaseUnusable unless it is there, lets us in and has the tables that this release needs."""
    database = connected(url)
    try:
        current = database.read(_revision)
    finally:
        database.close()
    if current is None:
        raise _unusable(url, f"it has no tables: {_SYNC}")
    known = revisions()
    # A newer release may have upgraded it already: this one goes on with it.
    if current in known[:-1]:
        raise _unusable(url, f"it is at revision {current}, this release needs {known[-1]}: {_SYNC}")


def wait(url: str, seconds: float) -> None:
    """The same, but a server that does not answer has so long to come up."""
    until = time.monotonic() + seconds
    told = False
    while True:
        try:
            return check(url)
        except Unreachable as error:
            if time.monotonic() >= until:
                raise
            if not told:
                LOG.warning("%s; waiting for it up to %d s", error, seconds)
            told = True
            time.sleep(_PAUSE)


def connected(url: str, new: bool = False) -> Database:
    """A Database that is there and lets us in. Raises DatabaseUnusable. ``new``: an SQLite file may be made."""
    try:
        database = Database(url, max_retries=0)
    except (sa.exc.ArgumentError, ImportError, ValueError) as error:
        raise _unusable(url, _reason(error)) from error
    file = file_of(url)
    if file is not None and not new and not os.path.exists(file):
        raise _unusable(url, f"there is no such file: {_SYNC}")
    try:
        database.engine.connect().close()
    except (sa.exc.DBAPIError, db_exception.DBError) as error:
        database.close()
        raise (Unreachable if file is None else exception.DatabaseUnusable)(
            url=_shown(url), reason=_reason(error)) from error
    except OSError as error:  # of a file that the URL names
        database.close()
        files = [f"{name}={value}" for name, value in sa.make_url(url).query.items() if name in _FILES]
        raise _unusable(url, f"{' '.join(files)}: {error.strerror or error}") from error
    return database


def file_of(url: str) -> str | None:
    """The file of an SQLite database; None: it is another one."""
    parsed = sa.make_url(url)
    return parsed.database if parsed.get_backend_name() == "sqlite" else None


def revisions() -> list[str]:
    """Those of this release, oldest first (found without loading alembic, which conductors do without)."""
    files = pathlib.Path(migrations.__file__).parent.glob("versions/v*.py")
    return sorted(match[1] for file in files if (match := re.match(r"v(\d+)_", file.name)))


def _revision(connection: sa.Connection) -> str | None:
    if not sa.inspect(connection).has_table("alembic_version"):
        return None
    found: str | None = connection.scalar(sa.select(sa.column("version_num")).select_from(sa.table("alembic_version")))
    return found


def _unusable(url: str, reason: str) -> exception.DatabaseUnusable:
    return exception.DatabaseUnusable(url=_shown(url), reason=reason)


def _shown(url: str) -> str:
    """Without the password."""
    try:
        return sa.make_url(url).render_as_string(hide_password=True)
    except sa.exc.ArgumentError:
        return "of [database]connection"


def _reason(error: Exception) -> str:
    """What the driver says, in one line."""
    cause: Any = getattr(error, "orig", None) or getattr(error, "inner_exception", None) or error
    says: list[Any] = [*getattr(cause, "args", ()), cause]
    # PyMySQL gives a number and a sentence.
    return " ".join(str(says[1] if isinstance(says[0], int) else says[0]).split())
