"""Interfaces of servers that come and go, over HTTP, on the fake hypervisor and the embedded networks."""

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


def test_an_interface_is_attached_shown_and_detached(member, server, blue, green, driver):
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


def test_tags_are_shown_from_2_70_on(member, server, green):
    made = attach(member, server, net_id=green, tag="data", version="2.49")
    assert sorted(made) == ["fixed_ips", "mac_addr", "net_id", "port_id", "port_state"]
    wait_active(member, server, made["port_id"])
    assert [item["tag"] for item in attached(member, server, version="2.70")] == [None, "data"]


def test_without_a_network_it_is_the_only_one_of_the_project(member, server, blue, networks):
    assert attach(member, server)["net_id"] == blue
    other = make(networks, "other", "10.33.0.0/24")
    try:
        assert refused(attach, member, server)[0] == 400
    finally:
        networks.delete(context.admin(), other)


def test_actions_tell_of_it(admin, server, green):
    wait_active(admin, server, attach(admin, server, net_id=green)["port_id"])
    action = wait_idle(admin, server)
    assert (action["action"], action["message"]) == ("attach_interface", None)
    shown = admin.get(f"/servers/{server}/os-instance-actions/{action['request_id']}")["instanceAction"]
    assert [(event["event"], event["result"]) for event in shown["events"]] == [
        ("compute_attach_interface", "Success")]


@pytest.mark.parametrize("state", ["ACTIVE", "SHUTOFF", "PAUSED"])
def test_an_interface_survives_what_is_done_to_the_server(admin, server, green, driver, state):
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


def test_attachments_wait_for_one_another(admin, server, green, driver, hold):
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
def test_an_address_is_given_once(admin, server, green):
    made = attach(admin, server, net_id=green, fixed_ips=[{"ip_address": "10.32.0.77"}])
    assert made["fixed_ips"][0]["ip_address"] == "10.32.0.77"
    code, message = refused(attach, admin, server, net_id=green, fixed_ips=[{"ip_address": "10.32.0.77"}])
    assert (code, message) == (409, "Fixed IP address 10.32.0.77 is already in use.")
    wait_active(admin, server, made["port_id"])
    admin.delete(f"/servers/{server}/os-interface/{made['port_id']}")
    wait_for(lambda: len(attached(admin, server)) == 1)
    assert attach(admin, server, net_id=green, fixed_ips=[{"ip_address": "10.32.0.77"}])


def test_a_full_network_gives_nothing(admin, server, blue):
    # A /29 has five addresses beside its gateway, of which the server has one.
    for _number in range(4):
        attach(admin, server, net_id=blue)
    assert refused(attach, admin, server, net_id=blue) == (
        400, f"No fixed IP addresses available for network: {blue}")
    assert len(attached(admin, server)) == 5


def test_a_server_has_so_many_interfaces_and_no_more(admin, server, green, flavor, image_id):
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


def test_a_project_has_as_many_addresses_as_its_limit_says(admin, server, green, flavor, image_id):
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
def test_what_cannot_be_is_refused_and_leaves_nothing(admin, server, values, code):
    assert refused(attach, admin, server, **values)[0] == code
    assert len(attached(admin, server)) == 1


def test_an_address_of_another_network_is_refused(admin, server, green):
    assert refused(attach, admin, server, net_id=green, fixed_ips=[{"ip_address": "10.31.0.3"}])[0] == 400


def test_servers_of_others_states_and_locks_count(admin, suite, server, green):
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


def test_an_address_more_and_less(member, server, green, driver):
    member.action(server, "addFixedIp", {"networkId": green}, version="2.43", expect=202)
    _first, second = wait_for(lambda: len(found := attached(member, server)) == 2 and found)
    wait_active(member, server, second["port_id"])
    address = second["fixed_ips"][0]["ip_address"]
    member.action(server, "removeFixedIp", {"address": address}, version="2.43", expect=202)
    wait_for(lambda: len(attached(member, server)) == 1)
    assert len(driver.guest(server).interfaces) == 1
    assert refused(member.action, server, "removeFixedIp", {"address": address}, version="2.43")[0] == 400


