"""Attaching and detaching interfaces over HTTP, with the fake hypervisor and the embedded networks."""

from urllib.parse import quote

import pytest

from nova import context
from nova.conf import CONF
from nova.objects.base import new_uuid
from nova.objects.networks.network import Network
from tests.functional.client import Client, Failed, wait_for
from tests.functional.conftest import remove_servers
from tests.functional.services.test_costs import measured


def make(networks, label, cidr, **values):
    return networks.create(context.admin(), Network(
        uuid=new_uuid(), label=label, cidr=cidr, gateway="", bridge="", **values)).uuid


@pytest.fixture
def blue(suite, networks):
    uuid = make(networks, "blue", "10.31.0.0/29")
    yield uuid
    remove_servers(Client(suite.url))
    networks.delete(context.admin(), uuid)


@pytest.fixture
def green(suite, networks, blue):
    uuid = make(networks, "green", "10.32.0.0/24", cidr_v6="fd00:32::/64")
    yield uuid
    remove_servers(Client(suite.url))
    networks.delete(context.admin(), uuid)


@pytest.fixture
def server(admin, flavor, image_id, blue):
    uuid = admin.boot(flavor, image_id, networks=[{"uuid": blue}])
    admin.wait(uuid, "ACTIVE")
    return uuid


def attach(client, server, version="2.96", **values):
    return client.post(f"/servers/{server}/os-interface", {"interfaceAttachment": values},
                       version=version)["interfaceAttachment"]


def attached(client, server, **options):
    return client.get(f"/servers/{server}/os-interface", **options)["interfaceAttachments"]


def wait_active(client, server, port):
    path = f"/servers/{server}/os-interface/{port}"
    return wait_for(lambda: (shown := client.get(path)["interfaceAttachment"])["port_state"] == "ACTIVE" and shown)


def wait_idle(client, server):
    """Wait until no operation runs: the newest action has a result for each of its events."""
    def idle():
        action = client.get(f"/servers/{server}/os-instance-actions")["instanceActions"][0]
        shown = client.get(f"/servers/{server}/os-instance-actions/{action['request_id']}")["instanceAction"]
        return shown["events"] and all(event["result"] for event in shown["events"]) and action

    return wait_for(idle)


def refused(call, *arguments, **values):
    with pytest.raises(Failed) as error:
        call(*arguments, **values)
    return error.value.code, error.value.message


def test_attach_show_and_detach_interface(member, server, blue, green, driver):
    before, = attached(member, server)
    made = attach(member, server, net_id=green, tag="data")
    assert (made["net_id"], made["tag"]) == (green, "data")
    assert [address["ip_address"].rpartition(":")[0][:8] or address["ip_address"][:8]
            for address in made["fixed_ips"]] == ["10.32.0.", "fd00:32:"]
    shown = wait_active(member, server, made["port_id"])
    assert shown == {**made, "port_state": "ACTIVE"}
    assert attached(member, server) == [before, shown]
    assert driver.guest(server).interfaces == (before["mac_addr"], made["mac_addr"])
    assert set(member.server(server)["addresses"]) == {"blue", "green"}

    member.delete(f"/servers/{server}/os-interface/{made['port_id']}", expect=202)
    wait_for(lambda: attached(member, server) == [before])
    assert driver.guest(server).interfaces == (before["mac_addr"],)
    assert set(member.server(server)["addresses"]) == {"blue"}
    message = f"Port id {made['port_id']} could not be found."
    for method in (member.get, member.delete):
        assert refused(method, f"/servers/{server}/os-interface/{made['port_id']}") == (404, message)


def test_interface_tags_are_shown_from_2_70(member, server, green):
    made = attach(member, server, net_id=green, tag="data", version="2.49")
    assert sorted(made) == ["fixed_ips", "mac_addr", "net_id", "port_id", "port_state"]
    wait_active(member, server, made["port_id"])
    assert [item["tag"] for item in attached(member, server, version="2.70")] == [None, "data"]


