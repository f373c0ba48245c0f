"""The database of a conductor: transactions that survive deadlocks and lost connections.

A transaction is a function of a connection, run as a whole: it may be run again, so it must
have no effect outside the database. When the connection is lost in the COMMIT nobody knows whether
it was done: then it is looked up (see :meth:`Database.write`).
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import random
import stat
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import sqlalchemy as sa
from oslo_context import context as oslo_context
from oslo_db import exception as db_exception
from oslo_db.sqlalchemy import exc_filters

from nova import context, exception
from nova.db.sql import clock, errors, lengths, limits, mariadb
from nova.service.fair_semaphore import FairSemaphore
from nova.telemetry import metrics

if TYPE_CHECKING:
    import sqlite3

LOG = logging.getLogger(__name__)

T = TypeVar("T")
Transaction = Callable[[sa.Connection], T]

# Errors of the database as SQLAlchemy and oslo.db raise them.
_ERRORS = (sa.exc.SQLAlchemyError, db_exception.DBError, db_exception.RetryRequest,
           db_exception.DBInvalidUnicodeParameter)
# What no column can hold: null characters, numbers out of range...
_UNFIT = (db_exception.DBDataError, db_exception.DBInvalidUnicodeParameter)
# One of so many tries of a transaction is logged at INFO, the others at DEBUG.
_LOGGED = 5
# A refusal that so many tries have met is not over in a moment.
_PERSISTENT = 3
# Seconds for which the database may be away, or take no writes, until those that a caller waits for fail at once. Each
# that went on trying would hold a thread, which others need.
_PATIENCE = 5.0
# Seconds that who wants to write waits for SQLite's one write lock.
_BUSY = 30.0
_CANCELLED = ("The database was not done in time. Ask for less at once (a smaller page, fewer filters), or try again "
              "when it has less to do.")
_LOST = "The answer of the database got lost: look whether it was done."


class Database:
    """A pool of connections to one database. Never share one across a fork."""

    def __init__(self, url: str, pool_size: int = 20, max_overflow: int = 50, recycle: int = 3600,
                 max_retries: int = 20, at_once: int | None = None, statement_seconds: int = 0,
                 queue: str | None = None) -> None:
        """Create the pool; connections are opened on first use.

        ``statement_seconds``: time limit of a statement; 0 for none. ``at_once``: maximum number of concurrent
        transactions; None for the number of connections. ``queue``: name of the fair queue for transactions that wait
        for a slot or for SQLite's write lock; None for one queue per project of the request. A transaction that waits
        for a lock for long gives its slot to another one.
        """
        self.max_retries = max_retries
        self._queue = queue
        self._seconds = statement_seconds
        # Since when no transaction that writes, or that only reads, was done although some were tried; by the
        # monotonic clock.
        self._failing_since: dict[bool, float | None] = {True: None, False: None}
        self._transactions = FairSemaphore(at_once) if at_once else None
        self.engine = _create(url, pool_size, max_overflow, recycle)
        if statement_seconds:
            limits.limit_statements(self.engine, statement_seconds)
        sa.event.listen(self.engine, "before_cursor_execute", _stop_when_late)
        self.dialect = self.engine.dialect.name
        # Who finds SQLite's write lock taken would sleep and try again, longer each time, overtaken by the others.
        self._writers = _writers(os.path.realpath(self.engine.url.database or "")) if self.dialect == "sqlite" else None
        if metrics.on:
            count_statements(self.engine)

    def read(self, transaction: Transaction[T]) -> T:
        """Run a transaction that only reads."""
        with metrics.timed(metrics.DB_SECONDS, "read"):
            return self._run(transaction, None, write=False)

    def snapshot(self, transaction: Transaction[T]) -> T:
        """Run a transaction that only reads, and whose statements all see the database as of one moment."""
        with metrics.timed(metrics.DB_SECONDS, "read"):
            return self._run(transaction, None, write=False, snapshot=True)

    def write(self, transaction: Transaction[T], made: Transaction[T | None] | None = None) -> T:
        """Run a transaction that writes: all of it, or nothing and the error it raised.

        ``made`` is asked when the answer to a COMMIT got lost: it looks whether the transaction was done after all,
        and returns what that would have returned, or None. Without it the transaction runs again in this case, too;
        if that is refused, perhaps because of what it has done itself, it raises ServiceUnavailable.
        """
        with metrics.timed(metrics.DB_SECONDS, "write"):
            return self._run(transaction, made, write=True)

    def _run(self, transaction: Transaction[T], made: Transaction[T | None] | None, write: bool,
             snapshot: bool = False) -> T:
        doubt = False
        for attempt in range(self.max_retries + 1):
            committing = False
            try:
                with self._turn(write), self._connect() as connection:
                    if not doubt and context.too_late():  # it was too long in line
                        raise exception.ServiceUnavailable("Nobody waits for this any more: nothing was done.")
                    # SQLite takes its one write lock at once: a lock taken later cannot be waited for.
                    committed: list[Callable[[], object]] = []
                    connection = connection.execution_options(nova_write=write, nova_seconds=self._seconds,
                                                              nova_committed=committed, nova_doubt=doubt)
                    if snapshot and self.dialect != "sqlite":  # where every transaction is one
                        connection = connection.execution_options(isolation_level="REPEATABLE READ")
                    with connection.begin():
                        found = made(connection) if doubt and made else None
                        answer = transaction(connection) if found is None else found
                        if write and found is None and context.too_late():
                            raise exception.ServiceUnavailable("Nobody waits for this any more: nothing was written.")
                        committing = write
                    self._failing_since.update({False: None, write: None})
                    if write:
                        context.begun()
                    for each in committed:
                        each()
                    return answer
            except exception.StaleReport:
                raise  # says the truth, whoever moved the action on
            except exception.NovaException as error:
                if doubt and not made:
                    raise exception.ServiceUnavailable(_LOST) from error
                raise
            except _ERRORS as error:
                if isinstance(ours := getattr(error, "inner_exception", None), exception.NovaException):
                    raise ours from error  # of _stop_when_late
                if limits.exceeded(error):  # another try would take as long
                    raise exception.ServiceUnavailable(_CANCELLED) from error
                if not errors.is_transient(error):
                    if doubt and isinstance(error, db_exception.DBDuplicateEntry):
                        raise exception.ServiceUnavailable(_LOST) from error
                    _check_values(error)
                    raise
                # A deadlock was rolled back; after all other errors of a COMMIT its outcome is unknown.
                doubt = doubt or (committing and not isinstance(error, db_exception.DBDeadlock))
                impatient = self._fails_for_long(error, write) and not doubt and context.seconds_left() is not None
                if write and (impatient or attempt >= _PERSISTENT) and errors.refuses_writes(error):
                    clock.doubt()  # heartbeats are not stored, although the database answers
                if impatient or attempt == self.max_retries:
                    raise exception.ServiceUnavailable(_refusal(write, error)) from error
                metrics.DB_RETRIES.inc(type(error).__name__)
                LOG.log(logging.DEBUG if attempt % _LOGGED else logging.INFO,
                        "Transaction failed and is tried again: %s", errors.summary(error))
                # Losers of a deadlock must not meet again; a restarting server needs seconds.
                longest = min(2.0, 0.01 * 2**attempt)
                time.sleep(random.uniform(longest / 2, longest))  # noqa: S311
        raise AssertionError("unreachable")

    def _fails_for_long(self, error: Exception, write: bool) -> bool:
        """Note a failure, and return True if all such transactions have failed for longer than ``_PATIENCE``."""
        if not errors.is_outage(error):
            return False
        since = self._failing_since[write]
        if since is None:
            since = self._failing_since[write] = time.monotonic()
        return time.monotonic() - since > _PATIENCE

    def waiting(self) -> int:
        """How many transactions wait for their turn."""
        return sum(semaphore.waiting() for semaphore in (self._transactions, self._writers) if semaphore)

    @contextlib.contextmanager
    def _turn(self, write: bool) -> Iterator[None]:
        current = oslo_context.get_current()
        queue = self._queue or (current.project_id if current else None)
        with contextlib.ExitStack() as stack:
            for semaphore in (self._transactions, self._writers if write else None):
                if semaphore is not None:
                    stack.enter_context(semaphore.slot(queue))
            yield

    def _connect(self) -> sa.Connection:
        try:
            return self.engine.connect()
        except (sa.exc.OperationalError, OSError) as error:  # the server is away, or a file of TLS is not there
            raise db_exception.DBConnectionError(error) from error
        except sa.exc.TimeoutError as error:
            raise exception.ServiceUnavailable("All connections to the database are in use.") from error

    def close(self) -> None:
        self.engine.dispose()


def _stop_when_late(connection: sa.Connection, *_statement: Any) -> None:
    """Run no further statement for a caller that has given up, unless a COMMIT of unknown outcome is looked up."""
    if context.too_late() and not connection.get_execution_options().get("nova_doubt"):
        raise exception.ServiceUnavailable("Nobody waits for this any more: the transaction was given up.")


def after_commit(connection: sa.Connection, function: Callable[[], object]) -> None:
    """Call ``function``, which must not fail, when this transaction is committed."""
    connection.get_execution_options()["nova_committed"].append(function)


@functools.cache
def _writers(_path: str) -> FairSemaphore:
    """For all who write to an SQLite file from this process."""
    return FairSemaphore(1, stalled_after=_BUSY)


def _check_values(error: Exception) -> None:
    """Whoever sent values that cannot be stored is told: InvalidInput. They are no defect of ours."""
    cause = getattr(error, "inner_exception", None)
    if isinstance(error, lengths.DoesNotFit):
        raise exception.InvalidInput(reason=str(cause)) from error
    if isinstance(error, _UNFIT) or isinstance(cause, ValueError | OverflowError | sa.exc.DataError):
        LOG.warning("The database refused a value: %s", type(cause or error).__name__)
        raise exception.InvalidInput(reason="a value cannot be stored in the database") from error


def _refusal(write: bool, error: Exception) -> str:
    """Return the message for clients when every try of a transaction has failed."""
    return "The database takes no changes at present." if write and errors.is_read_only(error) else \
        "The database is not available."


def _create(url: str, pool_size: int, max_overflow: int, recycle: int) -> sa.Engine:
    parsed = sa.make_url(url)
    # Every transaction has ended when its connection goes back to the pool: another ROLLBACK would be a round trip.
    # What a statement is given are secrets, too: errors, and with them logs, have its text alone.
    options: dict[str, Any] = {"pool_recycle": recycle, "pool_reset_on_return": None, "hide_parameters": True}
    if parsed.get_backend_name() == "sqlite":
        options["connect_args"] = {"timeout": _BUSY, "check_same_thread": False}
        if parsed.database in (None, "", ":memory:"):
            raise ValueError("An in-memory SQLite database cannot be shared by threads; name a file.")
        # Readers get a connection each; WAL lets them read while one writes.
        options.update(poolclass=sa.pool.QueuePool, pool_size=pool_size, max_overflow=max_overflow)
    else:
        options.update(pool_size=pool_size, max_overflow=max_overflow, isolation_level="READ COMMITTED")
        if parsed.get_backend_name() in ("mysql", "mariadb"):
            options["connect_args"] = {"charset": "utf8mb4", **_files_of_tls(parsed)}
    engine = sa.create_engine(parsed, **options)
    if parsed.get_backend_name() == "sqlite":
        sa.event.listen(engine, "do_connect", functools.partial(_sqlite_make, str(parsed.database)))
        sa.event.listen(engine, "connect", _sqlite_connect)
        sa.event.listen(engine, "begin", _sqlite_begin)
    if parsed.get_driver_name() == "pymysql":
        mariadb.share_contexts(engine)
    errors.hide_values(engine)
    errors.reconnect_when_read_only(engine)
    exc_filters.register_engine(engine)
    lengths.check_lengths(engine)
    return engine


def _files_of_tls(url: sa.URL) -> dict[str, Any]:
    """SQLAlchemy hands PyMySQL the files of TLS by another name, which it forgets when it is told to verify them."""
    if not {"ssl_verify_cert", "ssl_verify_identity"} & url.query.keys():
        return {}
    return {name: url.query[name] for name in ("ssl_ca", "ssl_cert", "ssl_key") if name in url.query}


def _sqlite_make(path: str, *_connecting: Any) -> None:
    """Nobody but its owner may use the file; those that SQLite makes beside it get the same mode."""
    if path.startswith("file:"):
        return
    with contextlib.suppress(OSError):  # what is wrong is said when it is connected to
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        except FileExistsError:
            for name in (path, f"{path}-wal", f"{path}-shm"):
                if stat.S_IMODE(os.stat(name).st_mode) & 0o077:
                    os.chmod(name, 0o600)


def _sqlite_connect(connection: sqlite3.Connection, _record: Any) -> None:
    connection.isolation_level = None  # we say BEGIN ourselves
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout={_BUSY * 1000:.0f}")
    _use_wal(cursor)
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.close()


def _use_wal(cursor: sqlite3.Cursor) -> None:
    """The first connections to a new file may disturb each other; SQLite does not wait in this case."""
    import sqlite3  # which others do without

    deadline = time.monotonic() + 30
    while True:
        try:
            cursor.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if time.monotonic() > deadline or "lock" not in str(error):
                raise
            time.sleep(0.02)


def _sqlite_begin(connection: sa.Connection) -> None:
    write = connection.get_execution_options().get("nova_write", True)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")


_VERBS = frozenset({"select", "insert", "update", "delete"})


def count_statements(engine: sa.Engine) -> None:
    """Count the statements of this database, and its connections, for Prometheus."""
    def count(_connection: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        verb = statement[:6].lower()
        metrics.DB_STATEMENTS.inc(verb if verb in _VERBS else "other")

    sa.event.listen(engine, "before_cursor_execute", count)
    if isinstance(engine.pool, sa.pool.QueuePool):
        metrics.DB_POOL.watch(engine.pool.checkedout)


class StatementCounter:
    """Notes the statements that databases run, by the request they are run for (tests assert counts)."""

    def __init__(self, *databases: Database) -> None:
        self._noted: list[tuple[str | None, str]] = []
        for database in databases:
            sa.event.listen(database.engine, "before_cursor_execute", self._note)

    def _note(self, _connection: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        current = oslo_context.get_current()
        if not statement.startswith("BEGIN"):
            self._noted.append((current.request_id if current else None, statement))

    def take(self) -> list[str]:
        """All statements since the last time."""
        taken, self._noted = self._noted, []
        return [statement for _request_id, statement in taken]

    def of(self, request_id: str) -> list[str]:
        """The statements of one request, in the order they ran."""
        return [statement for noted, statement in self._noted if noted == request_id]
