"""Ports of Neutron when servers move: their bindings follow the server, also after failures."""

import threading

import pytest

from nova import exception
from nova.network.neutron.allocator import NeutronAllocator
from tests.functional.client import wait_for
from tests.functional.networks.conftest import plug
from tests.functional.servers.test_interfaces import attached
from tests.functional.several_hosts import migration_of, newest_action, set_service, wait_scheduler


def test_migration_and_revert_move_the_port_binding(suite, admin, neutron, second, server):
    source = admin.server(server)["OS-EXT-SRV-ATTR:host"]
    other = ({suite.compute.host, second.host} - {source}).pop()
    admin.action(server, "migrate")
    wait_for(lambda: [port["binding:host_id"] for port in neutron.ports()] == [other])
    plug(admin, neutron, server)
    admin.wait(server, "VERIFY_RESIZE")
    admin.action(server, "revertResize")
    admin.wait(server, "ACTIVE")
    assert [port["binding:host_id"] for port in neutron.ports()] == [source]


def test_late_binding_of_a_superseded_migration_is_reverted(suite, admin, neutron, second, server):
    source = admin.server(server)["OS-EXT-SRV-ATTR:host"]
    other = ({suite.compute.host, second.host} - {source}).pop()
    port, = neutron.ports()
    hosts = []

    def late(answer):
        admin.action(server, "os-resetState", {"state": "active"})
        wait_for(lambda: neutron.ports()[0]["binding:host_id"] == source, 20,
                 "the port is bound to the source host again")
        hosts.append(source)
        neutron.rows["ports"][port["id"]]["binding:host_id"] = other
        return answer

    neutron.twists["PUT", "ports"] = [late]
    admin.action(server, "migrate")
    wait_for(lambda: hosts, 60, "the move was superseded")
    wait_for(lambda: neutron.ports()[0]["binding:host_id"] == source, 60,
             "the server's port is bound to the server's host")
    assert (hosts, admin.wait(server, "ACTIVE")["OS-EXT-SRV-ATTR:host"]) == ([source], source)


def test_port_binding_follows_a_guest_when_its_source_host_is_lost(
        suite, admin, neutron, blue, second, flavor, image_id, monkeypatch):
    server = admin.boot(flavor, image_id, networks=[{"uuid": blue}], availability_zone=f"nova:{second.host}")
    plug(admin, neutron, server)
    admin.wait(server, "ACTIVE")
    driver, go = second.machine.driver, threading.Event()
    migrate = driver.live_source.migrate

    def hang_at_the_end(*arguments):
        migrate(*arguments)
        go.wait(120)

    monkeypatch.setattr(driver.live_source, "migrate", hang_at_the_end)
    admin.action(server, "os-migrateLive", {"host": None, "block_migration": "auto"})
    wait_for(lambda: server in {guest.uuid for guest in suite.compute.machine.driver.guests.all()})
    set_service(admin, second.host, forced_down=True)
    for thread in second.periodic:  # no heartbeats: no lease is renewed
        thread.stop()
    try:
        assert admin.wait(server, "ACTIVE", seconds=60)["OS-EXT-SRV-ATTR:host"] == suite.compute.host
        assert [port["binding:host_id"] for port in neutron.ports()] == [suite.compute.host]
    finally:
        go.set()
        wait_for(lambda: not second.runner.busy(server), 60, "the delayed host has finished its order")
        set_service(admin, second.host, forced_down=False)


@pytest.fixture
def moving(suite, admin, neutron, second, server):
    """Return (source, destination) of a server whose service can bind ports to two hosts."""
    neutron.extensions.append("binding-extended")
    suite.conductor.core.allocator = NeutronAllocator()  # has read no extensions yet
    source = admin.server(server)["OS-EXT-SRV-ATTR:host"]
    return source, ({suite.compute.host, second.host} - {source}).pop()


