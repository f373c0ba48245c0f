"""The database of a conductor: transactions that are repeated after deadlocks and lost connections.

A transaction is a function of a connection. It may run several times, so it must have no effect outside the database.
If the connection is lost during the COMMIT, the outcome is unknown and is queried (see :meth:`Database.write`)."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import random
import stat
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import sqlalchemy as sa
from oslo_context import context as oslo_context
from oslo_db import exception as db_exception
from oslo_db.sqlalchemy import exc_filters

from nova import context, exception
from nova.db.sql import clock, errors, hot, limits, mariadb, prepared
from nova.service.fair_pool import FairSemaphore
from nova.telemetry import metrics

if TYPE_CHECKING:
    import sqlite3

LOG = logging.getLogger(__name__)

T = TypeVar("T")
Transaction = Callable[[sa.Connection], T]
Mode = Literal["read", "lookup", "snapshot", "write"]

# Errors of the database as SQLAlchemy and oslo.db raise them.
_ERRORS = (sa.exc.SQLAlchemyError, db_exception.DBError, db_exception.RetryRequest,
           db_exception.DBInvalidUnicodeParameter)
# Errors of values that no column can hold, for example null characters and numbers out of range.
_BAD_VALUE = (db_exception.DBDataError, db_exception.DBInvalidUnicodeParameter)
_LOGGED = 5  # the failure of every fifth attempt of a transaction is logged at INFO, of others at DEBUG
# Number of failed attempts after which a database that refuses writes starts a grace period for heartbeats.
_PERSISTENT = 3
# Seconds of an outage of the database (or of its writes) after which transactions with a waiting caller fail without
# further attempts, which would occupy threads.
_OUTAGE_TIMEOUT = 5.0
# Seconds that a transaction waits for the write lock of an SQLite database, which has only one; then it fails.
_BUSY_TIMEOUT = 30.0
_CANCELLED = ("The database cancelled a statement of the request, because it took too long. Request less (a smaller "
              "page, fewer filters), or retry when the database has less load.")
_UNKNOWN = "The connection to the database was lost during the commit: check whether the change was made."


class Database:
    """A pool of connections to one database. A process must not use a pool that was created before a fork."""

    def __init__(self, url: str, pool_size: int = 20, max_overflow: int = 50, recycle: int = 3600,
                 max_retries: int = 20, at_once: int | None = None, statement_seconds: int = 0,
                 queue: str | None = None) -> None:
        """Create the pool; connections are opened on first use.

        ``statement_seconds``: time limit of a statement; 0 for none. ``at_once``: maximum number of concurrent
        transactions; None for the number of connections. ``queue``: name of the fair queue for transactions that wait
        for a slot or for SQLite's write lock; None for one queue per project of the request. A transaction that waits
        long for a lock releases its slot."""
        self.max_retries = max_retries
        self._queue = queue
        self._seconds = statement_seconds
        # Monotonic time of the first failure since the last success, for transactions that write and for others.
        self._failing_since: dict[bool, float | None] = {True: None, False: None}
        self._transactions = FairSemaphore(at_once) if at_once else None
        self.engine = _create(url, pool_size, max_overflow, recycle)
        if statement_seconds:
            limits.limit_statements(self.engine, statement_seconds)
        sa.event.listen(self.engine, "before_cursor_execute", _stop_when_late)
        self.dialect = self.engine.dialect.name
        # A queue for SQLite's write lock. Without it, waiting threads would poll at growing intervals, in no order.
        self._writers = _writers(os.path.realpath(self.engine.url.database or "")) if self.dialect == "sqlite" else None
        if metrics.on:
            count_statements(self.engine)

    def read(self, transaction: Transaction[T]) -> T:
        """Run a transaction that only reads."""
        with metrics.timed(metrics.DB_SECONDS, "read"):
            return self._run(transaction, None, mode="read")

    def lookup(self, transaction: Transaction[T]) -> T:
        """Run a transaction that only reads, without server-side cursors. It is sent to PostgreSQL without BEGIN and
        COMMIT, which saves two of three round trips. Each statement has its own snapshot, as in :meth:`read`."""
        with metrics.timed(metrics.DB_SECONDS, "read"):
            return self._run(transaction, None, mode="lookup")

    def snapshot(self, transaction: Transaction[T]) -> T:
        """Run a transaction that only reads, all of whose statements see the same state of the database."""
        with metrics.timed(metrics.DB_SECONDS, "read"):
            return self._run(transaction, None, mode="snapshot")

    def write(self, transaction: Transaction[T], made: Transaction[T | None] | None = None) -> T:
        """Run a transaction that writes; an error that it raises rolls it back.

        ``made`` runs if the connection was lost during the COMMIT: it returns the result of the transaction if that was
        committed, otherwise None. Without ``made`` the transaction is repeated in this case. If the repetition fails,
        perhaps because of the changes of the first run, ServiceUnavailable is raised."""
        with metrics.timed(metrics.DB_SECONDS, "write"):
            return self._run(transaction, made, mode="write")

    def _run(self, transaction: Transaction[T], made: Transaction[T | None] | None, mode: Mode) -> T:
        doubt, write = False, mode == "write"
        for attempt in range(self.max_retries + 1):
            committing = False
            try:
                with self._turn(write), self._connect() as connection, self._unwrapped(connection, mode):
                    if not doubt and context.too_late():  # the request timed out in the queue
                        raise exception.ServiceUnavailable("The request has timed out: nothing was changed.")
                    # nova_write: SQLite takes its write lock at BEGIN, since it cannot wait for a lock taken later.
                    committed: list[Callable[[], object]] = []
                    connection = connection.execution_options(
                        nova_write=write, nova_lookup=mode == "lookup", nova_seconds=self._seconds,
                        nova_committed=committed, nova_doubt=doubt)
                    with connection.begin():
                        if mode == "snapshot" and self.dialect != "sqlite":  # every transaction of SQLite is a snapshot
                            connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                        earlier = made(connection) if doubt and made else None
                        result = transaction(connection) if earlier is None else earlier
                        if write and earlier is None and context.too_late():
                            raise exception.ServiceUnavailable("The request has timed out: nothing was changed.")
                        committing = write
                    self._failing_since.update({False: None, write: None})
                    if write:
                        context.begun()
                    for function in committed:
                        function()
                    return result
            except exception.StaleReport:
                raise  # no retry, even after a lost COMMIT: the action has a newer attempt
            except exception.NovaException as error:
                if doubt and not made:
                    raise exception.ServiceUnavailable(_UNKNOWN) from error
                raise
            except _ERRORS as error:
                if isinstance(ours := getattr(error, "inner_exception", None), exception.NovaException):
                    raise ours from error  # raised by _stop_when_late()
                if limits.exceeded(error):  # another attempt would exceed the time limit, too
                    raise exception.ServiceUnavailable(_CANCELLED) from error
                if not errors.is_transient(error):
                    if doubt and isinstance(error, db_exception.DBDuplicateEntry):
                        raise exception.ServiceUnavailable(_UNKNOWN) from error
                    _check_values(error)
                    raise
                # A deadlock rolls the transaction back; after other errors of a COMMIT its outcome is unknown.
                doubt = doubt or (committing and not isinstance(error, db_exception.DBDeadlock))
                impatient = self._fails_for_long(error, write) and not doubt and context.seconds_left() is not None
                if write and (impatient or attempt >= _PERSISTENT) and errors.refuses_writes(error):
                    clock.start_grace_period()  # heartbeats are not stored, although the database answers
                if impatient or attempt == self.max_retries:
                    raise exception.ServiceUnavailable(_refusal(write, error)) from error
                metrics.DB_RETRIES.inc(type(error).__name__)
                LOG.log(logging.DEBUG if attempt % _LOGGED else logging.INFO,
                        "Transaction failed, retrying: %s", errors.summary(error))
                # A random pause, so that the transactions of a deadlock do not collide again; up to 2 s for a restart.
                longest = min(2.0, 0.01 * 2 ** min(attempt, 10))
                time.sleep(random.uniform(longest / 2, longest))  # noqa: S311
        raise AssertionError("unreachable")

    def _fails_for_long(self, error: Exception, write: bool) -> bool:
        """Record a failure. Return True if all reads (or writes) have failed for longer than ``_OUTAGE_TIMEOUT``."""
        if not errors.is_outage(error):
            return False
        since = self._failing_since[write]
        if since is None:
            since = self._failing_since[write] = time.monotonic()
        return time.monotonic() - since > _OUTAGE_TIMEOUT

    def waiting(self) -> int:
        """Return the number of transactions that wait for a slot or for SQLite's write lock."""
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

    @contextlib.contextmanager
    def _unwrapped(self, connection: sa.Connection, mode: Mode) -> Iterator[None]:
        """Run a lookup on PostgreSQL in autocommit mode, unless the driver sets the isolation level of transactions:
        the level would not apply without a transaction, and the change of mode would need a statement."""
        driver: Any = connection.connection.dbapi_connection
        if mode != "lookup" or self.dialect != "postgresql" or driver.isolation_level is not None:
            yield
            return
        driver.autocommit = True
        try:
            yield
        finally:
            if not driver.closed:
                driver.autocommit = False

    def _connect(self) -> sa.Connection:
        try:
            return self.engine.connect()
        except (sa.exc.OperationalError, OSError) as error:  # no connection, or a missing TLS file
            raise db_exception.DBConnectionError(error) from error
        except sa.exc.TimeoutError as error:
            raise exception.ServiceUnavailable("All connections to the database are in use.") from error

    def close(self) -> None:
        self.engine.dispose()


