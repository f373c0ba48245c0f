"""Diagnostics of a guest from the hypervisor, and the password posted by the guest."""

import pytest

from nova import bus, context, exception
from nova.objects.base import new_uuid
from nova.objects.networks.network import Network
from nova.objects.servers.guest import PASSWORD_MAX, password_items
from nova.rpcapi.by_hosts import Guests
from tests.functional.client import Client, wait_for
from tests.functional.several_hosts import refused, set_service

_NICS = ("rx", "rx_drop", "rx_errors", "rx_packets", "tx", "tx_drop", "tx_errors", "tx_packets")
_DISKS = ("errors", "read", "read_req", "write", "write_req")


@pytest.fixture
def network(networks):
    made = networks.create(context.admin(), Network(
        uuid=new_uuid(), label="told", cidr="10.31.0.0/24", gateway="", bridge=""))
    yield made.uuid
    networks.delete(context.admin(), made.uuid)


@pytest.fixture
def server(admin, flavor, image_id, network):
    uuid = admin.boot(flavor, image_id, networks=[{"uuid": network}])
    admin.wait(uuid, "ACTIVE")
    yield uuid
    admin.delete(f"/servers/{uuid}")
    admin.wait_gone(uuid)


def test_diagnostics_are_standardised_from_2_48(admin, server):
    mac = admin.get(f"/servers/{server}/os-interface")["interfaceAttachments"][0]["mac_addr"]
    told = admin.get(f"/servers/{server}/diagnostics", version="2.48")
    assert set(told) == {
        "state", "driver", "hypervisor", "hypervisor_os", "uptime", "config_drive", "num_cpus", "num_nics", "num_disks",
        "disk_details", "cpu_details", "nic_details", "memory_details"}
    assert (told["state"], told["driver"], told["config_drive"]) == ("running", "fake", False)
    assert (told["num_cpus"], told["num_nics"], told["num_disks"]) == (1, 1, 1)
    assert told["cpu_details"] == [{"id": 0, "time": 17300000000, "utilisation": None}]
    assert set(told["disk_details"][0]) == {
        "read_bytes", "read_requests", "write_bytes", "write_requests", "errors_count"}
    assert told["nic_details"][0]["mac_address"] == mac
    assert set(told["nic_details"][0]) == {"mac_address", *(
        f"{way}_{what}" for way in ("rx", "tx") for what in ("octets", "errors", "drop", "packets", "rate"))}
    assert told["memory_details"] == {"maximum": 128, "used": 128}


def test_diagnostics_before_2_48_have_hypervisor_specific_names(admin, server):
    told = admin.get(f"/servers/{server}/diagnostics", version="2.47")
    assert set(told) == {"memory", "cpu0_time", *(f"vda_{name}" for name in _DISKS), *(
        f"vnet0_{name}" for name in _NICS)}
    assert told["memory"] == 128 * 1024


def test_diagnostics_of_a_stopped_server_have_no_counters(admin, server):
    admin.action(server, "os-stop")
    admin.wait(server, "SHUTOFF")
    told = admin.get(f"/servers/{server}/diagnostics")
    assert (told["state"], told["uptime"], told["cpu_details"]) == ("shutdown", None, [])
    assert admin.get(f"/servers/{server}/diagnostics", version="2.1") == {"memory": 128 * 1024}
    admin.action(server, "os-start")
    admin.wait(server, "ACTIVE")


def test_diagnostics_are_for_administrators(member, server):
    code, message = refused(lambda: member.get(f"/servers/{server}/diagnostics"))
    assert (code, message) == (
        403, "Policy doesn't allow os_compute_api:os-server-diagnostics to be performed.")


def test_diagnostics_of_a_server_without_a_host_are_refused(admin, driver, flavor, image_id):
    driver.behaviour.failure["spawn"] = 1.0
    uuid = admin.boot(flavor, image_id)
    admin.wait(uuid, "ERROR")
    assert refused(lambda: admin.get(f"/servers/{uuid}/diagnostics")) == (409, f"Instance {uuid} is not ready")


def test_diagnostics_on_a_host_that_is_down_are_refused(admin, suite, server):
    set_service(admin, suite.compute.host, forced_down=True)
    try:
        wait_for(lambda: admin.server(server)["host_status"] == "DOWN")
        assert refused(lambda: admin.get(f"/servers/{server}/diagnostics")) == (
            409, "Service is unavailable at this time.")
    finally:
        set_service(admin, suite.compute.host, forced_down=False)
        wait_for(lambda: admin.server(server)["host_status"] == "UP")


# --- passwords ---------------------------------------------------------------------------------------
def post(suite, uuid, text):
    """Post the password as the metadata service does for a guest."""
    guests = bus.client(suite.transport, Guests)
    guests.set_password(context.admin(), uuid, password_items(text))


def test_password_posted_by_the_guest_is_shown_until_it_is_cleared(suite, admin, member, server):
    path = f"/servers/{server}/os-server-password"
    reader = Client(suite.url, user="r", roles="reader")
    assert admin.get(path) == {"password": ""}
    encrypted = "x" * PASSWORD_MAX
    post(suite, server, encrypted)
    assert reader.get(path) == {"password": encrypted}
    with pytest.raises(exception.Conflict):
        post(suite, server, "another")
    assert refused(lambda: reader.delete(path))[0] == 403
    member.delete(path, expect=204)
    member.delete(path, expect=204)
    assert admin.get(path) == {"password": ""}
    post(suite, server, "another")
    assert admin.get(path) == {"password": "another"}


def test_password_of_another_projects_server_is_not_found(suite, server):
    stranger = Client(suite.url, project="other", user="x", roles="member")
    for ask in (stranger.get, stranger.delete):
        assert refused(lambda ask=ask: ask(f"/servers/{server}/os-server-password"))[0] == 404
