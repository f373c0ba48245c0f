"""The disks of a server that is evacuated: those on shared storage are its own, whatever happens in the middle."""

import pytest

from nova import conf
from nova.conductor.acceptance import start
from nova.conductor.endpoints.by_hosts import Guests as Reports
from nova.conf import CONF
from nova.db.servers import evictions, server_migrations
from nova.objects.servers import migration as migration_states
from nova.objects.servers import states
from tests.unit.engine.test_engine_properties import CTX


@pytest.fixture(name="machine")
def _machine(machine):
    conf.register()
    machine.boot(1, twice=False)
    carry_on(machine)
    return machine


@pytest.fixture
def shared(tmp_path):
    conf.register()
    (tmp_path / "disks").mkdir()
    CONF.set_override("shared_storage", True, group="fake")
    CONF.set_override("directory", str(tmp_path), group="fake")
    yield
    CONF.clear_override("shared_storage", group="fake")
    CONF.clear_override("directory", group="fake")


def disk_of(machine):
    """Return the token of the disk, or None."""
    disk = machine.hosts["a"].disk(machine.uuids[0])
    return disk and disk.token


def deliver_until(machine, step):
    """The host runs its order that ends with this step, and does not come to tell."""
    while True:
        machine.deliver_order(0, twice=False, fails=0.0)
        if machine.reports[0][2].step == step:
            return machine.reports.pop(0)[0]
        machine.deliver_report(0, twice=False)


def carry_on(machine):
    """Run until everything is done that is possible without the hosts that are down."""
    for _round in range(10):
        machine.deliver_all()
        for uuid in machine.uuids:
            machine.tell_plugged(uuid)


def come_back(machine, source):
    machine.down.discard(source)
    machine.restart_host(source)
    machine.mark(source, forced_down=False)
    carry_on(machine)


def test_disks_on_shared_storage_outlive_an_evacuation_that_ends_before_its_host_tells_of_them(shared, machine):
    before = disk_of(machine)
    machine.host_dies(machine.row().host)
    machine.move(0, "evacuate", "1")
    deliver_until(machine, "start")
    start(machine.engine, CTX, machine.uuids[0], "reset_state", {"state": states.ERROR})
    carry_on(machine)
    assert disk_of(machine) == before is not None


def test_disks_that_the_new_host_has_made_are_not_taken_for_shared_ones_when_it_tries_again(machine):
    source = machine.row().host
    machine.host_dies(source)
    machine.move(0, "evacuate", "1")
    host = deliver_until(machine, "start")
    machine.restart_host(host)
    carry_on(machine)
    assert machine.row().host == host
    come_back(machine, source)
    assert machine.hosts[source].disk(machine.uuids[0]) is None


def test_disks_that_a_move_set_aside_on_shared_storage_are_those_of_the_evacuated_server(shared, machine):
    before, source = disk_of(machine), machine.row().host
    machine.move(0, "migrate", "1")
    deliver_until(machine, "move_out")
    machine.host_dies(source)
    machine.leases_end()
    carry_on(machine)
    assert disk_of(machine) is None
    machine.move(0, "evacuate", "1")
    carry_on(machine)
    assert machine.row().host != source
    assert disk_of(machine) == before
    come_back(machine, source)
    assert machine.row().vm_state in (states.ACTIVE, states.STOPPED)
    assert disk_of(machine) == before


def test_a_word_that_came_while_an_earlier_one_was_carried_out_is_carried_out_too(machine):
    """The host has removed the guest and kept its disks when it is said that these may go."""
    server = machine.row()
    guests, source = Reports(machine.world, machine.engine), server.host
    machine.host_dies(source)
    machine.move(0, "evacuate", "1")
    carry_on(machine)
    assert machine.row().host != source
    machine.world.db.write(lambda connection: evictions.add(connection, server.uuid, source, keep_disks=True))
    first, = guests.evictions(CTX, source, 100, None)
    machine.world.db.write(lambda connection: evictions.add(connection, server.uuid, source, keep_disks=False))
    machine.remove(source, first)
    assert [(left.uuid, left.keep_disks) for left in guests.evictions(CTX, source, 100, None)] == [(server.uuid, False)]
    assert migration(machine).status == migration_states.DONE
    come_back(machine, source)
    assert guests.evictions(CTX, source, 100, None) == []
    assert migration(machine).status == migration_states.COMPLETED
    assert server.uuid not in machine.hosts[source].guests.traces()


def migration(machine):
    return machine.world.db.read(lambda connection: server_migrations.newest(
        connection, machine.uuids[0], [migration_states.DONE, migration_states.COMPLETED]))