def test_attach_without_network_uses_the_only_network_of_the_project(member, server, blue, networks):
    assert attach(member, server)["net_id"] == blue
    other = make(networks, "other", "10.33.0.0/24")
    try:
        assert refused(attach, member, server)[0] == 400
    finally:
        networks.delete(context.admin(), other)


def test_attach_interface_is_recorded_in_instance_actions(admin, server, green):
    wait_active(admin, server, attach(admin, server, net_id=green)["port_id"])
    action = wait_idle(admin, server)
    assert (action["action"], action["message"]) == ("attach_interface", None)
    shown = admin.get(f"/servers/{server}/os-instance-actions/{action['request_id']}")["instanceAction"]
    assert [(event["event"], event["result"]) for event in shown["events"]] == [
        ("compute_attach_interface", "Success")]


@pytest.mark.parametrize("state", ["ACTIVE", "SHUTOFF", "PAUSED"])
def test_attached_interface_is_present_after_hard_reboot(admin, server, green, driver, state):
    if state == "SHUTOFF":
        admin.action(server, "os-stop")
    elif state == "PAUSED":
        admin.action(server, "pause")
    admin.wait(server, state)
    made = attach(admin, server, net_id=green)
    wait_active(admin, server, made["port_id"])
    admin.action(server, "reboot", {"type": "HARD"})
    admin.wait(server, "ACTIVE")
    assert made["mac_addr"] in driver.guest(server).interfaces


def test_interface_attachments_of_a_server_are_serialized(admin, server, green, driver, hold):
    held = hold("interfaces.attach")
    made = [attach(admin, server, net_id=green) for _ in range(3)]
    admin.delete(f"/servers/{server}/os-interface/{made[1]['port_id']}")
    held.wait_until_begun()
    assert held.calls == 1
    held.let_go()
    wait_for(lambda: [item["port_state"] for item in attached(admin, server)] == ["ACTIVE"] * 3)
    assert [item["port_id"] for item in attached(admin, server)[1:]] == [made[0]["port_id"], made[2]["port_id"]]
    assert len(driver.guest(server).interfaces) == 3


# --- addresses -------------------------------------------------------------------------------------------
def test_fixed_ip_in_use_is_refused_until_it_is_detached(admin, server, green):
    made = attach(admin, server, net_id=green, fixed_ips=[{"ip_address": "10.32.0.77"}])
    assert made["fixed_ips"][0]["ip_address"] == "10.32.0.77"
    code, message = refused(attach, admin, server, net_id=green, fixed_ips=[{"ip_address": "10.32.0.77"}])
    assert (code, message) == (409, "Fixed IP address 10.32.0.77 is already in use.")
    wait_active(admin, server, made["port_id"])
    admin.delete(f"/servers/{server}/os-interface/{made['port_id']}")
    wait_for(lambda: len(attached(admin, server)) == 1)
    assert attach(admin, server, net_id=green, fixed_ips=[{"ip_address": "10.32.0.77"}])


def test_attach_to_network_without_free_addresses_is_refused(admin, server, blue):
    # A /29 network has five addresses beside its gateway, and the server already uses an address.
    for _number in range(4):
        attach(admin, server, net_id=blue)
    assert refused(attach, admin, server, net_id=blue) == (
        400, f"No fixed IP addresses available for network: {blue}")
    assert len(attached(admin, server)) == 5


def test_interfaces_per_server_are_limited_by_server_ports_quota(admin, server, green, flavor, image_id):
    for number, code in ((17, 403), (251, 403), (256, 400)):
        code_, message = refused(admin.boot, flavor, image_id, networks=[{"uuid": green}] * number)
        assert code_ == code, message
        assert ("Maximum number of ports exceeded" if code == 403 else "networks") in message
    CONF.set_override("server_ports", 1, group="quota")
    try:
        assert refused(attach, admin, server, net_id=green) == (403, "Maximum number of ports exceeded")
    finally:
        CONF.clear_override("server_ports", group="quota")
    assert attach(admin, server, net_id=green)


