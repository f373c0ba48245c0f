"""Time limits of statements, enforced by the database itself."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from nova.db.sql import errors

if TYPE_CHECKING:
    import sqlite3

# Share of the limit that is the timeout for locks, so that a transaction can wait again after its blocker was
# cancelled.
_LOCK_SHARE = 0.5
# Instructions of SQLite between two checks of the time: about a millisecond.
_INSTRUCTIONS = 100_000
# Error codes of cancelled statements. PostgreSQL has one code for all causes, MariaDB another one for KILL QUERY.
_CANCELLED = frozenset({"57014", 1969})


def limit_statements(engine: sa.Engine, seconds: int) -> None:
    """Limit the statements of new connections to ``seconds``, and the waits for locks to half of that."""
    if engine.dialect.name == "sqlite":
        _limit_sqlite(engine, seconds)
        return
    lock = max(1, int(seconds * _LOCK_SHARE))
    if engine.dialect.name == "postgresql":
        settings = [f"SET statement_timeout = '{seconds}s'", f"SET lock_timeout = '{lock}s'"]
    else:
        settings = [f"SET SESSION max_statement_time = {seconds}, innodb_lock_wait_timeout = {lock}"]

    def configure(connection: Any, _record: Any) -> None:
        cursor = connection.cursor()
        for setting in settings:
            cursor.execute(setting)
        cursor.close()
        connection.commit()

    sa.event.listen(engine, "connect", configure)


def exceeded(error: Exception) -> bool:
    """Return True if the statement was cancelled by its time limit or by a user of the database."""
    cause: Any = getattr(error, "orig", None) or getattr(error, "inner_exception", None)
    cause = getattr(cause, "orig", None) or cause
    code = errors.code_of(cause)
    return code in _CANCELLED or (code == "interrupted" and type(cause).__module__ == "sqlite3")


def _limit_sqlite(engine: sa.Engine, seconds: int) -> None:
    """Limit SQLite's statements by a handler that SQLite calls every ``_INSTRUCTIONS``."""

    def watch(connection: sqlite3.Connection, record: Any) -> None:
        info: dict[str, float] = record.info
        connection.set_progress_handler(lambda: time.monotonic() > info.get("until", float("inf")), _INSTRUCTIONS)

    def begin(connection: sa.Connection, *_statement: Any) -> None:
        connection.info["until"] = time.monotonic() + seconds

    sa.event.listen(engine, "connect", watch)
    sa.event.listen(engine, "before_cursor_execute", begin)
