"""os-hosts and os-baremetal-nodes requests of old clients."""

import pytest

from tests.functional.client import Client
from tests.functional.several_hosts import refused, service_of

OLD = "2.42"


@pytest.fixture
def old(suite):
    return Client(suite.url, version=OLD)


def test_hosts_are_listed_with_their_services_by_zone(suite, old, admin):
    found = {(shown["service"], shown["zone"]) for shown in old.get("/os-hosts")["hosts"]
             if shown["host_name"] == suite.compute.host}
    assert found == {("compute", "nova"), ("conductor", "internal"), ("scheduler", "internal")}
    assert [shown["service"] for shown in old.get("/os-hosts", zone="nova")["hosts"]] == ["compute"]
    assert old.get("/os-hosts", zone="nowhere") == {"hosts": []}
    assert old.get("/os-hosts", zone="") == old.get("/os-hosts")
    assert refused(lambda: admin.get("/os-hosts", version="2.43"))[0] == 404


def test_host_shows_usage_per_project(suite, old, image_id):
    other = Client(suite.url, project="hosts-other")
    flavor = old.flavor(vcpus=2, ram=256, disk=3)
    for client, count in ((old, 1), (other, 2)):
        for _number in range(count):
            client.wait(client.boot(flavor, image_id), "ACTIVE")
    shown = [found["resource"] for found in old.get(f"/os-hosts/{suite.compute.host}")["host"]]
    assert {found["host"] for found in shown} == {suite.compute.host}
    found = {each.pop("project"): each for each in shown}
    node = old.get("/os-hypervisors/detail")["hypervisors"][0]
    assert list(found) == ["(total)", "(used_now)", "(used_max)", "hosts-other", "p"]
    assert (found["(total)"]["cpu"], found["(total)"]["memory_mb"], found["(total)"]["disk_gb"]) == (
        node["vcpus"], node["memory_mb"], node["local_gb"])
    assert (found["(used_now)"]["cpu"], found["(used_now)"]["memory_mb"]) == (
        node["vcpus_used"], node["memory_mb_used"])
    assert {name: (each["cpu"], each["memory_mb"], each["disk_gb"]) for name, each in found.items()
            if name not in ("(total)", "(used_now)")} == {
        "(used_max)": (6, 768, 9), "hosts-other": (4, 512, 6), "p": (2, 256, 3)}


def test_host_is_disabled_and_enabled_through_os_hosts(suite, old, admin):
    path = f"/os-hosts/{suite.compute.host}"
    for word, status in (("disable", "disabled"), ("Enable", "enabled")):
        assert old.put(path, {"status": word}) == {"host": suite.compute.host, "status": status}
        assert service_of(admin, suite.compute.host)["status"] == status


@pytest.mark.parametrize("ask", [
    lambda client, host: client.put(f"/os-hosts/{host}", {"maintenance_mode": "enable"}),
    lambda client, host: client.put(f"/os-hosts/{host}", {"status": "disable", "maintenance_mode": "enable"}),
    lambda client, host: client.get(f"/os-hosts/{host}/reboot"),
    lambda client, host: client.get(f"/os-hosts/{host}/shutdown"),
    lambda client, host: client.get(f"/os-hosts/{host}/startup"),
])
def test_host_power_actions_return_501(suite, old, admin, ask):
    code, message = refused(lambda: ask(old, suite.compute.host))
    assert code == 501
    assert message.startswith("Virt driver does not implement host ")
    assert service_of(admin, suite.compute.host)["status"] == "enabled"
    assert refused(lambda: ask(old, "nowhere")) == (404, "Compute host nowhere could not be found.")


def test_unknown_host_returns_404(old):
    assert refused(lambda: old.get("/os-hosts/nowhere")) == (404, "Compute host nowhere could not be found.")


def test_members_cannot_list_hosts(suite):
    member = Client(suite.url, roles="member,reader", version=OLD)
    for path in ("/os-hosts", f"/os-hosts/{suite.compute.host}", f"/os-hosts/{suite.compute.host}/reboot"):
        assert refused(lambda path=path: member.get(path))[0] == 403


# --- bare metal --------------------------------------------------------------------------------------
def test_bare_metal_nodes_return_501(suite, member):
    admin = Client(suite.url, version="2.35")
    for path in ("/os-baremetal-nodes", "/os-baremetal-nodes/1"):
        assert refused(lambda path=path: admin.get(path)) == (
            501, "Ironic client unavailable, cannot access Ironic.")
        assert refused(lambda path=path: member.get(path, version="2.35"))[0] == 403
        assert refused(lambda path=path: admin.get(path, version="2.36"))[0] == 404


@pytest.mark.parametrize(("ask", "command"), [
    (lambda client: client.post("/os-baremetal-nodes", {"node": {}}), "node-create"),
    (lambda client: client.delete("/os-baremetal-nodes/1"), "node-delete"),
    (lambda client: client.post("/os-baremetal-nodes/1/action", {"add_interface": {}}), "port-create"),
    (lambda client: client.post("/os-baremetal-nodes/1/action", {"remove_interface": {}}), "port-delete"),
])
def test_changes_of_bare_metal_nodes_are_refused_with_an_ironic_hint(suite, ask, command):
    assert refused(lambda: ask(Client(suite.url, version="2.35"))) == (
        400, f"Command Not supported. Please use Ironic command {command} to perform this action.")
