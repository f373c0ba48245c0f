"""Recovery of lost work of any amount and owner, and after errors that follow the commit."""

import collections
import contextlib
import typing

import pytest
import sqlalchemy as sa

from nova import exception
from nova.conductor.acceptance import start
from nova.conductor.saga import recovery, step_executor
from nova.conf import CONF
from nova.db import tables
from nova.objects.servers import states
from nova.operations import REGISTRY
from nova.operations.framework.base import step
from nova.operations.framework.rules import Rules
from tests.unit.engine.test_engine_properties import CTX
from tests.unit.engine.world import Bind


def server(machine, uuid):
    return machine.row(uuid)


def claims(machine):
    """Return the nodes with claims of each consumer."""
    found = collections.defaultdict(set)
    table = tables.allocations
    for row in machine.world.db.read(lambda connection: connection.execute(
            sa.select(table.c.consumer_uuid, table.c.provider_uuid)).all()):
        found[row.consumer_uuid].add(row.provider_uuid)
    return found


def outcomes(machine, uuid):
    table = tables.actions
    return machine.world.db.read(lambda connection: list(connection.scalars(
        sa.select(table.c.outcome).where(table.c.instance_uuid == uuid).order_by(table.c.id))))


# --- after the commit --------------------------------------------------------------------------------
@pytest.mark.parametrize("what", ["orders", "usage", "threads"])
def test_error_after_the_commit_causes_no_undo_and_no_second_claim(machine, monkeypatch, what):
    """A failing recipient of committed changes must not cause a second build or claim of the server."""
    broken = True

    def fail():
        if broken:
            raise RuntimeError("can't start new thread" if what == "threads" else "the bus is broken")

    def failing(real):
        def call(*args, **kwargs):
            fail()
            return real(*args, **kwargs)

        return call

    if what == "orders":
        monkeypatch.setattr(machine.world, "compute_at", failing(machine.world.compute_at))
    elif what == "usage":
        monkeypatch.setattr(machine.world, "usage", type("Broken", (), {"touch": lambda _self, _nodes: fail()})())
    else:
        monkeypatch.setattr(machine.engine._pool, "submit", failing(machine.engine._pool.submit), raising=False)
    machine.boot(1, twice=False)
    uuid = machine.uuids[0]
    for _look in range(3):
        machine.leases_end()
        assert server(machine, uuid).vm_state == states.BUILDING
        assert len(claims(machine)[uuid]) <= 1
    broken = False
    machine.calm_down()
    assert (server(machine, uuid).vm_state, server(machine, uuid).fault) == (states.ACTIVE, None)
    assert len(claims(machine)[uuid]) == 1
    assert [uuid in guests.power_states for guests in machine.hosts.values()].count(True) == 1


# --- expired leases ----------------------------------------------------------------------------------
@contextlib.contextmanager
def long_leases():
    """Lengthen leases, so that recovered actions are not recovered again at once."""
    CONF.set_override("lease", 20, group="conductor")
    try:
        yield
    finally:
        CONF.set_override("lease", 0, group="conductor")


def test_recovery_takes_over_all_pages_of_lost_actions(machine, monkeypatch):
    """Complete pages may consist of operations that only a newer release supports."""
    monkeypatch.setattr(recovery, "_PAGE", 2)
    for _number in range(9):
        machine.boot(1, twice=False)
    unknown, known = machine.uuids[:4], machine.uuids[4:]
    machine.world.db.write(lambda connection: connection.execute(
        sa.update(tables.actions).where(tables.actions.c.instance_uuid.in_(unknown)).values(operation="teleport")))
    machine.world.orders.clear()
    with long_leases():
        assert machine.engine.recovery.recover() == 9
    assert sorted(order.instance.uuid for _host, order in machine.world.orders) == sorted(known)


def test_action_without_owner_is_recovered_while_hosts_are_unreachable(machine, monkeypatch):
    def away(_ctx, _spec):
        raise exception.ServiceUnavailable("No scheduler answers.")

    with monkeypatch.context() as patched:
        patched.setattr(machine.world.scheduler, "select", away)
        machine.boot(1, twice=False)
    owner = machine.world.db.read(lambda connection: connection.scalar(sa.select(tables.actions.c.owner)))
    assert owner is None
    monkeypatch.setattr(step_executor, "_PAUSE", 0)
    with long_leases():
        assert machine.engine.recovery.recover(reach_hosts=False) == 1
    assert [order.instance.uuid for _host, order in machine.world.orders] == machine.uuids


