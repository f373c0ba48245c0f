"""Conductors that read stale data from a lagging replica: reports and orders are retried, never refused as stale."""

import contextlib
import sqlite3

import pytest

from nova import exception
from nova.db.sql.engine import Database
from nova.objects.servers import states
from tests.unit.engine.test_engine_properties import CTX, HOSTS


class Behind:
    """A snapshot of the database; ``see()`` redirects reads (and writes) of the conductor to the snapshot."""

    def __init__(self, db, path):
        with contextlib.closing(sqlite3.connect(db.engine.url.database)) as connection:
            connection.execute("VACUUM INTO ?", [str(path)])
        self._db, self._copy, self._patches = db, Database(f"sqlite:///{path}"), pytest.MonkeyPatch()

    def see(self, writes=False):
        self._patches.setattr(self._db, "read", self._copy.read)
        self._patches.setattr(self._db, "lookup", self._copy.lookup)
        if writes:
            self._patches.setattr(self._db, "write", self._copy.write)

    def catch_up(self):
        self._patches.undo()

    def close(self):
        self.catch_up()
        self._copy.close()


@pytest.fixture
def fall_behind(machine, tmp_path):
    made = []

    def fall_behind():
        made.append(Behind(machine.world.db, tmp_path / "behind.sqlite"))
        return made[-1]

    yield fall_behind
    for behind in made:
        behind.close()


def test_report_newer_than_a_stale_row_is_retried(machine, fall_behind):
    machine.boot(1, twice=False)
    uuid = machine.uuids[0]
    machine.world.orders.clear()
    behind = fall_behind()
    behind.see()
    machine.leases_end()  # recovers the action from stale data and sends a new order
    [(host, order)] = machine.world.orders
    machine.world.orders.clear()
    machine.execute(host, order, fails=0.0)
    [(_host, _order, report)] = machine.reports
    for _time in range(3):
        with pytest.raises(exception.ServiceUnavailable):
            machine.engine.step_done(CTX, report)
    assert set(machine.hosts[host].power_states) == {uuid}
    behind.catch_up()
    machine.calm_down()
    found = machine.row(uuid)
    assert (found.vm_state, found.host) == (states.ACTIVE, host)


def test_order_newer_than_a_stale_row_is_confirmed_later(machine, fall_behind):
    """The conductor writes to a node that has not received the transaction of the order yet."""
    machine.boot(1, twice=False)
    [(_host, first)] = machine.world.orders
    machine.world.orders.clear()
    behind = fall_behind()
    machine.leases_end()
    [(host, order)] = machine.world.orders
    assert order.attempt > first.attempt
    behind.see(writes=True)
    with pytest.raises(exception.ServiceUnavailable):
        machine.engine.recovery.begin(order.action.uuid, order.attempt, host)
    behind.catch_up()
    machine.engine.recovery.begin(order.action.uuid, order.attempt, host)
    for other in set(HOSTS) - {host}:
        with pytest.raises(exception.StaleReport):
            machine.engine.recovery.begin(order.action.uuid, order.attempt, other)
    with pytest.raises(exception.StaleReport):
        machine.engine.recovery.begin(order.action.uuid, first.attempt, host)
