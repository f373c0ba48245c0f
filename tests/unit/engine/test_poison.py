"""Unreadable rows and late reports: no other work is delayed, and no effect is undone."""

import msgspec
import pytest
import sqlalchemy as sa

from nova import exception
from nova.conductor.acceptance import start
from nova.conductor.endpoints.by_hosts import Guests as Reports
from nova.conductor.saga import deferred_cleanup, recovery, step_executor
from nova.conf import CONF
from nova.db import tables
from nova.db.servers import actions
from nova.db.sql import clock
from nova.objects.servers import states
from nova.objects.servers.guest import GuestStatus
from nova.operations.build import Build
from nova.operations.framework.base import Cleanup, Journal
from tests.unit.engine.test_engine_properties import CTX, HOSTS

# Values of an action as written by a newer release.
POISON = {"operation": {"operation": "teleport"}, "step": {"step": "entangle"}, "data": {"payload": {"data": 1}}}


def poison(machine, uuid, queued=False, **values):
    """Set columns of the actions of a server, or of those that are queued."""
    which = tables.actions.c.queued == sa.true() if queued else sa.true()
    machine.world.db.write(lambda connection: connection.execute(
        sa.update(tables.actions).where(tables.actions.c.instance_uuid == uuid, which).values(values)))


def state(machine, uuid):
    return machine.row(uuid).vm_state


@pytest.mark.parametrize("how", ["restart", "leases"])
@pytest.mark.parametrize("what", POISON)
def test_unknown_operations_do_not_block_recovery(machine, monkeypatch, what, how):
    monkeypatch.setattr(recovery, "_PAGE", 2)
    for _number in range(6):
        machine.boot(1, twice=False)
    *unknown, known = machine.uuids
    for uuid in unknown:
        poison(machine, uuid, **POISON[what])
    machine.world.orders.clear()
    if how == "restart":
        for host in HOSTS:
            machine.restart_host(host)
    else:
        CONF.set_override("lease", 20, group="conductor")  # recovered actions are not due again at once
        machine.leases_end()
    assert {order.instance.uuid for _host, order in machine.world.orders} == {known}
    while machine.world.orders:
        machine.execute(*machine.world.orders.pop(0), fails=0.0)
    while machine.reports:
        machine.report(*machine.reports.pop(0))
    machine.interfaces_are_plugged(machine.uuids.index(known), "completed")
    assert state(machine, known) == states.ACTIVE
    assert {state(machine, uuid) for uuid in unknown} == {states.BUILDING}


def test_unknown_operation_is_refused(machine):
    machine.boot(1, twice=False)
    [uuid] = machine.uuids
    before = machine.row(uuid)
    with pytest.raises(exception.UnknownOperation, match="teleport"):
        start(machine.engine, CTX, uuid, "teleport", {})
    assert machine.row(uuid) == before


def test_order_that_crashes_its_host_is_not_repeated_forever(machine):
    """The process crashes at every attempt and is restarted."""
    machine.boot(1, twice=False)
    host, _order = machine.world.orders.pop(0)
    given = 0
    for _time in range(2 * step_executor.MAX_TRIES):
        machine.restart_host(host)
        given += len(machine.world.orders)
        machine.world.orders.clear()
    assert given == step_executor.MAX_TRIES - 1
    machine.leases_end()
    machine.calm_down()
    server = machine.row()
    assert server.vm_state == states.ACTIVE
    assert server.host != host


def test_step_that_crashes_its_conductor_is_not_repeated_forever(machine):
    class End(BaseException):
        """A crash of the process."""

    def make(uuid):
        raise End

    machine.boot(1, twice=False)
    machine.calm_down()
    machine.outside.make, ended = make, 0
    for _time in range(2 * step_executor.MAX_TRIES):
        try:
            machine.leases_end() if ended else machine.bind_outside(0, 0.0)
        except End:
            ended += 1
    assert ended == step_executor.MAX_TRIES + 1
    machine.calm_down()
    found = machine.world.db.read(lambda connection: actions.index(
        connection, machine.uuids[0], 1, None, None, None))
    assert found[0].outcome == "error"


@pytest.mark.parametrize("what", POISON)
def test_delete_of_a_server_with_an_unknown_operation(machine, what):
    machine.boot(1, twice=False)
    machine.calm_down()
    uuid = machine.uuids[0]
    machine.operate(0, "stop")
    poison(machine, uuid, **POISON[what])
    start(machine.engine, CTX, uuid, "delete", {})
    machine.calm_down()
    assert machine.row(uuid).deleted


