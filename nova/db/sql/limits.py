"""Time limits of statements, which the database enforces, and of connections whose server has vanished."""

from __future__ import annotations

import os
import socket
import time
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from nova.db.sql import errors

if TYPE_CHECKING:
    import sqlite3

# Timeout for locks, as a fraction of the time limit of statements: a transaction can still wait again after the
# transaction that held the lock was cancelled.
_LOCK_SHARE = 0.5
_INSTRUCTIONS = 100_000  # number of SQLite instructions between two checks of the time; they take about a millisecond
# Error codes of cancelled statements: PostgreSQL has one for all causes; for MariaDB, the code of the time limit.
_CANCELLED = frozenset({"57014", 1969})
# TCP options by which the system closes a connection 25 s after its server vanished: probes of a silent connection in
# seconds, and the limit for unacknowledged data in milliseconds.
_DEAD_AFTER = ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3),
               (socket.TCP_USER_TIMEOUT, 25_000))


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


def detect_vanished_servers(engine: sa.Engine) -> None:
    """Let the system close new connections if their server vanishes without closing them (power loss, failover).
    Otherwise transactions would wait for 15 minutes to two hours, while the leases of their actions are renewed."""

    def configure(connection: Any, _record: Any) -> None:
        # PyMySQL has no method that returns its socket. A duplicate shares the options of the socket.
        with socket.socket(fileno=os.dup(getattr(connection, "_sock", connection).fileno())) as duplicate:
            if duplicate.family != socket.AF_UNIX:
                duplicate.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                for option, value in _DEAD_AFTER:
                    duplicate.setsockopt(socket.IPPROTO_TCP, option, value)

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