# --- failures --------------------------------------------------------------------------------------------
def test_an_interface_that_the_hypervisor_refuses_is_gone_with_its_addresses(admin, server, green, driver):
    driver.behaviour.failure["attach_interface"] = 1.0
    attach(admin, server, net_id=green, fixed_ips=[{"ip_address": "10.32.0.77"}])
    wait_for(lambda: len(attached(admin, server)) == 1)
    assert wait_idle(admin, server)["message"] == "Error"
    driver.behaviour.failure.clear()
    shown = admin.server(server)
    assert (shown["status"], shown["OS-EXT-STS:task_state"]) == ("ACTIVE", None)
    made = attach(admin, server, net_id=green, fixed_ips=[{"ip_address": "10.32.0.77"}])
    wait_active(admin, server, made["port_id"])


def test_an_interface_that_the_guest_does_not_let_go_is_kept(admin, server, green, driver):
    made = attach(admin, server, net_id=green)
    wait_active(admin, server, made["port_id"])
    driver.behaviour.failure["detach_interface"] = 1.0
    admin.delete(f"/servers/{server}/os-interface/{made['port_id']}")
    wait_for(lambda: admin.get(f"/servers/{server}/os-instance-actions")["instanceActions"][0]["message"] == "Error")
    driver.behaviour.failure.clear()
    assert [item["port_id"] for item in attached(admin, server)][1:] == [made["port_id"]]
    assert made["mac_addr"] in driver.guest(server).interfaces


def test_a_detach_of_what_could_not_be_attached_does_not_bring_it_back(admin, server, green, driver, hold):
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


def test_a_reboot_that_comes_in_between_frees_the_addresses(admin, server, green, driver, hold):
    held = hold("interfaces.attach")
    for _number in range(2):  # the second one waits behind the first
        attach(admin, server, net_id=green)
    held.wait_until_begun()
    admin.action(server, "reboot", {"type": "HARD"})
    held.let_go()
    admin.wait(server, "ACTIVE")
    assert len(attached(admin, server)) == len(driver.guest(server).interfaces) == 1
    assert held.calls == 1


def test_a_delete_that_comes_in_between_frees_the_addresses(admin, server, green, hold):
    held = hold("interfaces.attach")
    attach(admin, server, net_id=green)
    held.wait_until_begun()
    admin.delete(f"/servers/{server}")
    held.let_go()
    admin.wait_gone(server)


# --- costs -----------------------------------------------------------------------------------------------
def test_what_comes_while_a_reset_of_the_state_takes_things_back_is_done_after_it(admin, server, green, driver):
    driver.behaviour.latency.update(attach_interface=0.5, detach_interface=2.0)
    attach(admin, server, net_id=green)
    admin.action(server, "os-resetState", {"state": "active"})
    attach(admin, server, net_id=green)
    admin.action(server, "os-stop")
    assert admin.wait(server, "SHUTOFF")
    wait_idle(admin, server)
    assert len(driver.guest(server).interfaces) == len(attached(admin, server))


def test_an_attach_and_a_detach_cost_at_most_eight_messages(suite, admin, server, green):
    made, messages, statements = measured(suite, admin, lambda: attach(admin, server, net_id=green))
    wait_active(admin, server, made["port_id"])
    assert sum(messages.values()) <= 8, messages
    assert len(statements) <= 22, statements
    _answer, messages, statements = measured(
        suite, admin, lambda: admin.delete(f"/servers/{server}/os-interface/{made['port_id']}"))
    assert len(attached(admin, server)) == 1
    assert sum(messages.values()) <= 8, messages
    assert len(statements) <= 22, statements


def test_the_addresses_of_a_network_with_any_name_are_shown(admin, networks, flavor, image_id):
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
