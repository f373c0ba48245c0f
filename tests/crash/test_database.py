"""Transactions during database faults: deadlocks, lost connections, and commits of unknown outcome.

The tests use :class:`nova.db.sql.engine.Database` on a real server of each kind, without the rest of Nova.
"""

from __future__ import annotations

import threading
import time
import types
from collections.abc import Callable, Iterator

import pytest
import sqlalchemy as sa

from nova import conf, context, exception
from nova.conductor.endpoints.networks import FloatingIps
from nova.db.maintenance import migrate
from nova.db.networks import floating_ips
from nova.db.sql.engine import Database
from tests.crash.faults.chaos import cut_connections
from tests.crash.faults.dbproxy import Proxy, When
from tests.integration.databases import Server

FULL = pytest.mark.full


@pytest.fixture(params=["postgresql", pytest.param("mariadb", marks=FULL)])
def server(request: pytest.FixtureRequest) -> Server:
    found: Server = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with Proxy(server.new_database()) as made:
        yield made


@pytest.fixture
def database(proxy: Proxy) -> Iterator[Database]:
    """Return a database with a table ``t`` of (id, n) and two rows."""
    made = Database(proxy.url)
    made.write(lambda connection: connection.execute(sa.text("CREATE TABLE t (id INTEGER PRIMARY KEY, n INTEGER)")))
    made.write(lambda connection: connection.execute(sa.text("INSERT INTO t VALUES (1, 0), (2, 0)")))
    yield made
    made.close()


def numbers(database: Database) -> list[int]:
    return database.read(lambda connection: list(connection.scalars(sa.text("SELECT n FROM t ORDER BY id"))))


def count_up(connection: sa.Connection) -> str:
    connection.execute(sa.text("UPDATE t SET n = n + 1 WHERE id = 1"))
    connection.execute(sa.text("UPDATE t SET n = n + 1 WHERE id = 2"))
    return "done"


@pytest.mark.parametrize(("statement", "when"), [
    ("id = 1", "before"), ("id = 1", "after"), ("id = 2", "before"), ("id = 2", "after"), ("^COMMIT", "before")])
def test_transaction_is_retried_after_a_lost_connection(
        database: Database, proxy: Proxy, statement: str, when: When) -> None:
    cut = proxy.cut(statement, of="UPDATE t" if statement == "^COMMIT" else None, when=when, times=2)
    assert database.write(count_up) == "done"
    assert cut.done == 2
    assert numbers(database) == [1, 1]


def test_commit_with_a_lost_response_is_verified_before_a_retry(database: Database, proxy: Proxy) -> None:
    def made(connection: sa.Connection) -> str | None:
        return "was done" if connection.scalar(sa.text("SELECT n FROM t WHERE id = 2")) else None

    cut = proxy.cut("^COMMIT", of="UPDATE t", when="after")
    assert database.write(count_up, made) == "was done"
    assert cut.done == 1
    assert numbers(database) == [1, 1]


def test_commit_that_was_not_executed_is_verified_and_retried(database: Database, proxy: Proxy) -> None:
    proxy.cut("^COMMIT", of="UPDATE t", when="before")
    assert database.write(count_up, lambda _connection: None) == "done"
    assert numbers(database) == [1, 1]


def test_lost_commit_of_an_insert_is_unavailable_instead_of_a_conflict(database: Database, proxy: Proxy) -> None:
    """Insert a row that must be unique; a conflict with the first attempt's own row must not reach the client."""
    def make(connection: sa.Connection) -> None:
        if connection.scalar(sa.text("SELECT COUNT(*) FROM t WHERE id = 3")):
            raise exception.Conflict("There is one already.")
        connection.execute(sa.text("INSERT INTO t VALUES (3, 0)"))

    proxy.cut("^COMMIT", of="INSERT INTO t", when="after")
    with pytest.raises(exception.ServiceUnavailable):
        database.write(make)
    assert numbers(database) == [0, 0, 0]
    with pytest.raises(exception.Conflict):
        database.write(make)


