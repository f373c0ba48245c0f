"""Superseding of moves whose compensation leaves the server on another host."""

import pytest

from nova.conductor.acceptance import start
from nova.db.servers import evictions
from nova.objects.servers import states
from tests.unit.engine.test_engine_properties import CTX


def hosts_with_a_guest(machine):
    return {name for name, guests in machine.hosts.items() if machine.uuids[0] in guests.power_states}


def came_over(machine):
    """Live-migrate the guest, lose the report, and return (source host, destination host)."""
    source = machine.row().host
    machine.move(0, "live_migrate", "1")
    while machine.uuids[0] in machine.hosts[source].power_states:
        machine.deliver_order(0, twice=False, fails=0.0)
        if machine.uuids[0] in machine.hosts[source].power_states:
            machine.deliver_report(0, twice=False)
    machine.lose_report(0)
    destination, = hosts_with_a_guest(machine)
    assert destination != source
    return source, destination


def placed(machine):
    """Evacuate the server, lose the report of the second host, and return (first host, second host)."""
    source = machine.row().host
    machine.host_dies(source)
    machine.move(0, "evacuate", "1")
    machine.deliver_order(0, twice=False, fails=0.0)
    machine.lose_report(0)
    return source, machine.row().host


def settled_on_one_host(machine):
    machine.calm_down()
    host, = hosts_with_a_guest(machine)
    assert machine.row().host == host
    return host


def test_live_migrated_server_is_not_evacuated_when_its_source_is_lost(booted):
    source, destination = came_over(booted)
    booted.host_dies(source)
    booted.move(0, "evacuate", "1")
    booted.deliver_all()
    assert hosts_with_a_guest(booted) == {destination}
    assert settled_on_one_host(booted) == destination
    assert booted.row().vm_state == states.ACTIVE


def test_second_evacuation_leaves_the_server_only_on_the_third_host(booted):
    source, second = placed(booted)
    assert second != source
    booted.host_dies(second)
    booted.move(0, "evacuate", "1")
    booted.deliver_all()
    third, = set(booted.hosts) - {source, second}
    for uuid in booted.uuids:
        booted.tell_plugged(uuid)
    booted.deliver_all()
    assert booted.row().host == third
    assert settled_on_one_host(booted) == third


@pytest.mark.parametrize(("name", "vm_state"), [
    ("stop", states.STOPPED), ("pause", states.PAUSED), ("reboot_hard", states.ACTIVE)])
def test_request_during_reset_state_of_a_migrated_server_is_executed_on_its_current_host(booted, name, vm_state):
    _source, destination = came_over(booted)
    start(booted.engine, CTX, booted.uuids[0], "reset_state", {"state": states.ACTIVE})
    start(booted.engine, CTX, booted.uuids[0], name, {})
    booted.deliver_all()
    assert (booted.row().host, booted.row().vm_state, booted.row().fault) == (destination, vm_state, None)
    assert settled_on_one_host(booted) == destination


@pytest.mark.parametrize("name", ["migrate", "live_migrate"])
def test_move_requested_during_reset_state_of_a_migrated_server_starts_on_its_current_host(booted, name):
    _source, destination = came_over(booted)
    start(booted.engine, CTX, booted.uuids[0], "reset_state", {"state": states.ACTIVE})
    start(booted.engine, CTX, booted.uuids[0], name, {})
    booted.calm_down()
    assert booted.row().fault is None
    assert settled_on_one_host(booted) == booted.row().host != destination


@pytest.mark.parametrize("name", ["migrate", "live_migrate"])
def test_move_to_the_current_host_after_a_live_migration_is_refused(booted, name):
    _source, destination = came_over(booted)
    start(booted.engine, CTX, booted.uuids[0], "reset_state", {"state": states.ACTIVE})
    start(booted.engine, CTX, booted.uuids[0], name, {"host": destination})
    booted.calm_down()
    assert f"the server is on host {destination} already" in booted.row().fault.message
    assert settled_on_one_host(booted) == destination


def test_queued_move_avoids_hosts_with_a_new_eviction(booted):
    uuid, source = booted.uuids[0], booted.row().host
    left, free = sorted(set(booted.hosts) - {source})
    start(booted.engine, CTX, uuid, "attach_interface", {})
    booted.move(0, "migrate", "1")
    booted.world.db.write(lambda connection: evictions.add(connection, uuid, left, keep_disks=False))
    booted.deliver_all()
    booted.tell_plugged(uuid)
    booted.deliver_all()
    booted.tell_plugged(uuid)
    booted.deliver_all()
    assert booted.row().vm_state == states.RESIZED
    assert booted.row().host == free
