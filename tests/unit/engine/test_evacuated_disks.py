"""Disks of evacuated servers: disks on shared storage survive every interruption of the evacuation."""

import pytest

from nova import conf
from nova.conductor.acceptance import start
from nova.conductor.endpoints.by_hosts import Guests as Reports
from nova.conf import CONF
from nova.db.servers import evictions, server_migrations
from nova.objects.servers import migration as migration_states
from nova.objects.servers import states
from tests.unit.engine.test_engine_properties import CTX
from tests.unit.engine.test_moves import InOrder


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
    """Return the token of the disk of the server on host a, or None."""
    disk = machine.hosts["a"].disk(machine.uuids[0])
    return disk and disk.token


def deliver_until(machine, step):
    """Execute orders until the given step, lose its report, and return the host."""
    while True:
        machine.deliver_order(0, twice=False, fails=0.0)
        if machine.reports[0][2].step == step:
            return machine.reports.pop(0)[0]
        machine.deliver_report(0, twice=False)


def carry_on(machine):
    """Run all work that is possible without the hosts that are down."""
    for _round in range(10):
        machine.deliver_all()
        for uuid in machine.uuids:
            machine.tell_plugged(uuid)


def come_back(machine, source):
    machine.down.discard(source)
    machine.restart_host(source)
    machine.mark(source, forced_down=False)
    carry_on(machine)


def test_interrupted_evacuation_keeps_disks_on_shared_storage(shared, machine):
    before = disk_of(machine)
    machine.host_dies(machine.row().host)
    machine.move(0, "evacuate", "1")
    deliver_until(machine, "start")
    start(machine.engine, CTX, machine.uuids[0], "reset_state", {"state": states.ERROR})
    carry_on(machine)
    assert disk_of(machine) == before is not None


def test_retried_evacuation_does_not_treat_its_own_disks_as_shared(machine):
    source = machine.row().host
    machine.host_dies(source)
    machine.move(0, "evacuate", "1")
    host = deliver_until(machine, "start")
    machine.restart_host(host)
    carry_on(machine)
    assert machine.row().host == host
    come_back(machine, source)
    assert machine.hosts[source].disk(machine.uuids[0]) is None


def test_evacuation_during_migration_keeps_set_aside_shared_disks(shared, machine):
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


def test_eviction_updated_during_its_execution_is_executed_again(machine):
    """The host has removed the guest and retained its disks when the second eviction allows removal of the disks."""
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


def test_evacuation_during_a_resize_on_the_same_host_restores_the_original_disks(shared, machine):
    """The copy at the place of the disks may be incomplete, and nothing removes the disks that were renamed."""
    before, source = disk_of(machine), machine.row().host
    machine.world.scheduler = InOrder(machine.world, machine.chance)
    machine.world.scheduler.hosts = source
    CONF.set_override("allow_resize_to_same_host", True)
    machine.move(0, "resize", "2")
    CONF.clear_override("allow_resize_to_same_host")
    deliver_until(machine, "receive")
    assert disk_of(machine) not in (None, before)
    machine.host_dies(source)
    machine.world.scheduler.hosts = "b" if source == "a" else "a"
    machine.move(0, "evacuate", "1")
    machine.leases_end()
    carry_on(machine)
    assert machine.row().host == machine.world.scheduler.hosts
    for _returned in range(2):
        assert disk_of(machine) == before
        assert machine.hosts["a"].disk(machine.uuids[0], aside=True) is None
        come_back(machine, source)
    assert machine.row().flavor.vcpus == 1
