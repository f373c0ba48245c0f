"""How long one statement may take, on every database: what takes longer is cancelled by the database itself."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from nova.db.sql import errors

if TYPE_CHECKING:
    import sqlite3

# Whoever is in the way of others for so long has most likely come to an end: their locks are waited for once more.
_LOCK_SHARE = 0.5
# Instructions of SQLite between two looks at the time: a millisecond or so.
_INSTRUCTIONS = 100_000
# What the databases call it. PostgreSQL has one code for whoever cancels; MariaDB tells the limit from KILL QUERY.
_CANCELLED = frozenset({"57014", 1969})


def limit_statements(engine: sa.Engine, seconds: int) -> None:
    """From now on the statements of new connections are cancelled after ``seconds``; a lock is waited for half as long.
    """
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
    """Whether a statement was cancelled, since it took too long or since somebody wanted that."""
    cause: Any = getattr(error, "orig", None) or getattr(error, "inner_exception", None)
    cause = getattr(cause, "orig", None) or cause
    code = errors.code_of(cause)
    return code in _CANCELLED or (code == "interrupted" and type(cause).__module__ == "sqlite3")


def _limit_sqlite(engine: sa.Engine, seconds: int) -> None:
    """SQLite asks us now and then whether to go on."""
    def watch(connection: sqlite3.Connection, record: Any) -> None:
        info: dict[str, float] = record.info
        connection.set_progress_handler(lambda: time.monotonic() > info.get("until", float("inf")), _INSTRUCTIONS)

    def begin(connection: sa.Connection, *_statement: Any) -> None:
        connection.info["until"] = time.monotonic() + seconds

    sa.event.listen(engine, "connect", watch)
    sa.event.listen(engine, "before_cursor_execute", begin)
