"""Servers that move while hosts come and go, or that were to come up when something else came first."""

import pytest

from nova.db import evictions
from nova.objects import states


@pytest.mark.parametrize(("name", "vm_state"), [("pause", states.PAUSED), ("stop", states.STOPPED)])
def test_a_server_is_as_a_failed_action_left_its_guest(booted, name, vm_state):
    booted.operate(0, name)
    booted.deliver_order(0, twice=False, fails=1.0)
    booted.calm_down()
    server = booted.row()
    assert (server.vm_state, server.fault.code) == (vm_state, 500)


def test_a_build_that_comes_after_the_delete_that_came_in_between_leaves_no_guest(machine):
    """The host has destroyed already, and its report of that is under way, when the order to build arrives."""
    machine.boot(1, twice=False)
    machine.operate(0, "delete")
    assert [(order.action.operation, order.undo) for _host, order in machine.world.orders] == [
        ("build", False), ("build", True)]  # the delete compensates for the build first
    machine.deliver_order(1, twice=False, fails=0.0)
    machine.deliver_order(0, twice=False, fails=0.0)
    if len(machine.reports) > 1:
        machine.deliver_report(1, twice=False)
    machine.calm_down()


def test_a_server_whose_host_was_given_up_in_the_middle_of_a_move_can_be_started_again(booted):
    uuid = booted.uuids[0]
    booted.move(0, "migrate", "1")
    booted.deliver_order(0, twice=False, fails=0.0)
    host = next(host for host, guests in booted.hosts.items() if guests.disk(uuid, aside=True))
    booted.lose_report(0)
    booted.host_dies(host)
    booted.leases_end()
    booted.calm_down()
    server = booted.row()
    assert (server.host, server.vm_state) == (host, states.ACTIVE)
    assert booted.hosts[host].power == {uuid: states.RUNNING}


@pytest.mark.parametrize("name", ["migrate", "live_migrate", "evacuate"])
def test_a_move_ends_though_its_scheduler_offers_full_hosts_again_and_again(machine, name):
    for _time in range(3):
        machine.boot(3, twice=False)
    machine.calm_down()
    server = machine.row()
    assert server.vm_state == states.ACTIVE
    if name == "evacuate":
        machine.host_dies(server.host)
    machine.move(0, name, "1")
    machine.calm_down()
    after = machine.row()
    assert (after.host, after.task_state) == (server.host, None)
    assert "has no room" in after.fault.message


def test_a_guest_is_known_to_run_on_though_the_host_that_it_was_to_move_to_is_given_up(booted):
    destination = begin_live_migration(booted)
    booted.host_dies(destination)
    booted.leases_end()
    server = booted.row()
    assert server.host != destination
    assert server.power_state == states.RUNNING


def test_a_guest_that_came_over_before_its_new_host_was_given_up_is_the_new_hosts_alone(booted):
    """The old host, which is up, removes what it still has of it now: not when it compares its guests next."""
    uuid, source = booted.uuids[0], booted.row().host
    destination = begin_live_migration(booted)
    while booted.row().host == source:
        booted.deliver_order(0, twice=False, fails=0.0)
        booted.deliver_report(0, twice=False)
    booted.lose_order(0)
    booted.host_dies(destination)
    booted.leases_end()
    booted.deliver_all()
    assert {host for host, guests in booted.hosts.items() if uuid in guests.traces()} == {destination}
    server = booted.row()
    assert (server.host, server.vm_state, server.task_state) == (destination, states.ERROR, None)
    booted.books_balance_at_every_moment()
    assert booted.world.db.read(lambda connection: evictions.hosts(connection, uuid)) == []


def begin_live_migration(machine):
    """The server's host has described it; returns the host that is to make room for it."""
    machine.move(0, "live_migrate", "1")
    machine.deliver_order(0, twice=False, fails=0.0)
    machine.deliver_report(0, twice=False)
    (destination, _order), = machine.world.orders
    return destination
