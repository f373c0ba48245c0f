"""Server lifecycle over HTTP."""

import pytest

from nova import bus, context, exception
from nova.objects.base import new_uuid
from nova.objects.networks.network import Network
from nova.rpcapi.servers import Servers
from tests.functional.client import Client, Failed

POWER = [
    ("os-stop", None, "SHUTOFF", 4, "stop", "compute_stop_instance"),
    ("os-start", None, "ACTIVE", 1, "start", "compute_start_instance"),
    ("pause", None, "PAUSED", 3, "pause", "compute_pause_instance"),
    ("unpause", None, "ACTIVE", 1, "unpause", "compute_unpause_instance"),
    ("suspend", None, "SUSPENDED", 7, "suspend", "compute_suspend_instance"),
    ("resume", None, "ACTIVE", 1, "resume", "compute_resume_instance"),
    ("reboot", {"type": "SOFT"}, "ACTIVE", 1, "reboot", "compute_reboot_instance"),
    ("reboot", {"type": "HARD"}, "ACTIVE", 1, "reboot", "compute_reboot_instance"),
]


@pytest.fixture
def server(admin, flavor, image_id):
    uuid = admin.boot(flavor, image_id)
    admin.wait(uuid, "ACTIVE")
    yield uuid
    try:
        admin.delete(f"/servers/{uuid}")
    except Failed:
        return
    admin.wait_gone(uuid)


def test_a_server_becomes_active_on_a_host(admin, server, suite):
    shown = admin.server(server)
    assert shown["OS-EXT-SRV-ATTR:host"] == suite.compute.host
    assert shown["OS-EXT-STS:power_state"] == 1
    assert shown["OS-EXT-AZ:availability_zone"] == "nova"
    assert shown["OS-SRV-USG:launched_at"]
    assert shown["hostId"]


def test_instance_names_of_guests_are_unique(admin, suite, flavor, image_id):
    made = [admin.boot(flavor, image_id), admin.boot(flavor, image_id)]
    named = {admin.wait(uuid, "ACTIVE")["OS-EXT-SRV-ATTR:instance_name"] for uuid in made}
    driver = suite.compute.machine.driver
    assert {driver.guest(uuid).name for uuid in made} == named
    assert len(named) == 2


def test_power_actions_reach_their_state_and_are_recorded(admin, server):
    for name, value, status, power_state, _action, _event in POWER:
        admin.action(server, name, value)
        assert admin.wait(server, status)["OS-EXT-STS:power_state"] == power_state
    actions = admin.get(f"/servers/{server}/os-instance-actions")["instanceActions"]
    assert [action["action"] for action in reversed(actions)] == ["create", *(step[4] for step in POWER)]
    newest = admin.get(f"/servers/{server}/os-instance-actions/{actions[0]['request_id']}")["instanceAction"]
    assert [(event["event"], event["result"]) for event in newest["events"]] == [
        ("compute_reboot_instance", "Success")]


def test_deleting_a_deleted_server_returns_404(admin, flavor, image_id):
    uuid = admin.boot(flavor, image_id)
    admin.wait(uuid, "ACTIVE")
    admin.delete(f"/servers/{uuid}", expect=204)
    admin.wait_gone(uuid)
    with pytest.raises(Failed) as failed:
        admin.delete(f"/servers/{uuid}")
    assert failed.value.code == 404
    assert failed.value.message == f"Instance {uuid} could not be found."


def test_server_of_another_project_is_not_found(suite, server):
    from tests.functional.client import Client

    stranger = Client(suite.url, project="other", user="x", roles="member")
    with pytest.raises(Failed) as failed:
        stranger.server(server)
    assert failed.value.code == 404


def test_console_output_shows_the_last_lines_of_the_guest(admin, server):
    output = admin.action(server, "os-getConsoleOutput", {})["output"]
    assert "login:" in output
    assert admin.action(server, "os-getConsoleOutput", {"length": 1})["output"].count("\n") == 0


def test_start_of_an_active_server_is_a_conflict_with_reason(admin, server):
    with pytest.raises(Failed) as failed:
        admin.action(server, "os-start")
    assert (failed.value.code, failed.value.message) == (
        409, f"Cannot 'start' instance {server} while it is in vm_state active")


def test_locked_server_refuses_its_owner_but_not_an_administrator(admin, member, server):
    admin.action(server, "lock", {"locked_reason": "careful"})
    assert admin.server(server)["locked_reason"] == "careful"
    with pytest.raises(Failed) as failed:
        member.action(server, "pause")
    assert (failed.value.code, failed.value.message) == (409, f"Instance {server} is locked")
    admin.action(server, "unlock", None)
    assert admin.server(server)["locked"] is False