def test_fixed_ips_of_a_project_are_limited_by_quota(admin, server, green, flavor, image_id):
    limit = "/os-quota-sets/p"
    admin.put(limit, {"quota_set": {"fixed_ips": 2}}, version="2.35")
    try:
        attach(admin, server, net_id=green)
        for refusal in (refused(attach, admin, server, net_id=green),
                        refused(admin.boot, flavor, image_id, networks=[{"uuid": green}])):
            assert refusal == (403, "Maximum number of fixed IPs exceeded")
        assert len(attached(admin, server)) == 2
    finally:
        admin.delete(limit)
    attach(admin, server, net_id=green)


@pytest.mark.parametrize(("values", "code"), [
    ({"net_id": new_uuid()}, 404), ({"port_id": new_uuid()}, 400), ({"net_id": new_uuid(), "port_id": new_uuid()}, 400),
    ({"fixed_ips": [{"ip_address": "10.31.0.3"}]}, 400), ({"net_id": "x"}, 400)])
def test_invalid_interface_attachments_are_refused_without_leftovers(admin, server, values, code):
    assert refused(attach, admin, server, **values)[0] == code
    assert len(attached(admin, server)) == 1


def test_fixed_ip_outside_the_network_is_refused(admin, server, green):
    assert refused(attach, admin, server, net_id=green, fixed_ips=[{"ip_address": "10.31.0.3"}])[0] == 400


def test_attach_interface_checks_project_lock_and_vm_state(admin, suite, server, green):
    other = Client(suite.url, project="q", roles="member")
    assert refused(attach, other, server, net_id=green)[0] == 404
    assert refused(other.get, f"/servers/{server}/os-interface")[0] == 404
    member = Client(suite.url, roles="member,reader", user="m")
    admin.action(server, "lock")
    assert refused(attach, member, server, net_id=green) == (409, f"Instance {server} is locked")
    admin.action(server, "unlock")
    admin.action(server, "suspend")
    admin.wait(server, "SUSPENDED")
    assert refused(attach, admin, server, net_id=green) == (
        409, f"Cannot 'attach_interface' instance {server} while it is in vm_state suspended")


def test_add_and_remove_fixed_ip(member, server, green, driver):
    member.action(server, "addFixedIp", {"networkId": green}, version="2.43", expect=202)
    _first, second = wait_for(lambda: len(found := attached(member, server)) == 2 and found)
    wait_active(member, server, second["port_id"])
    address = second["fixed_ips"][0]["ip_address"]
    member.action(server, "removeFixedIp", {"address": address}, version="2.43", expect=202)
    wait_for(lambda: len(attached(member, server)) == 1)
    assert len(driver.guest(server).interfaces) == 1
    assert refused(member.action, server, "removeFixedIp", {"address": address}, version="2.43")[0] == 400


# --- failures --------------------------------------------------------------------------------------------
def test_failed_attach_removes_the_interface_and_frees_its_addresses(admin, server, green, driver):
    driver.behaviour.failure["attach_interface"] = 1.0
    attach(admin, server, net_id=green, fixed_ips=[{"ip_address": "10.32.0.77"}])
    wait_for(lambda: len(attached(admin, server)) == 1)
    assert wait_idle(admin, server)["message"] == "Error"
    driver.behaviour.failure.clear()
    shown = admin.server(server)
    assert (shown["status"], shown["OS-EXT-STS:task_state"]) == ("ACTIVE", None)
    made = attach(admin, server, net_id=green, fixed_ips=[{"ip_address": "10.32.0.77"}])
    wait_active(admin, server, made["port_id"])


