"""Queued operations on PostgreSQL and MariaDB, where transactions run concurrently."""

from __future__ import annotations

import threading
import time

import pytest

from nova.conductor.acceptance import start
from nova.db.servers import actions, servers
from nova.operations import REGISTRY
from nova.operations.framework.base import Operation, step
from nova.operations.framework.rules import Rules
from tests.unit.engine.test_engine_properties import CTX, Machine


class Slow(Operation):
    """An operation with a slow accept phase that may run concurrently with others."""

    name = action = "slow"
    rules = Rules(label="slow", beside=True)
    begun, may_go_on = threading.Event(), threading.Event()

    def accept(self, ctl, request):
        self.begun.set()
        assert self.may_go_on.wait(60)

    @step("host")
    def look(self, host):
        host.driver.guests.power_state(self.instance.uuid)


@pytest.fixture(params=["postgresql", "mariadb"])
def machine(request):
    made = Machine(request.getfixturevalue(request.param).new_database())
    REGISTRY[Slow.name] = Slow
    Slow.begun.clear()
    Slow.may_go_on.clear()
    try:
        made.furnish(0)
        made.boot(1, twice=False)
        made.calm_down()
        yield made
    finally:
        del REGISTRY[Slow.name]
        made.close()


def test_operation_accepted_while_another_one_ends_is_executed(machine):
    uuid = machine.uuids[0]
    machine.interfaces_come_and_go(0, 0, "attach")
    machine.deliver_order(0, twice=False, fails=0.0)
    accepting = threading.Thread(target=start, args=(machine.engine, CTX, uuid, Slow.name, {}))
    ending = threading.Thread(target=machine.deliver_report, args=(0,), kwargs={"twice": False})
    accepting.start()
    try:
        assert Slow.begun.wait(60)
        ending.start()
        time.sleep(1.0)  # until it waits for the accepting transaction
    finally:
        Slow.may_go_on.set()
        accepting.join()
        ending.join()
    machine.calm_down()
    found = machine.world.db.read(lambda connection: actions.index(connection, uuid, 2, None, None, None))
    assert {action.operation: action.outcome for action in found} == {
        Slow.name: "success", "attach_interface": "success"}
    assert machine.world.db.read(lambda connection: servers.get(connection, uuid)).action_uuid is None