def live_migrate(admin, server, host=None):
    admin.action(server, "os-migrateLive", {"host": host, "block_migration": "auto"})


def ports_of(neutron):
    """Return (host, inactive hosts, profile) of the only port."""
    port, = neutron.ports()
    return port["binding:host_id"], list(neutron.bindings.get(port["id"], {})), port["binding:profile"]


def test_live_migration_binds_ports_to_both_hosts_and_leaves_the_source(
        suite, admin, neutron, second, moving, server, monkeypatch):
    source, destination = moving
    driver, during = {host.host: host.machine.driver for host in (suite.compute, second)}[source], []
    migrate = driver.live_source.migrate

    def observe(*arguments):
        during.append(ports_of(neutron))
        migrate(*arguments)

    monkeypatch.setattr(driver.live_source, "migrate", observe)
    live_migrate(admin, server)
    wait_for(lambda: admin.server(server)["OS-EXT-SRV-ATTR:host"] == destination)
    admin.wait(server, "ACTIVE")
    wait_for(lambda: migration_of(admin, server)["status"] == "completed")
    assert during == [(source, [destination], {"migrating_to": destination})]
    assert ports_of(neutron) == (destination, [], {})


def test_failed_live_migration_removes_the_second_binding(suite, admin, neutron, second, moving, server, monkeypatch):
    source, _destination = moving
    driver = {host.host: host.machine.driver for host in (suite.compute, second)}[source]

    def fail(*_arguments):
        raise exception.MigrationError(reason="cable pulled")

    monkeypatch.setattr(driver.live_source, "migrate", fail)
    live_migrate(admin, server)
    wait_for(lambda: migration_of(admin, server)["status"] == "failed")
    assert admin.wait(server, "ACTIVE")["OS-EXT-SRV-ATTR:host"] == source
    assert ports_of(neutron) == (source, [], {})


@pytest.mark.parametrize("status", [201, 500], ids=str)
def test_refused_binding_of_the_destination_stops_the_migration_before_the_host_prepares(
        admin, neutron, moving, server, status):
    """ML2 responds with status 500 if no mechanism driver can bind the port."""
    source, _destination = moving
    if status == 201:
        neutron.twists["POST", "bindings"] = [lambda answer: {"binding": {
            **answer["binding"], "vif_type": "binding_failed", "vif_details": {}}}]
    else:
        neutron.faults["POST", "bindings"] = [status]
    live_migrate(admin, server)
    wait_for(lambda: migration_of(admin, server)["status"] == "error")
    assert admin.wait(server, "ACTIVE")["OS-EXT-SRV-ATTR:host"] == source
    assert ports_of(neutron) == (source, [], {})
    assert not neutron.faults.get(("POST", "bindings"))


@pytest.mark.parametrize("request_", [("PUT", "ports"), ("PUT", "bindings"), ("POST", "bindings")], ids="-".join)
def test_missing_right_refuses_the_migration_with_the_reason(admin, neutron, moving, server, request_):
    """Requests for bindings are refused again while the migration is undone."""
    source, _destination = moving
    neutron.faults[request_] = [403] * (1 if request_ == ("PUT", "ports") else 10)
    live_migrate(admin, server)
    wait_for(lambda: migration_of(admin, server)["status"] == "error")
    events = newest_action(admin, server, "live-migration")["events"]
    reason = "the account of [neutron] needs the roles admin and service"
    assert any(reason in (event.get("details") or "") for event in events)
    assert ports_of(neutron)[:2] == (source, [])


@pytest.mark.parametrize("request_", [("POST", "bindings"), ("PUT", "bindings"), ("DELETE", "bindings"),
                                      ("PUT", "ports")], ids="-".join)