def _stop_when_late(connection: sa.Connection, *_statement: Any) -> None:
    """Refuse statements of requests that have timed out, except those that query the outcome of a COMMIT."""
    if context.too_late() and not connection.get_execution_options().get("nova_doubt"):
        raise exception.ServiceUnavailable("The request has timed out: the transaction was rolled back.")


def after_commit(connection: sa.Connection, function: Callable[[], object]) -> None:
    """Call ``function``, which must not raise, after the commit of this transaction."""
    connection.get_execution_options()["nova_committed"].append(function)


@functools.cache
def _writers(_path: str) -> FairSemaphore:
    """Return the queue of this process for the write lock of an SQLite file."""
    return FairSemaphore(1, stalled_after=_BUSY_TIMEOUT)


def _check_values(error: Exception) -> None:
    """Raise InvalidInput if the error means that the database cannot store a value."""
    cause = getattr(error, "inner_exception", None)
    if isinstance(error, errors.DoesNotFit):
        raise exception.InvalidInput(reason=str(cause)) from error
    if isinstance(error, _BAD_VALUE) or isinstance(cause, ValueError | OverflowError | sa.exc.DataError):
        LOG.warning("Refusing a request: the database cannot store a value in it: %s", type(cause or error).__name__)
        raise exception.InvalidInput(reason="a value cannot be stored in the database") from error