def test_failed_detach_keeps_the_interface_attached(admin, server, green, driver):
    made = attach(admin, server, net_id=green)
    wait_active(admin, server, made["port_id"])
    driver.behaviour.failure["detach_interface"] = 1.0
    admin.delete(f"/servers/{server}/os-interface/{made['port_id']}")
    wait_for(lambda: admin.get(f"/servers/{server}/os-instance-actions")["instanceActions"][0]["message"] == "Error")
    driver.behaviour.failure.clear()
    assert [item["port_id"] for item in attached(admin, server)][1:] == [made["port_id"]]
    assert made["mac_addr"] in driver.guest(server).interfaces


def test_failed_detach_after_failed_attach_leaves_no_interface(admin, server, green, driver, hold):
    held = hold("interfaces.attach")
    driver.behaviour.failure.update(attach_interface=1.0, detach_interface=1.0)
    made = attach(admin, server, net_id=green)
    held.wait_until_begun()
    admin.delete(f"/servers/{server}/os-interface/{made['port_id']}")
    held.let_go()
    wait_for(lambda: len(attached(admin, server)) == 1)
    wait_for(lambda: admin.get(f"/servers/{server}/os-instance-actions")["instanceActions"][0]["message"] == "Error")
    driver.behaviour.failure.clear()
    assert made["mac_addr"] not in driver.guest(server).interfaces


def test_hard_reboot_cancels_pending_attachments_and_frees_addresses(admin, server, green, driver, hold):
    held = hold("interfaces.attach")
    for _number in range(2):  # the second attachment is queued
        attach(admin, server, net_id=green)
    held.wait_until_begun()
    admin.action(server, "reboot", {"type": "HARD"})
    held.let_go()
    admin.wait(server, "ACTIVE")
    assert len(attached(admin, server)) == len(driver.guest(server).interfaces) == 1
    assert held.calls == 1


def test_delete_during_interface_attach_frees_the_addresses(admin, server, green, hold):
    held = hold("interfaces.attach")
    attach(admin, server, net_id=green)
    held.wait_until_begun()
    admin.delete(f"/servers/{server}")
    held.let_go()
    admin.wait_gone(server)


# --- costs -----------------------------------------------------------------------------------------------
def test_operations_after_reset_state_run_after_its_compensation(admin, server, green, driver):
    driver.behaviour.latency.update(attach_interface=0.5, detach_interface=2.0)
    attach(admin, server, net_id=green)
    admin.action(server, "os-resetState", {"state": "active"})
    attach(admin, server, net_id=green)
    admin.action(server, "os-stop")
    assert admin.wait(server, "SHUTOFF")
    wait_idle(admin, server)
    assert len(driver.guest(server).interfaces) == len(attached(admin, server))


def test_attach_and_detach_use_at_most_eight_messages(suite, admin, server, green):
    made, messages, statements = measured(suite, admin, lambda: attach(admin, server, net_id=green))
    wait_active(admin, server, made["port_id"])
    assert sum(messages.values()) <= 8, messages
    assert len(statements) <= 22, statements
    _answer, messages, statements = measured(
        suite, admin, lambda: admin.delete(f"/servers/{server}/os-interface/{made['port_id']}"))
    assert len(attached(admin, server)) == 1
    assert sum(messages.values()) <= 8, messages
    assert len(statements) <= 22, statements


def test_addresses_of_networks_with_special_characters_in_the_label(admin, networks, flavor, image_id):
    for label in ("team/blue net", "a%2Fb", "né?#"):
        uuid = make(networks, label, "10.33.0.0/29")
        server = admin.boot(flavor, image_id, networks=[{"uuid": uuid}])
        admin.wait(server, "ACTIVE")
        shown = admin.get(f"/servers/{server}/ips/{quote(label, safe='')}")
        assert list(shown) == [label]
        assert shown[label][0]["addr"].startswith("10.33.0.")
        with pytest.raises(Failed, match="404"):
            admin.get(f"/servers/{server}/ips/{quote(quote(label, safe=''), safe='')}")
        remove_servers(admin)
        networks.delete(context.admin(), uuid)
