"""Rows that this release cannot read, and reports that come late: they hold up nothing and undo nothing."""

import pytest
import sqlalchemy as sa

from nova.conductor.endpoints.guests import Guests as Reports
from nova.db import models, servers
from nova.objects import states
from nova.objects.guest import GuestStatus
from tests.unit.engine.test_engine_properties import CTX, HOSTS, Machine


@pytest.fixture
def machine():
    made = Machine()
    try:
        made.furnish(0)
        yield made
    finally:
        made.close()


def poison(machine, uuid):
    """The operation of this server is one of a release that is to come."""
    machine.world.db.write(lambda connection: connection.execute(
        sa.update(models.actions).where(models.actions.c.instance_uuid == uuid).values(operation="teleport")))


def state(machine, uuid):
    return machine.world.db.read(lambda connection: servers.get(connection, uuid)).vm_state


@pytest.mark.parametrize("how", ["restart", "leases"])
def test_operations_that_this_release_does_not_know_hold_up_no_others(machine, how):
    for _number in range(6):
        machine.boot(1, twice=False)
    *unknown, known = machine.uuids
    for uuid in unknown:
        poison(machine, uuid)
    machine.world.orders.clear()
    if how == "restart":
        for host in HOSTS:
            machine.restart_host(host)
    else:
        machine.leases_end()
    assert {order.instance.uuid for _host, order in machine.world.orders} == {known}
    while machine.world.orders:
        machine.execute(*machine.world.orders.pop(0), fails=0.0)
    while machine.reports:
        machine.report(*machine.reports.pop(0))
    machine.interfaces_are_plugged(machine.uuids.index(known), "completed")
    assert state(machine, known) == states.ACTIVE
    assert {state(machine, uuid) for uuid in unknown} == {states.BUILDING}


def test_a_power_report_from_before_a_reboot_stops_no_guest(machine):
    machine.boot(1, twice=False)
    machine.calm_down()
    uuid = machine.uuids[0]
    host = machine.world.db.read(lambda connection: servers.get(connection, uuid)).host
    late = GuestStatus(uuid=uuid, power_state=states.SHUTDOWN)
    machine.operate(0, "reboot_hard")
    machine.calm_down()
    Reports(machine.world, machine.engine).power_states(CTX, host, [late])
    machine.calm_down()
    assert state(machine, uuid) == states.ACTIVE
    assert machine.hosts[host].power == {uuid: states.RUNNING}
