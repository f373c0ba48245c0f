"""Limits of concurrent transactions, with fair scheduling per project."""

import pathlib
import threading
import time
from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from oslo_db import exception as db_exception

from nova import context, exception
from nova.db.sql import engine
from nova.db.sql.engine import Database
from nova.service.fair_pool import FairSemaphore

SECONDS = 20


def test_transaction_of_a_project_is_not_delayed_by_many_of_another_project(
        tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # No transaction counts as stalled.
    monkeypatch.setattr(engine, "FairSemaphore", lambda slots, **_others: FairSemaphore(slots, stalled_after=3600.0))
    database = Database(f"sqlite:///{tmp_path}/nova.sqlite", at_once=1)
    ran: list[str] = []
    permits = threading.Semaphore(0)

    def ask(project: str) -> None:
        context.RequestContext(project_id=project, overwrite=True)

        def look(connection: sa.Connection) -> None:
            connection.scalar(sa.text("SELECT 1"))
            ran.append(project)
            assert permits.acquire(timeout=SECONDS)

        database.read(look)

    threads = []
    for number, project in enumerate(["many"] * 5 + ["one"]):
        threads.append(threading.Thread(target=ask, args=(project,)))
        threads[-1].start()
        while not (ran and database.waiting() == number):
            assert threads[-1].is_alive()
    permits.release(6)
    for thread in threads:
        thread.join(SECONDS)
    assert ran == ["many", "many", "one", "many", "many", "many"]
    database.close()


def test_transaction_that_waits_for_a_lock_does_not_block_other_transactions(tmp_path: pathlib.Path) -> None:
    database = Database(f"sqlite:///{tmp_path}/nova.sqlite", at_once=1)
    release = threading.Event()
    held = threading.Thread(target=lambda: database.read(lambda _connection: release.wait(SECONDS)))
    held.start()
    assert database.read(lambda connection: connection.scalar(sa.text("SELECT 1"))) == 1
    assert held.is_alive()
    release.set()
    held.join(SECONDS)
    database.close()


@pytest.fixture
def databases(tmp_path: pathlib.Path) -> Iterator[list[Database]]:
    """Yield two databases on the same file, as in a conductor."""
    made = [Database(f"sqlite:///{tmp_path}/one.sqlite") for _number in range(2)]
    yield made
    for database in made:
        database.close()


def test_sqlite_writers_run_in_order_of_arrival(databases: list[Database]) -> None:
    order: list[int] = []
    begun, go = threading.Event(), threading.Event()

    def hold(_connection: sa.Connection) -> None:
        begun.set()
        go.wait(60)

    threads = [threading.Thread(target=databases[0].write, args=(hold,))]
    threads[0].start()
    assert begun.wait(60)
    for number in range(12):
        threads.append(threading.Thread(
            target=databases[number % 2].write, args=(lambda _connection, number=number: order.append(number),)))
        threads[-1].start()
        end = time.monotonic() + 60
        while databases[1].waiting() <= number:
            assert time.monotonic() < end
            time.sleep(0.005)
    go.set()
    for thread in threads:
        thread.join(60)
    assert order == list(range(12))


def test_heartbeat_waits_for_at_most_one_other_writer(tmp_path: pathlib.Path, databases: list[Database]) -> None:
    """Heartbeats have their own queue, so that hosts are not marked down while many transactions wait."""
    heartbeats = Database(f"sqlite:///{tmp_path}/one.sqlite", queue="heartbeats")
    order: list[str] = []
    begun, go = threading.Event(), threading.Event()

    def hold(_connection: sa.Connection) -> None:
        begun.set()
        go.wait(60)

    threads = [threading.Thread(target=databases[0].write, args=(hold,))]
    threads[0].start()
    assert begun.wait(60)
    for number, (database, text) in enumerate([(databases[0], "other")] * 5 + [(heartbeats, "heartbeat")]):
        threads.append(threading.Thread(
            target=database.write, args=(lambda _connection, text=text: order.append(text),)))
        threads[-1].start()
        end = time.monotonic() + 60
        while heartbeats.waiting() <= number:
            assert time.monotonic() < end
            time.sleep(0.005)
    go.set()
    for thread in threads:
        thread.join(60)
    assert order.index("heartbeat") <= 1
    heartbeats.close()


def test_sqlite_readers_do_not_wait_for_writers(databases: list[Database]) -> None:
    read = databases[0].write(lambda _connection: databases[1].read(lambda other: other.scalar(sa.text("SELECT 1"))))
    assert read == 1


def test_no_statement_runs_after_the_deadline_of_the_request(databases: list[Database]) -> None:
    ran: list[float] = []
    until = time.monotonic() + 0.3

    def look(connection: sa.Connection) -> None:
        while len(ran) < 1000:
            connection.execute(sa.text("SELECT 1"))
            ran.append(time.monotonic())
            time.sleep(0.01)

    with context.deadline(until):
        for transact in (databases[0].read, databases[0].write):
            with pytest.raises(exception.ServiceUnavailable):
                transact(look)
    assert 0 < len(ran) < 1000


def test_transaction_is_not_begun_after_the_deadline_of_the_request(databases: list[Database]) -> None:
    ran: list[str] = []
    with context.deadline(time.monotonic() - 1):
        for transact in (databases[0].read, databases[0].write):
            with pytest.raises(exception.ServiceUnavailable):
                transact(lambda _connection: ran.append("begun"))
    assert not ran


def test_transaction_is_repeated_however_often_it_has_failed(tmp_path: pathlib.Path,
                                                             monkeypatch: pytest.MonkeyPatch) -> None:
    """The pause between two attempts must be a number: 2 to the power of 1,024 is none."""
    monkeypatch.setattr(time, "sleep", lambda _seconds: None)
    database = Database(f"sqlite:///{tmp_path}/nova.sqlite", max_retries=1100)
    left = 1100

    def fail(connection: sa.Connection) -> int:
        nonlocal left
        left -= 1
        if left >= 0:
            raise db_exception.DBDeadlock
        return int(connection.scalar(sa.text("SELECT 1")) or 0)

    assert database.read(fail) == 1
    database.close()