@pytest.mark.parametrize("status", [503, -503])
def test_repeated_requests_for_bindings_end_in_one_binding(admin, neutron, moving, server, request_, status):
    """A negative status: the request was executed, but its response was lost."""
    _source, destination = moving
    neutron.faults[request_] = [status]
    live_migrate(admin, server)
    wait_for(lambda: admin.server(server)["OS-EXT-SRV-ATTR:host"] == destination)
    admin.wait(server, "ACTIVE")
    assert ports_of(neutron) == (destination, [], {})
    assert neutron.faults[request_] == []


def without_its_first_port(neutron, server):
    """Delete the first port as its owner, without an event to Nova; return the id of the other port."""
    with neutron.lock:
        gone, left = neutron.ports(device_id=server)
        del neutron.rows["ports"][gone["id"]]
    return left["id"]


def test_resize_revert_succeeds_without_a_deleted_port(admin, neutron, blue, boot, second):
    server = boot({"uuid": blue}, {"uuid": blue})
    plug(admin, neutron, server, 2)
    source = admin.wait(server, "ACTIVE")["OS-EXT-SRV-ATTR:host"]
    admin.action(server, "migrate")
    wait_for(lambda: {port["binding:host_id"] for port in neutron.ports()} != {source})
    plug(admin, neutron, server, 2)
    admin.wait(server, "VERIFY_RESIZE")
    left = without_its_first_port(neutron, server)
    admin.action(server, "revertResize")
    admin.wait(server, "ACTIVE")
    assert [(port["id"], port["binding:host_id"]) for port in neutron.ports()] == [(left, source)]
    assert [item["port_id"] for item in attached(admin, server)] == [left]


def test_evacuation_succeeds_without_a_deleted_port(suite, admin, neutron, blue, second, flavor, image_id):
    server = admin.boot(flavor, image_id, networks=[{"uuid": blue}] * 2, availability_zone=f"nova:{second.host}")
    plug(admin, neutron, server, 2)
    admin.wait(server, "ACTIVE")
    left = without_its_first_port(neutron, server)
    set_service(admin, second.host, forced_down=True)
    wait_scheduler(suite, second.host, False)
    admin.action(server, "evacuate", {}, version="2.94")
    wait_for(lambda: neutron.ports()[0]["binding:host_id"] == suite.compute.host)
    plug(admin, neutron, server)
    admin.wait(server, "ACTIVE")
    assert [item["port_id"] for item in attached(admin, server)] == [left]
    second.reconciler.compare()
    wait_for(lambda: migration_of(admin, server)["status"] == "completed",
             reason="the source host has removed the guest")
    set_service(admin, second.host, forced_down=False)


# --- shelving --------------------------------------------------------------------------------------------
def test_shelve_offload_keeps_ports_but_removes_their_binding(suite, admin, member, neutron, server, driver):
    before, = neutron.ports(device_id=server)
    addresses = admin.server(server)["addresses"]
    member.action(server, "shelve")
    assert admin.wait(server, "SHELVED_OFFLOADED")["addresses"] == addresses
    port, = neutron.ports(device_id=server)
    assert (port["id"], port["binding:host_id"], port["device_id"]) == (before["id"], None, server)
    member.action(server, "unshelve")
    plug(admin, neutron, server)
    assert admin.wait(server, "ACTIVE")["addresses"] == addresses
    port, = neutron.ports(device_id=server)
    assert (port["id"], port["binding:host_id"]) == (before["id"], suite.compute.host)
    assert driver.guest(server).interfaces == (port["mac_address"],)


def test_failed_unshelve_leaves_ports_unbound(admin, member, neutron, server, driver):
    member.action(server, "shelve")
    admin.wait(server, "SHELVED_OFFLOADED")
    driver.behaviour.failure["spawn"] = 1.0
    member.action(server, "unshelve")
    assert admin.wait_idle(server)["status"] == "SHELVED_OFFLOADED"
    port, = neutron.ports(device_id=server)
    assert port["binding:host_id"] is None
    driver.behaviour.failure.clear()
    member.delete(f"/servers/{server}")
    member.wait_gone(server)
    assert neutron.ports() == []
