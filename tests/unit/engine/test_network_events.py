"""Events of an external network service for many servers do not delay other work."""

import threading

import msgspec
import pytest

from nova.conductor.acceptance import start
from nova.conductor.saga.control import ConductorControl
from nova.conductor.saga.engine import KINDS, Engine
from nova.conductor.service_events import process_network_events
from nova.db.servers import servers
from nova.network.neutron.allocator import NeutronServerInterfaces
from nova.objects.networks.network import FixedIp
from nova.objects.servers import states
from nova.objects.servers.external_event import ExternalEvent
from nova.service.fair_pool import FairThreadPool
from tests.unit.engine.test_engine_properties import CTX


@pytest.fixture(autouse=True)
def _servers(machine):
    for _time in range(2):
        machine.boot(3, twice=False)
    machine.calm_down()


def test_network_refresh_of_many_servers_does_not_delay_other_projects(machine):
    pool, gate, order = FairThreadPool(dict.fromkeys(KINDS, 1)), threading.Event(), []

    class Service:
        def __init__(self, ctl):
            self.ctl = ctl

        def refreshed(self):
            order.append("interfaces")
            return self.ctl.instance.network_info

    machine.world.allocator.of_server = Service
    engine = Engine(machine.world, pool)
    engine.in_background("other", "gate", lambda: gate.wait(60))
    process_network_events(
        engine, [ExternalEvent(name="network-changed", instance_uuid=uuid) for uuid in machine.uuids])
    engine.in_background("project", "project", lambda: order.append("project"))
    gate.set()
    pool.shutdown()
    assert sorted(order) == ["interfaces"] * len(machine.uuids) + ["project"]
    assert order.index("project") <= 1


def test_address_change_during_port_binding_is_kept(machine):
    """The network service reports the change during the binding request."""
    uuid = machine.uuids[0]
    instance = machine.row(uuid)
    changed = [FixedIp(address="10.0.0.9", version=4, prefix=28, cidr="10.0.0.0/28")]

    class Neutron:
        def has(self, ctx, extension):
            return False

        def update_port(self, ctx, port_id, wanted):
            now = [msgspec.structs.replace(vif, fixed_ips=changed) for vif in instance.network_info]
            machine.world.db.write(lambda connection: servers.update(connection, uuid, {"network_info": now}))
            return {"binding:vif_type": "ovs", "binding:vif_details": {"bound to": wanted["binding:host_id"]}}

    machine.world.allocator.of_server = lambda ctl: NeutronServerInterfaces(Neutron(), ctl)
    ctl = ConductorControl(machine.world, CTX, instance)
    ctl.outside_interfaces.bind("b")
    machine.world.db.write(ctl.apply)
    found = machine.row(uuid).network_info
    assert [(vif.details, vif.fixed_ips) for vif in found] == [({"bound to": "b"}, changed)]
    assert ctl.instance.network_info == found


# --- ports deleted in Neutron -----------------------------------------------------------------------------------
def port_is_deleted(machine):
    """Report the deletion of the port of the first server, which has a single interface."""
    vif, = machine.row().network_info
    process_network_events(
        machine.engine, [ExternalEvent(name="network-vif-deleted", instance_uuid=machine.uuids[0], tag=vif.id)])


def has_no_interface(machine):
    """Return True if neither the row nor the guest has an interface (calm_down compares row and guest)."""
    machine.calm_down()
    server = machine.row()
    return server.network_info == [] and machine.hosts[server.host].attached_interfaces[server.uuid] == set()


@pytest.mark.parametrize("delivered", [False, True], ids=["before the host detaches it", "while the host detaches it"])
def test_reset_state_still_detaches_a_deleted_port(machine, delivered):
    port_is_deleted(machine)
    if delivered:
        machine.deliver_order(fails=0.0, pick=0, twice=False)
    machine.reset_state(state="active", pick=0)
    assert has_no_interface(machine)


@pytest.mark.parametrize("busy", [False, True], ids=["alone", "behind another operation"])
@pytest.mark.parametrize("delivered", [False, True], ids=["before the host detaches it", "while the host detaches it"])
def test_soft_delete_still_detaches_a_deleted_port(machine, delivered, busy):
    """A soft delete powers the guest off and leaves its devices."""
    if busy:
        machine.operate(0, "pause")
    port_is_deleted(machine)
    if delivered:
        machine.deliver_order(fails=0.0, pick=0, twice=False)
    machine.delete_for_now(name="soft_delete", pick=0)
    assert has_no_interface(machine)
    assert machine.row().vm_state == states.SOFT_DELETED