def _refusal(write: bool, error: Exception) -> str:
    """Return the message for clients when every attempt of a transaction has failed."""
    return "The database is read only at present." if write and errors.is_read_only(error) else \
        "The database is not available."


def _create(url: str, pool_size: int, max_overflow: int, recycle: int) -> sa.Engine:
    parsed = sa.make_url(url)
    # No ROLLBACK when a connection returns to the pool: its transaction has ended, so this saves a round trip.
    # Parameters of statements may be secrets: errors and logs contain the statement only.
    options: dict[str, Any] = {"pool_recycle": recycle, "pool_reset_on_return": None, "hide_parameters": True}
    if parsed.get_backend_name() == "sqlite":
        options["connect_args"] = {"timeout": _BUSY_TIMEOUT, "check_same_thread": False}
        if parsed.database in (None, "", ":memory:"):
            raise ValueError("An in-memory SQLite database cannot be shared by threads; name a file.")
        # Each reader has its own connection; WAL allows reads during a write.
        options.update(poolclass=sa.pool.QueuePool, pool_size=pool_size, max_overflow=max_overflow)
    else:
        options.update(pool_size=pool_size, max_overflow=max_overflow)
        if parsed.get_backend_name() in ("mysql", "mariadb"):
            options["isolation_level"] = "READ COMMITTED"
            options["connect_args"] = {"charset": "utf8mb4", **_files_of_tls(parsed)}
        elif "connect_timeout" not in parsed.query:  # seconds for each server of the URL
            options["connect_args"] = {"connect_timeout": 10}
    engine = sa.create_engine(parsed, **options)
    if parsed.get_backend_name() == "sqlite":
        sa.event.listen(engine, "do_connect", functools.partial(_sqlite_make, str(parsed.database)))
        sa.event.listen(engine, "connect", _sqlite_connect)
        sa.event.listen(engine, "begin", _sqlite_begin)
    else:
        limits.detect_vanished_servers(engine)
    if parsed.get_backend_name() == "postgresql":
        sa.event.listen(engine, "connect", _read_committed)
    if parsed.get_driver_name() == "pymysql":
        mariadb.share_contexts(engine)
    errors.hide_values(engine)
    hot.raise_errors(engine)
    if engine.dialect.driver == "psycopg2":
        prepared.Preparer(engine)
    errors.reconnect_when_read_only(engine)
    exc_filters.register_engine(engine)
    errors.check_lengths(engine)
    return engine


