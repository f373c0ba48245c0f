"""A check whether the configured database is usable, with an error of one line for the operator."""

import contextlib
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
# Parameters of a URL of PyMySQL that are paths. The error of PyMySQL does not say which file is missing.
_FILES = frozenset({"ssl_ca", "ssl_cert", "ssl_key"})
_PAUSE = 1.0  # seconds between two attempts to connect to a server that does not respond


class Unreachable(exception.DatabaseUnusable):
    """Raised if the server does not respond or refuses the login, which may change without a change of the URL."""


def check(url: str) -> None:
    """Raise DatabaseUnusable unless the database accepts the login and has the tables that this release needs."""
    with contextlib.closing(connected(url)) as database:
        current = database.read(_revision)
    if current is None:
        raise _unusable(url, f"the database has no tables: {_SYNC}")
    # This release also works with the tables of a newer one.
    if current < (required := newest()):
        raise _unusable(url, f"the database is at revision {current}, this release needs {required}: {_SYNC}")


def wait(url: str, seconds: float) -> None:
    """Run :func:`check`, and repeat it for up to ``seconds`` while the server does not respond."""
    until = time.monotonic() + seconds
    logged = False
    while True:
        try:
            return check(url)
        except Unreachable as error:
            if time.monotonic() >= until:
                raise
            if not logged:
                LOG.warning("%s; retrying for up to %d s", error, seconds)
            logged = True
            time.sleep(_PAUSE)


def connected(url: str, new: bool = False) -> Database:
    """Return a Database that accepts the login. Raises DatabaseUnusable. ``new``: create a missing SQLite file."""
    try:
        database = Database(url, max_retries=0)
    except (sa.exc.ArgumentError, ImportError, ValueError) as error:
        raise _unusable(url, _reason(error)) from error
    file = file_of(url)
    if file is not None and not new and not os.path.exists(file):
        raise _unusable(url, f"the file does not exist: {_SYNC}")
    try:
        database.engine.connect().close()
    except (sa.exc.DBAPIError, db_exception.DBError) as error:
        database.close()
        raise (Unreachable if file is None else exception.DatabaseUnusable)(
            url=_shown(url), reason=_reason(error)) from error
    except OSError as error:  # A file that the URL names cannot be read.
        database.close()
        files = [f"{name}={value}" for name, value in sa.make_url(url).query.items() if name in _FILES]
        raise _unusable(url, f"{' '.join(files)}: {error.strerror or error}") from error
    return database


def file_of(url: str) -> str | None:
    """Return the file of an SQLite database, or None for other databases."""
    parsed = sa.make_url(url)
    return parsed.database if parsed.get_backend_name() == "sqlite" else None


def newest() -> str:
    """Return the revision of this release, without loading alembic, which conductors do not need."""
    files = pathlib.Path(migrations.__file__).parent.glob("versions/v*.py")
    return max(match[1] for file in files if (match := re.match(r"v(\d+)_", file.name)))


def _revision(connection: sa.Connection) -> str | None:
    if not sa.inspect(connection).has_table("alembic_version"):
        return None
    return connection.scalar(sa.select(sa.column("version_num")).select_from(sa.table("alembic_version")))


def _unusable(url: str, reason: str) -> exception.DatabaseUnusable:
    return exception.DatabaseUnusable(url=_shown(url), reason=reason)


def _shown(url: str) -> str:
    """Return the URL without its password."""
    try:
        return sa.make_url(url).render_as_string(hide_password=True)
    except sa.exc.ArgumentError:
        return "in [database]connection"


def _reason(error: Exception) -> str:
    """Return the driver's message in one line."""
    cause: Any = getattr(error, "orig", None) or getattr(error, "inner_exception", None) or error
    parts: list[Any] = [*getattr(cause, "args", ()), cause]
    # PyMySQL's arguments are a number and a sentence.
    return " ".join(str(parts[1] if isinstance(parts[0], int) else parts[0]).split())
