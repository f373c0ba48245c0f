"""Who writes to SQLite waits in a line."""

import threading
import time

import pytest
import sqlalchemy as sa

from nova.db.engine import Database
from nova.db.line import Line


@pytest.fixture
def databases(tmp_path):
    """Two of one file, as a conductor has them."""
    made = [Database(f"sqlite:///{tmp_path}/one.sqlite") for _number in range(2)]
    yield made
    for database in made:
        database.close()


def test_who_writes_to_sqlite_has_his_turn_in_the_order_of_coming(databases):
    order, begun, go = [], threading.Event(), threading.Event()

    def hold(_connection):
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
        while databases[1].line.waiting <= number:
            assert time.monotonic() < end
            time.sleep(0.005)
    go.set()
    for thread in threads:
        thread.join(60)
    assert order == list(range(12))


def test_who_reads_sqlite_does_not_wait_for_who_writes(databases):
    read = databases[0].write(lambda _connection: databases[1].read(lambda other: other.scalar(sa.text("SELECT 1"))))
    assert read == 1


def test_who_has_waited_long_enough_goes_on_and_holds_up_nobody():
    line, passed = Line(), []
    with line.turn(0), line.turn(0.01):
        passed.append("impatient")
    with line.turn(0):
        passed.append("next")
    assert passed == ["impatient", "next"]
    assert line.waiting == 0