def _read_committed(connection: Any, _record: Any) -> None:
    """Set the isolation level READ COMMITTED if it is not the server's default; psycopg2 sends it with each BEGIN."""
    with connection.cursor() as cursor:
        cursor.execute("SHOW default_transaction_isolation")
        level = cursor.fetchone()[0]
    connection.rollback()
    if level != "read committed":
        connection.set_session(isolation_level="READ COMMITTED")


def _files_of_tls(url: sa.URL) -> dict[str, Any]:
    """Return the TLS files under PyMySQL's own names: it ignores SQLAlchemy's names if certificates are verified."""
    if not {"ssl_verify_cert", "ssl_verify_identity"} & url.query.keys():
        return {}
    return {name: url.query[name] for name in ("ssl_ca", "ssl_cert", "ssl_key") if name in url.query}


def _sqlite_make(path: str, *_connecting: Any) -> None:
    """Create the file with mode 0600, or set this mode of the existing file. SQLite gives its other files this mode."""
    if path.startswith("file:"):
        return
    with contextlib.suppress(OSError):  # the following connect reports the error
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        except FileExistsError:
            for name in (path, f"{path}-wal", f"{path}-shm"):
                if stat.S_IMODE(os.stat(name).st_mode) & 0o077:
                    os.chmod(name, 0o600)


def _sqlite_connect(connection: sqlite3.Connection, _record: Any) -> None:
    connection.isolation_level = None  # _sqlite_begin sends BEGIN
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout={_BUSY_TIMEOUT * 1000:.0f}")
    _use_wal(cursor)
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.close()


def _use_wal(cursor: sqlite3.Cursor) -> None:
    """Enable WAL. Retry while another connection enables it in a new file: SQLite does not wait for that."""
    import sqlite3  # not needed with other databases

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
    """Count the statements and connections of this database for Prometheus."""
    def count(_connection: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        verb = statement[:6].lower()
        metrics.DB_STATEMENTS.inc(verb if verb in _VERBS else "other")

    sa.event.listen(engine, "before_cursor_execute", count)
    if isinstance(engine.pool, sa.pool.QueuePool):
        metrics.DB_POOL.watch(engine.pool.checkedout)
