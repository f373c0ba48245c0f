"""Who takes a server over from an operation: what that one did is undone, all of it, and nothing of anybody else."""

import pytest

from nova.conductor.acceptance import start
from nova.db import servers
from nova.objects import states
from tests.unit.engine.test_engine_properties import CTX, Machine


@pytest.fixture
def machine():
    made = Machine()
    try:
        made.furnish(0)
        made.boot(1, twice=False)
        yield made
    finally:
        made.close()


def server_of(machine):
    return machine.world.db.read(lambda connection: servers.get(connection, machine.uuids[0], deleted=True))


def carry_on(machine):
    """Orders are delivered and reports come until there are none."""
    while machine.world.orders or machine.reports:
        while machine.world.orders:
            machine.execute(*machine.world.orders.pop(0), fails=0.0)
        while machine.reports:
            machine.report(*machine.reports.pop(0))


# --- what a host had done before it could tell -----------------------------------------------------------
def test_a_guest_that_was_started_before_its_host_could_tell_goes_when_the_build_is_superseded(machine):
    machine.deliver_order(0, twice=False, fails=0.0)
    [(host, _order, _report)] = machine.reports
    machine.lose_report(0)
    start(machine.engine, CTX, machine.uuids[0], "reset_state", {"state": states.ERROR})
    carry_on(machine)
    assert machine.hosts[host].power == {}
    assert server_of(machine).host is None


def test_an_evacuated_guest_goes_from_its_new_host_when_the_evacuation_is_superseded(machine):
    machine.calm_down()
    source = server_of(machine).host
    machine.host_dies(source)
    machine.move(0, "evacuate", "1")
    machine.deliver_order(0, twice=False, fails=0.0)
    machine.lose_report(0)
    start(machine.engine, CTX, machine.uuids[0], "reset_state", {"state": states.ACTIVE})
    carry_on(machine)
    machine.hosts_return()
    carry_on(machine)
    assert {host for host, guests in machine.hosts.items() if guests.power} == {source} == {server_of(machine).host}