@pytest.mark.parametrize("what", POISON)
def test_operation_ends_although_an_unknown_operation_is_queued_behind_it(machine, what):
    """Another release accepted the queued operation. A conductor of that release finds it and continues."""
    machine.boot(1, twice=False)
    machine.calm_down()
    uuid, volumes = machine.uuids[0], [machine.make_volume(), machine.make_volume()]
    for volume in volumes:
        start(machine.engine, CTX, uuid, "attach_volume", {"volume_id": volume})
    queued = machine.world.db.read(lambda connection: actions.queued(connection, uuid))[0]
    values = {column: getattr(queued, column) for column in ("operation", "step", "payload")}
    poison(machine, uuid, queued=True, **POISON[what])
    machine.deliver_all()
    assert machine.row(uuid).action_uuid is None
    assert machine.world.db.read(lambda connection: actions.get(connection, queued.uuid)).queued
    poison(machine, uuid, queued=True, **values)
    machine.leases_end()
    machine.calm_down()
    assert machine.hosts[machine.row(uuid).host].attached_volumes[uuid] == set(volumes)


def test_unexpected_recovery_errors_do_not_block_other_operations(machine, monkeypatch):
    """Actions whose recovery fails unexpectedly are retried later."""
    monkeypatch.setattr(recovery, "_PAGE", 2)
    real = Build.host_of

    def host_of(operation, step):
        if operation.instance.uuid in odd:
            raise KeyError("what nobody expects")
        return real(operation, step)

    for _number in range(6):
        machine.boot(1, twice=False)
    *odd, good = machine.uuids
    machine.world.orders.clear()
    monkeypatch.setattr(Build, "host_of", host_of)
    CONF.set_override("lease", 20, group="conductor")
    machine.leases_end()
    assert {order.instance.uuid for _host, order in machine.world.orders} == {good}


def test_power_report_from_before_a_reboot_does_not_stop_the_guest(machine):
    machine.boot(1, twice=False)
    machine.calm_down()
    uuid = machine.uuids[0]
    host = machine.row(uuid).host
    late = GuestStatus(uuid=uuid, power_state=states.SHUTDOWN)
    machine.operate(0, "reboot_hard")
    machine.calm_down()
    Reports(machine.world, machine.engine).power_states(CTX, host, [late])
    machine.calm_down()
    assert state(machine, uuid) == states.ACTIVE
    assert machine.hosts[host].power_states == {uuid: states.RUNNING}


def test_effects_of_an_earlier_attempt_are_undone_if_a_retry_fails_early(machine, caplog):
    """The host crashes after the build of the guest but before its report, and its retry fails at the first step."""
    machine.boot(1, twice=False)
    uuid = machine.uuids[0]
    host, _order = machine.world.orders[0]
    machine.deliver_order(0, twice=False, fails=0.0)
    machine.lose_report(0)
    machine.restart_host(host)
    [(_host, order)] = machine.world.orders
    machine.world.orders.clear()
    machine.seen[host].clear()
    machine.chance.random = lambda: 0.0
    machine.execute(host, order, fails=0.5)
    del machine.chance.random
    machine.deliver_report(0, twice=False)
    assert "Operation create failed at network on" in caplog.text
    machine.calm_down()
    server = machine.row(uuid)
    assert server.vm_state == states.ACTIVE
    assert {name for name, guests in machine.hosts.items() if uuid in guests.power_states} == {server.host} != {host}


def test_unreadable_cleanups_do_not_block_other_cleanups(machine, monkeypatch):
    monkeypatch.setattr(deferred_cleanup, "_PAGE", 2)
    for _number in range(3):
        machine.boot(1, twice=False)
    machine.calm_down()
    cleanup = msgspec.to_builtins(Journal(interrupted=Cleanup(operation="gone", step="s")))
    for uuid, payload in zip(machine.uuids, ({"owed": 1}, {"owed": 1}, cleanup), strict=True):
        poison(machine, uuid, outcome="superseded", lease_until=clock.after(-60), payload=payload)
    for _look in range(3):
        machine.engine.recovery._cleanup.run_due()
    left = machine.world.db.read(lambda connection: list(connection.execute(
        sa.select(tables.actions.c.instance_uuid, tables.actions.c.lease_until))))
    assert {uuid for uuid, until in left if until is not None} == set(machine.uuids[:2])