# --- attempts ----------------------------------------------------------------------------------------
def lose_orders(machine, times):
    """Lose the order the given number of times; its lease expires each time."""
    for _time in range(times):
        machine.world.orders.clear()
        machine.leases_end()


def do_next(machine):
    """Execute the oldest order and deliver its report."""
    machine.deliver_order(0, twice=False, fails=0.0)
    machine.deliver_report(0, twice=False)


def test_report_of_an_older_attempt_is_refused(machine):
    """The report is in transit while the lease ends and the same step is sent to the same host again."""
    machine.boot(1, twice=False)
    machine.deliver_order(0, twice=False, fails=0.0)
    [(host, _order, report)] = machine.reports
    machine.reports.clear()
    machine.leases_end()
    assert [other for other, _order in machine.world.orders] == [host]
    with pytest.raises(exception.StaleReport):
        machine.engine.step_done(CTX, report)
    assert server(machine, machine.uuids[0]).vm_state == states.BUILDING
    machine.calm_down()
    assert server(machine, machine.uuids[0]).vm_state == states.ACTIVE


def test_attempts_are_counted_per_step(machine):
    """Orders of a migration are lost several times each, in total more often than the limit per step."""
    machine.boot(1, twice=False)
    machine.calm_down()
    uuid = machine.uuids[0]
    machine.move(0, "migrate", "1")
    orders = 0
    while machine.world.orders:
        lose_orders(machine, step_executor.MAX_TRIES - 2)
        do_next(machine)
        machine.tell_plugged(uuid)
        orders += 1
    assert orders * (step_executor.MAX_TRIES - 2) > step_executor.MAX_TRIES
    assert (server(machine, uuid).vm_state, server(machine, uuid).fault) == (states.RESIZED, None)


def test_action_recovered_a_thousand_times_completes(machine):
    machine.boot(1, twice=False)
    machine.world.db.write(lambda connection: connection.execute(sa.update(tables.actions).values(attempt=1000)))
    machine.world.orders.clear()
    machine.calm_down()
    assert server(machine, machine.uuids[0]).vm_state == states.ACTIVE


def test_abandoned_build_leaves_no_claim(machine):
    machine.boot(1, twice=False)
    uuid = machine.uuids[0]
    lose_orders(machine, 10 * step_executor.MAX_TRIES)
    found = server(machine, uuid)
    assert (found.vm_state, found.host, found.fault.code) == (states.ERROR, None, 500)
    assert outcomes(machine, uuid) == ["error"]
    assert claims(machine)[uuid] == set()


def test_abandoned_operation_leaves_the_server_active(machine):
    machine.boot(1, twice=False)
    machine.calm_down()
    uuid = machine.uuids[0]
    before = claims(machine)[uuid]
    machine.operate(0, "pause")
    lose_orders(machine, step_executor.MAX_TRIES + 1)
    found = server(machine, uuid)
    assert (found.vm_state, found.task_state) == (states.ACTIVE, None)
    assert outcomes(machine, uuid) == ["success", "error"]
    assert claims(machine)[uuid] == before != set()


# --- operations that waited behind a build ---------------------------------------------------------------
class FollowBuild(Bind):
    """An operation beside others, which is accepted while the server is built."""

    name = action = "follow_build"
    rules = Rules(label="follow", launched=False, task_states=None, beside=True)
    hosts: typing.ClassVar[list[str]] = []

    @step("host")
    def use(self, host):
        self.hosts.append(host.driver.host)


def test_operation_that_waited_behind_a_build_runs_on_the_host_on_which_the_build_succeeded(machine, monkeypatch):
    monkeypatch.setitem(REGISTRY, FollowBuild.name, FollowBuild)
    monkeypatch.setattr(FollowBuild, "hosts", [])
    machine.boot(1, twice=False)
    first = machine.row().host
    start(machine.engine, CTX, machine.uuids[0], FollowBuild.name, {})
    machine.deliver_order(0, twice=False, fails=1.0)
    machine.calm_down()
    assert machine.row().host != first
    assert FollowBuild.hosts == [machine.row().host]
