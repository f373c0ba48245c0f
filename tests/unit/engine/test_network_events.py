"""Events of an external network service for many servers do not delay other work."""

import threading

import msgspec
import pytest

from nova.conductor.acceptance import start
from nova.conductor.network_events import process
from nova.conductor.saga.control import ConductorControl
from nova.conductor.saga.engine import KINDS, Engine
from nova.db.servers import servers
from nova.network.neutron.server_interfaces import NeutronServerInterfaces
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


def test_a_project_does_not_wait_for_the_interfaces_of_all_servers(machine):
    pool, gate, order = FairThreadPool(dict.fromkeys(KINDS, 1)), threading.Event(), []

    class Service:
        def __init__(self, ctl):
            self.ctl = ctl

        def refreshed(self):
            order.append("interfaces")
            return self.ctl.instance.network_info

    machine.world.allocator.of_server = Service
    engine = Engine(machine.world, pool)
    engine.in_background("other", lambda: gate.wait(60))
    process(engine, [ExternalEvent(name="network-changed", instance_uuid=uuid) for uuid in machine.uuids])
    engine.in_background("project", lambda: order.append("project"))
    gate.set()
    pool.shutdown()
    assert sorted(order) == ["interfaces"] * len(machine.uuids) + ["project"]
    assert order.index("project") <= 1


def test_addresses_that_change_while_an_interface_is_bound_elsewhere_are_kept(machine):
    """The service tells of them while it is asked for the binding."""
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


# --- a port that its owner has deleted --------------------------------------------------------------------------
def port_is_deleted(machine):
    """The service tells it of the first server's only interface."""
    vif, = machine.row().network_info
    process(machine.engine, [ExternalEvent(name="network-vif-deleted", instance_uuid=machine.uuids[0], tag=vif.id)])


def has_no_interface(machine):
    """Neither in its row nor in its guest (calm_down compares them)."""
    machine.calm_down()
    server = machine.row()
    return server.network_info == [] and machine.hosts[server.host].attached_interfaces[server.uuid] == set()


@pytest.mark.parametrize("delivered", [False, True], ids=["before the host detaches it", "while the host detaches it"])
def test_reset_state_does_not_leave_the_interface_of_a_deleted_port_in_the_guest(machine, delivered):
    port_is_deleted(machine)
    if delivered:
        machine.deliver_order(fails=0.0, pick=0, twice=False)
    machine.reset_state(state="active", pick=0)
    assert has_no_interface(machine)


def test_reset_state_does_not_end_the_detachment_that_waits_for_another_operation(machine):
    start(machine.engine, CTX, machine.uuids[0], "pause", {})
    port_is_deleted(machine)
    machine.reset_state(state="active", pick=0)
    assert has_no_interface(machine)


@pytest.mark.parametrize("word", ["confirm_resize", "revert_resize"])
def test_a_deleted_port_is_detached_from_a_server_that_waits_for_a_word(machine, word):
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
def test_a_deleted_port_is_detached_when_what_is_being_done_is_done(machine, name, delivered):
    (machine.move if name in ("resize", "migrate", "live_migrate") else machine.operate)(
        0, name, *("2" if name in ("resize", "migrate", "live_migrate") else ()))
    assert machine.row().task_state
    for _step in range(delivered):
        machine.deliver_order(0, twice=False, fails=0.0)
        machine.deliver_report(0, twice=False)
    port_is_deleted(machine)
    assert has_no_interface(machine)


def test_a_deleted_port_is_detached_when_the_host_is_back(machine):
    host = machine.row().host
    machine.host_dies(host)
    port_is_deleted(machine)
    machine.world.orders.clear()
    machine.leases_end()
    machine.hosts_return()
    assert has_no_interface(machine)


@pytest.mark.parametrize("busy", [False, True])
@pytest.mark.parametrize("name", ["reboot_hard", "evacuate"])
def test_what_takes_a_server_over_does_not_bring_a_deleted_port_back(machine, name, busy):
    if busy:
        machine.operate(0, "pause")
    if name == "evacuate":
        machine.host_dies(machine.row().host)
    port_is_deleted(machine)
    machine.move(0, name, "1") if name == "evacuate" else machine.operate(0, name)
    assert machine.row().task_state
    assert has_no_interface(machine)


def test_a_deleted_port_is_not_the_servers_though_the_guest_does_not_let_go_of_it(machine):
    port_is_deleted(machine)
    machine.deliver_order(0, twice=False, fails=1.0)
    machine.deliver_all()
    assert machine.row().network_info == []
    machine.operate(0, "reboot_hard")
    assert has_no_interface(machine)


def test_of_a_server_that_is_being_deleted_nothing_is_detached(machine):
    machine.operate(0, "delete")
    port_is_deleted(machine)
    machine.calm_down()
    assert machine.row().vm_state == states.DELETED


# --- while the server is being built -----------------------------------------------------------------------------
@pytest.fixture
def being_built(machine):
    """The first server's row comes last: it has been accepted, no more."""
    machine.boot(1, twice=False)
    uuid = machine.uuids[-1]
    machine.uuids = [uuid, *machine.uuids[:-1]]
    assert machine.row().vm_state == states.BUILDING
    return uuid


@pytest.mark.parametrize("delivered", [0, 1])
def test_a_port_that_is_deleted_during_the_build_is_detached_after_it(machine, being_built, delivered):
    for _order in range(delivered):
        machine.deliver_order(0, twice=False, fails=0.0)
    port_is_deleted(machine)
    machine.leases_end()
    assert machine.row().vm_state == states.BUILDING
    assert has_no_interface(machine)
    assert machine.row().vm_state == states.ACTIVE


def test_a_port_that_is_deleted_during_a_build_that_fails_is_in_nobodys_way(machine, being_built):
    port_is_deleted(machine)
    for _host in range(10):
        while machine.world.orders:
            machine.deliver_order(0, twice=False, fails=1.0)
        while machine.reports:
            machine.deliver_report(0, twice=False)
    machine.calm_down()
    assert (machine.row().vm_state, machine.row().network_info) == (states.ERROR, [])


def test_a_port_that_is_deleted_before_the_build_has_it_is_detached_after_it(machine, being_built):
    vif, = machine.row().network_info
    machine.world.db.write(lambda connection: servers.update(connection, being_built, {"network_info": []}))
    process(machine.engine, [ExternalEvent(name="network-vif-deleted", instance_uuid=being_built, tag=vif.id)])
    machine.world.db.write(lambda connection: servers.update(connection, being_built, {"network_info": [vif]}))
    assert has_no_interface(machine)


def test_a_server_that_is_deleted_while_it_is_built_waits_for_no_port(machine, being_built):
    port_is_deleted(machine)
    machine.operate(0, "delete")
    machine.calm_down()
    assert machine.row().vm_state == states.DELETED
