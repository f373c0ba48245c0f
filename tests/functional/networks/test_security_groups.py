"""Security groups over HTTP: the updates that hosts receive after a change, and their number."""

import pytest

from nova import context
from nova.objects.base import new_uuid
from nova.objects.networks.network import Network
from tests.functional.client import wait_for
from tests.functional.conftest import remove_servers
from tests.functional.services.test_costs import measured


@pytest.fixture
def network(suite, admin, networks):
    made = networks.create(context.admin(), Network(
        uuid=new_uuid(), label="groups", cidr="10.34.0.0/24", gateway="", bridge=""))
    yield made.uuid
    remove_servers(admin)
    networks.delete(context.admin(), made.uuid)


@pytest.fixture
def heard(suite, monkeypatch):
    """Return the updates of groups and servers that the host's network received."""
    found = {"groups": [], "servers": []}
    host = suite.compute.machine.network
    monkeypatch.setattr(host, "refresh_groups", lambda filters: found["groups"].extend(filters))
    monkeypatch.setattr(host, "refresh_rules", lambda uuid, rules: found["servers"].append((uuid, rules)))
    return found


class Groups:
    """Security groups by name, removed after the test."""

    def __init__(self, client):
        self.client = client
        self.ids = {}

    def add(self, name):
        self.ids[name] = self.client.post("/os-security-groups", {"security_group": {
            "name": name, "description": name}}, version="2.35")["security_group"]["id"]

    def rule(self, name, port, member_of=None):
        source = {"group_id": self.ids[member_of]} if member_of else {"cidr": "192.0.2.0/24"}
        return self.client.post("/os-security-group-rules", {"security_group_rule": {
            "parent_group_id": self.ids[name], "ip_protocol": "tcp", "from_port": port, "to_port": port, **source}},
            version="2.35")

    def remove(self):
        for ident in self.ids.values():
            self.client.delete(f"/os-security-groups/{ident}", version="2.35")


def test_security_group_name_and_rule_cidr_are_stored_unchanged(admin, groups):
    groups.add(" of two words ")
    made = admin.get(f"/os-security-groups/{groups.ids[' of two words ']}", version="2.35")["security_group"]
    assert (made["name"], made["description"]) == (" of two words ", " of two words ")
    rule = admin.post("/os-security-group-rules", {"security_group_rule": {
        "parent_group_id": made["id"], "ip_protocol": "tcp", "from_port": 22, "to_port": 22, "cidr": "10.2.3.124/24"}},
        version="2.35")["security_group_rule"]
    assert rule["ip_range"] == {"cidr": "10.2.3.124/24"}


@pytest.fixture
def groups(admin):
    made = Groups(admin)
    yield made
    remove_servers(admin)
    made.remove()


def boot(admin, flavor, image_id, network, *names):
    uuid = admin.boot(flavor, image_id, networks=[{"uuid": network}],
                      security_groups=[{"name": name} for name in names])
    admin.wait(uuid, "ACTIVE")
    return uuid


def test_hosts_update_members_when_a_server_leaves_a_group(suite, admin, flavor, image_id, network, groups, heard):
    for name in ("front", "back"):
        groups.add(name)
    groups.rule("back", 80, member_of="front")
    boot(admin, flavor, image_id, network, "back")
    uuid = boot(admin, flavor, image_id, network, "front")
    address = next(iter(admin.server(uuid)["addresses"].values()))[0]["addr"]

    def members():
        """Return the members in the last update of the host."""
        told = [each for each in heard["groups"] if each.members_version is not None]
        return max(told, key=lambda each: each.members_version).members if told else None

    assert wait_for(lambda: members() == [address])
    admin.action(uuid, "removeSecurityGroup", {"name": "front"})
    assert wait_for(lambda: members() == [])
    told, rules = heard["servers"][-1]
    assert (told, rules.groups) == (uuid, [])
    admin.action(uuid, "addSecurityGroup", {"name": "front"})
    assert wait_for(lambda: members() == [address])
    assert len(heard["servers"][-1][1].groups) == 1
    admin.delete(f"/servers/{uuid}")
    assert wait_for(lambda: members() == [])


def test_security_group_rule_cost_is_independent_of_servers_and_rules(suite, admin, flavor, image_id, network, groups):
    for name in ("web", "other"):
        groups.add(name)
    boot(admin, flavor, image_id, network, "web")

    def counted(port):
        _answer, messages, statements = measured(suite, admin, lambda: groups.rule("web", port))
        return messages, len(statements)

    few = counted(10)
    assert few[0]["compute.refresh_groups"] == 1
    assert sum(few[0].values()) <= 7, few
    for number in range(5):
        groups.rule("other", 20 + number)
        boot(admin, flavor, image_id, network, "other" if number % 2 else "web")
    assert counted(11) == few