def test_owner_cannot_unlock_a_server_that_an_administrator_locks_at_the_same_time(suite, admin, server):
    """Until the conductor has the unlock request, the server may be locked after the check of the policy."""
    Client(admin.url, project="operators", user="o").action(server, "lock")
    servers, owner = bus.client(suite.transport, Servers), context.RequestContext(user_id="m", project_id="p")
    with pytest.raises(exception.InstanceIsLocked):
        servers.unlock(owner, server, project_id="p", override=False)
    assert admin.server(server)["locked"] is True


def test_requests_without_a_change_write_nothing(admin, member, server):
    def words():
        member.action(server, "unlock", None)
        admin.action(server, "unlock", None)
        admin.put(f"/servers/{server}", {"server": {"name": "same", "description": "d"}})
        admin.post(f"/servers/{server}/metadata", {"metadata": {"a": "1"}})
        admin.put(f"/servers/{server}/tags", {"tags": ["y", "x"]})
        admin.call("PUT", f"/servers/{server}/tags/x")
        admin.action(server, "lock", {"locked_reason": "careful"})

    words()
    other = Client(admin.url, project="operators", user="o")
    other.action(server, "unlock", None)  # an administrator of another project
    other.action(server, "lock", {"locked_reason": "careful"})
    before, written = _actions(admin, server), admin.server(server)
    other.action(server, "lock", {"locked_reason": "careful"})
    admin.put(f"/servers/{server}/tags", {"tags": ["x", "y"]})
    admin.post(f"/servers/{server}/metadata", {"metadata": {"a": "1"}})
    admin.put(f"/servers/{server}", {"server": {"name": "same", "description": "d"}})
    assert (_actions(admin, server), admin.server(server)) == (before, written)
    other.action(server, "unlock", None)
    before, written = _actions(admin, server), admin.server(server)
    for _ in range(3):
        member.action(server, "unlock", None)
    assert (_actions(admin, server), admin.server(server)) == (before, written)
    admin.call("DELETE", f"/servers/{server}/tags")


def _actions(client, server):
    return [found["action"] for found in client.get(f"/servers/{server}/os-instance-actions")["instanceActions"]]


def test_metadata_is_merged_replaced_and_deleted(admin, server):
    assert admin.post(f"/servers/{server}/metadata", {"metadata": {"a": "1"}})["metadata"] == {"a": "1"}
    assert admin.post(f"/servers/{server}/metadata", {"metadata": {"b": "2"}})["metadata"] == {"a": "1", "b": "2"}
    assert admin.put(f"/servers/{server}/metadata", {"metadata": {"c": "3"}})["metadata"] == {"c": "3"}
    admin.delete(f"/servers/{server}/metadata/c", expect=204)
    assert admin.get(f"/servers/{server}/metadata")["metadata"] == {}
    with pytest.raises(Failed) as failed:
        admin.delete(f"/servers/{server}/metadata/c")
    assert (failed.value.code, failed.value.message) == (404, "Metadata item was not found")


def test_a_server_is_renamed(admin, server):
    assert admin.put(f"/servers/{server}", {"server": {"name": "other"}})["server"]["name"] == "other"
    assert admin.server(server)["name"] == "other"


def test_multi_create_numbers_the_server_names(admin, flavor, image_id):
    made = admin.post("/servers", {"server": {
        "name": "many", "flavorRef": flavor, "imageRef": image_id, "networks": "none", "min_count": 3,
        "max_count": 3, "return_reservation_id": True}})
    found = admin.get("/servers", reservation_id=made["reservation_id"])["servers"]
    assert sorted(server["name"] for server in found) == ["many-1", "many-2", "many-3"]
    for server in found:
        admin.wait(server["id"], "ACTIVE")
        admin.delete(f"/servers/{server['id']}")
    for server in found:
        admin.wait_gone(server["id"])


def test_server_list_pages_are_ordered_and_link_to_the_next_page(admin, flavor, image_id):
    uuids = [admin.boot(flavor, image_id, name=f"page-{number}") for number in range(3)]
    seen, marker = [], {}
    for _page in range(4):
        page = admin.get("/servers", name="page-", limit=1, **marker)
        if not page["servers"]:
            break
        seen.append(page["servers"][0]["id"])
        assert page["servers_links"][0]["rel"] == "next"
        marker = {"marker": seen[-1]}
    assert seen == uuids[::-1]
    for uuid in uuids:
        admin.wait(uuid, "ACTIVE")
        admin.delete(f"/servers/{uuid}")
        admin.wait_gone(uuid)


def test_server_on_a_network_gets_a_fixed_ip(admin, flavor, image_id, networks):
    network = networks.create(context.admin(), Network(
        uuid=new_uuid(), label="net", cidr="10.20.0.0/29", gateway="", bridge=""))
    uuid = admin.boot(flavor, image_id, networks=[{"uuid": network.uuid}])
    addresses = admin.wait(uuid, "ACTIVE")["addresses"]
    assert [address["addr"] for address in addresses["net"]] == ["10.20.0.2"]
    admin.delete(f"/servers/{uuid}")
    admin.wait_gone(uuid)
    networks.delete(context.admin(), network.uuid)