def test_reset_state_keeps_a_queued_detachment_of_a_deleted_port(machine):
    start(machine.engine, CTX, machine.uuids[0], "pause", {})
    port_is_deleted(machine)
    machine.reset_state(state="active", pick=0)
    assert has_no_interface(machine)


@pytest.mark.parametrize("word", ["confirm_resize", "revert_resize"])
def test_deleted_port_is_detached_in_verify_resize(machine, word):
    machine.move(0, "resize", "2")
    machine.calm_down()
    assert machine.row().vm_state == states.RESIZED
    port_is_deleted(machine)
    assert has_no_interface(machine)
    assert machine.row().vm_state == states.RESIZED
    machine.move(0, word, "2")
    assert has_no_interface(machine)
    assert machine.row().vm_state == states.ACTIVE


@pytest.mark.parametrize("delivered", [0, 1, 2])
@pytest.mark.parametrize("name", ["resize", "migrate", "live_migrate", "stop", "reboot_hard", "pause"])
def test_deleted_port_is_detached_after_the_running_operation(machine, name, delivered):
    (machine.move if name in ("resize", "migrate", "live_migrate") else machine.operate)(
        0, name, *("2" if name in ("resize", "migrate", "live_migrate") else ()))
    assert machine.row().task_state
    for _step in range(delivered):
        machine.deliver_order(0, twice=False, fails=0.0)
        machine.deliver_report(0, twice=False)
    port_is_deleted(machine)
    assert has_no_interface(machine)


def test_deleted_port_is_detached_after_the_host_returns(machine):
    host = machine.row().host
    machine.host_dies(host)
    port_is_deleted(machine)
    machine.world.orders.clear()
    machine.leases_end()
    machine.hosts_return()
    assert has_no_interface(machine)


@pytest.mark.parametrize("busy", [False, True])
@pytest.mark.parametrize("name", ["reboot_hard", "evacuate"])
def test_reboot_or_evacuate_does_not_restore_a_deleted_port(machine, name, busy):
    if busy:
        machine.operate(0, "pause")
    if name == "evacuate":
        machine.host_dies(machine.row().host)
    port_is_deleted(machine)
    machine.move(0, name, "1") if name == "evacuate" else machine.operate(0, name)
    assert machine.row().task_state
    assert has_no_interface(machine)


def test_deleted_port_is_removed_from_the_row_if_detach_fails(machine):
    port_is_deleted(machine)
    machine.deliver_order(0, twice=False, fails=1.0)
    machine.deliver_all()
    assert machine.row().network_info == []
    machine.operate(0, "reboot_hard")
    assert has_no_interface(machine)


def test_port_deletion_during_server_delete_detaches_nothing(machine):
    machine.operate(0, "delete")
    port_is_deleted(machine)
    machine.calm_down()
    assert machine.row().vm_state == states.DELETED


# --- ports deleted during a build -------------------------------------------------------------------------------
@pytest.fixture
def being_built(machine):
    """Return the uuid of a new server in state building, and make it the first server of the machine."""
    machine.boot(1, twice=False)
    uuid = machine.uuids[-1]
    machine.uuids = [uuid, *machine.uuids[:-1]]
    assert machine.row().vm_state == states.BUILDING
    return uuid


@pytest.mark.parametrize("delivered", [0, 1])
def test_port_deleted_during_a_build_is_detached_afterwards(machine, being_built, delivered):
    for _order in range(delivered):
        machine.deliver_order(0, twice=False, fails=0.0)
    port_is_deleted(machine)
    machine.leases_end()
    assert machine.row().vm_state == states.BUILDING
    assert has_no_interface(machine)
    assert machine.row().vm_state == states.ACTIVE


def test_port_deleted_during_a_failing_build_is_removed_from_the_row(machine, being_built):
    port_is_deleted(machine)
    for _host in range(10):
        while machine.world.orders:
            machine.deliver_order(0, twice=False, fails=1.0)
        while machine.reports:
            machine.deliver_report(0, twice=False)
    machine.calm_down()
    assert (machine.row().vm_state, machine.row().network_info) == (states.ERROR, [])


def test_port_deleted_before_its_allocation_is_detached_after_the_build(machine, being_built):
    vif, = machine.row().network_info
    machine.world.db.write(lambda connection: servers.update(connection, being_built, {"network_info": []}))
    process_network_events(
        machine.engine, [ExternalEvent(name="network-vif-deleted", instance_uuid=being_built, tag=vif.id)])
    machine.world.db.write(lambda connection: servers.update(connection, being_built, {"network_info": [vif]}))
    assert has_no_interface(machine)


def test_delete_during_build_does_not_wait_for_a_deleted_port(machine, being_built):
    port_is_deleted(machine)
    machine.operate(0, "delete")
    machine.calm_down()
    assert machine.row().vm_state == states.DELETED
