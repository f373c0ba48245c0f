"""Plug events of a network back end: the guest stays paused until they arrive, and no thread waits for them."""

import msgspec
import pytest

from nova import context
from nova.conductor.resources import addresses
from nova.conf import CONF
from nova.objects.base import new_uuid
from nova.objects.networks.network import Network
from nova.objects.servers import states
from tests.functional.client import Client, wait_for
from tests.functional.conftest import remove_servers
from tests.functional.servers.test_interfaces import attach, attached, wait_active, wait_idle


@pytest.fixture(autouse=True)
def telling(suite, monkeypatch):
    """Let the embedded networks await a plug event for each interface."""
    allocate = addresses.allocate

    def telling(connection, instance, wanted):
        return [msgspec.structs.replace(vif, active=False, awaits_plug=True)
                for vif in allocate(connection, instance, wanted)]

    monkeypatch.setattr(addresses, "allocate", telling)
    yield
    remove_servers(Client(suite.url))
    CONF.clear_override("vif_plugging_timeout")
    CONF.clear_override("vif_plugging_is_fatal")


@pytest.fixture
def network(suite, networks):
    made = networks.create(context.admin(), Network(
        uuid=new_uuid(), label="told", cidr="10.34.0.0/24", gateway="", bridge=""))
    yield made.uuid
    remove_servers(Client(suite.url))
    networks.delete(context.admin(), made.uuid)


@pytest.fixture
def boot(admin, flavor, image_id, network):
    return lambda count=1: admin.boot(flavor, image_id, networks=[{"uuid": network}] * count)


def tell(admin, server, port, status="completed", name="network-vif-plugged"):
    events = [{"server_uuid": server, "name": name, "tag": port, "status": status}]
    return admin.post("/os-server-external-events", {"events": events})["events"][0]["code"]


def ports(admin, server):
    return [item["port_id"] for item in attached(admin, server)]


def waiting(admin, driver, server):
    """Wait until the guest of the server exists and is paused."""
    wait_for(lambda: server in {guest.uuid for guest in driver.guests.all()})
    wait_for(lambda: admin.server(server)["OS-EXT-STS:power_state"] == states.POWER_PAUSED)
    assert driver.guests.power_state(server) == states.POWER_PAUSED
    assert admin.server(server)["status"] == "BUILD"


def runs(admin, driver, server):
    shown = admin.wait(server, "ACTIVE")
    assert (shown["OS-EXT-STS:power_state"], driver.guests.power_state(server)) == (states.RUNNING, states.RUNNING)


def test_guest_stays_paused_until_all_interfaces_are_plugged(admin, driver, boot):
    server = boot(2)
    waiting(admin, driver, server)
    first, second = ports(admin, server)
    assert tell(admin, server, first) == 200
    waiting(admin, driver, server)
    assert [item["port_state"] for item in attached(admin, server)] == ["DOWN", "DOWN"]
    assert tell(admin, server, second) == 200
    runs(admin, driver, server)
    assert [item["port_state"] for item in attached(admin, server)] == ["ACTIVE", "ACTIVE"]


def test_plug_event_before_the_guest_exists_is_not_lost(admin, driver, boot, hold):
    spawn = hold("guests.spawn")
    server = boot()
    spawn.wait_until_begun()
    port, = ports(admin, server)
    assert tell(admin, server, port) == 200
    spawn.let_go()
    runs(admin, driver, server)


def test_vif_plugging_timeout_fails_the_build_and_leaves_no_port(admin, driver, boot):
    CONF.set_override("vif_plugging_timeout", 1)
    server = boot()
    shown = admin.wait(server, "ERROR")
    assert "did not plug" in shown["fault"]["message"]
    assert (shown["addresses"], ports(admin, server)) == ({}, [])
    assert server not in {guest.uuid for guest in driver.guests.all()}


def test_vif_plugging_timeout_starts_the_guest_if_not_fatal(admin, driver, boot):
    CONF.set_override("vif_plugging_timeout", 1)
    CONF.set_override("vif_plugging_is_fatal", False)
    server = boot()
    runs(admin, driver, server)
    assert [item["port_state"] for item in attached(admin, server)] == ["DOWN"]


def test_vif_plugging_timeout_0_starts_the_guest_at_once(admin, driver, boot):
    CONF.set_override("vif_plugging_timeout", 0)
    runs(admin, driver, boot())


@pytest.mark.parametrize("fatal", [True, False])
def test_failed_plug_event_fails_the_build_at_once_if_fatal(admin, driver, boot, fatal):
    CONF.set_override("vif_plugging_is_fatal", fatal)
    server = boot()
    waiting(admin, driver, server)
    tell(admin, server, ports(admin, server)[0], status="failed")
    if fatal:
        assert "could not plug" in admin.wait(server, "ERROR")["fault"]["message"]
    else:
        runs(admin, driver, server)


def test_server_paused_for_a_plug_event_can_be_deleted(admin, driver, boot):
    server = boot()
    waiting(admin, driver, server)
    admin.delete(f"/servers/{server}")
    admin.wait_gone(server)
    assert server not in {guest.uuid for guest in driver.guests.all()}


def test_interface_attach_ends_when_the_interface_is_plugged(admin, driver, boot, network):
    server = boot()
    waiting(admin, driver, server)
    tell(admin, server, ports(admin, server)[0])
    runs(admin, driver, server)
    made = attach(admin, server, net_id=network)
    wait_for(lambda: made["mac_addr"] in driver.guest(server).interfaces)
    assert [item["port_state"] for item in attached(admin, server)] == ["ACTIVE", "DOWN"]
    tell(admin, server, made["port_id"])
    wait_active(admin, server, made["port_id"])
    assert wait_idle(admin, server)["message"] is None


def test_interface_that_is_not_plugged_in_time_is_detached(admin, driver, boot, network):
    server = boot()
    waiting(admin, driver, server)
    tell(admin, server, ports(admin, server)[0])
    runs(admin, driver, server)
    CONF.set_override("vif_plugging_timeout", 1)
    made = attach(admin, server, net_id=network)
    wait_for(lambda: len(ports(admin, server)) == 1)
    assert made["mac_addr"] not in driver.guest(server).interfaces
    assert admin.server(server)["status"] == "ACTIVE"


def test_migrated_server_waits_for_a_plug_event_on_its_new_host(admin, suite, second, flavor, boot):
    server = boot()
    wait_for(lambda: admin.server(server)["OS-EXT-STS:power_state"] == states.POWER_PAUSED)
    port, = ports(admin, server)
    tell(admin, server, port)
    source = admin.wait(server, "ACTIVE")["OS-EXT-SRV-ATTR:host"]
    # Network services may repeat an event: an event for the first host does not count for the second host.
    tell(admin, server, port)
    admin.action(server, "migrate")
    drivers = {service.host: service.machine.driver for service in (suite.compute, second)}
    other, = (drivers[host] for host in drivers if host != source)
    wait_for(lambda: server in {guest.uuid for guest in other.guests.all()})
    assert other.guests.power_state(server) == states.POWER_PAUSED
    tell(admin, server, port)
    assert admin.wait(server, "VERIFY_RESIZE")["OS-EXT-STS:power_state"] == states.RUNNING
    assert other.guests.power_state(server) == states.RUNNING