@pytest.mark.parametrize("when", ["before", "after"])
def test_lost_commit_of_a_floating_ip_allocates_one_address(proxy: Proxy, when: When) -> None:
    conf.register()
    migrate.sync(proxy.url)
    database = Database(proxy.url)
    database.write(lambda connection: floating_ips.create(connection, "public", "192.0.2.0/29"))
    cut = proxy.cut("^COMMIT", of="UPDATE floating_ips", when=when)
    core = types.SimpleNamespace(db=database, allocator=types.SimpleNamespace(external=False))
    endpoint = FloatingIps(core)  # type: ignore[arg-type]
    allocated = endpoint.allocate(context.admin(), "p")
    cut.wait()
    assert database.read(lambda connection: floating_ips.index(connection, "p")) == [allocated]
    database.close()


def test_deadlocked_transactions_are_retried_and_executed_once(database: Database) -> None:
    """Run transactions that lock two rows in opposite orders; every transaction counts exactly once."""
    times = 6
    waits: list[None] = []

    def cross(order: tuple[int, int]) -> Callable[[sa.Connection], None]:
        def transaction(connection: sa.Connection) -> None:
            waits.append(None)
            for number in order:
                connection.execute(sa.text("UPDATE t SET n = n + 1 WHERE id = :id"), {"id": number})
                time.sleep(0.02)

        return transaction

    def work(order: tuple[int, int]) -> None:
        for _ in range(times):
            database.write(cross(order))

    threads = [threading.Thread(target=work, args=(order,)) for order in ((1, 2), (2, 1))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert numbers(database) == [2 * times, 2 * times]
    assert len(waits) > 2 * times, "there was no deadlock"


# Faults of a server during a statement.
def _cut(server: Server, url: str) -> None:
    assert cut_connections(server, url) > 0


def _end(server: Server, _url: str) -> None:
    server.stop()
    server.restart()


def _kill(server: Server, _url: str) -> None:
    server.kill()
    server.restart()


def _interrupt(server: Server, url: str) -> None:
    """Cancel only the statement, as an operator does with one that takes too long."""
    engine = sa.create_engine(server.admin_url, poolclass=sa.pool.NullPool, isolation_level="AUTOCOMMIT")
    name = sa.make_url(url).database
    with engine.connect() as connection:
        if server.kind == "postgresql":
            connection.execute(sa.text(
                "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE datname = :name"), {"name": name})
            return
        for number in connection.scalars(sa.text(
                "SELECT id FROM information_schema.processlist WHERE db = :name AND command = 'Query'"),
                {"name": name}).all():
            connection.exec_driver_sql(f"KILL QUERY {number}")


@pytest.mark.parametrize("disturb", [_cut, *(pytest.param(how, marks=FULL) for how in (_end, _kill, _interrupt))])
def test_transaction_waits_for_a_server_that_ends_during_a_statement(
        server: Server, database: Database, disturb: Callable[[Server, str], None]) -> None:
    slow = {"postgresql": "SELECT pg_sleep(1.5)", "mariadb": "SELECT COUNT(*) FROM t WHERE SLEEP(0.8) = 0"}[server.kind]
    begun = threading.Event()

    def transaction(connection: sa.Connection) -> None:
        connection.execute(sa.text("UPDATE t SET n = n + 1"))
        if not begun.is_set():
            begun.set()
            connection.execute(sa.text(slow))

    refused: list[Exception] = []

    def write() -> None:
        try:
            database.write(transaction)
        except exception.ServiceUnavailable as error:
            refused.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    begun.wait(30)
    time.sleep(0.3)
    disturb(server, str(database.engine.url))
    thread.join(60)
    # PostgreSQL reports a cancelled statement like a statement timeout: such a statement is not retried.
    final = disturb is _interrupt and server.kind == "postgresql"
    assert numbers(database) == ([0, 0] if final else [1, 1])
    assert len(refused) == final
