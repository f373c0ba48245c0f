"""os-networks, os-tenant-networks, os-security-groups and their rules."""

import datetime

import msgspec
import pytest

from nova import exception
from nova.objects.accounts.flavor import Flavor
from nova.objects.networks.network import Network, SecurityGroup, SecurityGroupRule
from nova.objects.servers.instance import Instance
from nova.rpcapi.networks import Networks, SecurityGroups
from nova.rpcapi.servers import Servers
from tests.unit.api.canned import stub

UUID = "20c8acc0-f747-4d71-a389-46d078ebf047"
NET = Network(uuid=UUID, label="private", cidr="10.0.0.0/24", gateway="10.0.0.1", dns=["192.0.2.1"], bridge="br1")


# -- networks ---------------------------------------------------------------------------------------
@pytest.fixture
def networks(api):
    api.headers = {"X-Project-Id": "p"}
    return stub(api, "networks", Networks, index=[NET], get=NET)


def test_os_networks_shows_addresses_to_readers(api, networks):
    assert api.get(f"/v2.1/os-networks/{UUID}", roles="reader").json == {"network": {
        "id": UUID, "label": "private", "cidr": "10.0.0.0/24", "netmask": "255.255.255.0", "gateway": "10.0.0.1",
        "broadcast": "10.0.0.255", "dns1": "192.0.2.1", "dns2": None, "cidr_v6": None, "gateway_v6": None,
        "netmask_v6": None}}
    assert networks.last("get") == {"uuid": UUID, "project_id": "p"}


def test_os_networks_shows_the_ipv6_subnet(api):
    api.headers = {"X-Project-Id": "p"}
    stub(api, "networks", Networks, get=msgspec.structs.replace(NET, cidr_v6="fd00::/64", gateway_v6="fd00::1"))
    shown = api.get(f"/v2.1/os-networks/{UUID}").json["network"]
    assert (shown["cidr_v6"], shown["gateway_v6"], shown["netmask_v6"]) == ("fd00::/64", "fd00::1", "64")


def test_os_networks_shows_devices_of_all_networks_to_admin(api, networks):
    shown = api.get("/v2.1/os-networks").json["networks"][0]
    assert (shown["bridge"], shown["mtu"], shown["vlan"], shown["deleted"]) == ("br1", 1500, None, None)
    assert networks.last("index") == {"project_id": None}


def test_os_tenant_networks_are_limited_to_the_project(api, networks):
    short = {"id": UUID, "label": "private", "cidr": "10.0.0.0/24"}
    assert api.get("/v2.1/os-tenant-networks").json == {"networks": [short]}
    assert networks.last("index") == {"project_id": "p"}
    assert api.get(f"/v2.1/os-tenant-networks/{UUID}").json == {"network": short}


@pytest.mark.parametrize("path", ["/os-networks", "/os-tenant-networks", "/os-security-groups"])
def test_network_proxies_are_unavailable_from_2_36(api, networks, path):
    stub(api, "security_groups", SecurityGroups, index=[])
    assert api.get(f"/v2.1{path}", version="2.35").status == 200
    assert api.get(f"/v2.1{path}", version="2.36").error[1] == 404


@pytest.mark.parametrize(("method", "path"), [
    ("POST", "/os-networks"), ("DELETE", f"/os-networks/{UUID}"), ("POST", "/os-networks/add"),
    ("POST", f"/os-networks/{UUID}/action"), ("POST", "/os-tenant-networks"),
    ("DELETE", f"/os-tenant-networks/{UUID}")])
def test_changes_of_os_networks_return_410(api, networks, method, path):
    assert api(method, f"/v2.1{path}", {"disassociate": None} if method == "POST" else None).error[:2] == (
        "computeFault", 410)


# -- security groups --------------------------------------------------------------------------------
GROUPS = "/v2.1/os-security-groups"
ONE, TWO, FIVE = (f"00000000-0000-0000-0000-00000000000{digit}" for digit in "125")
DEFAULT = SecurityGroup(id=1, name="default", description="d", project_id="p", rules=[
    SecurityGroupRule(id=5, parent_group_id=1, protocol="tcp", from_port=22, to_port=22, cidr="0.0.0.0/0"),
    SecurityGroupRule(id=6, parent_group_id=1, group_id=2)])
WEB = SecurityGroup(id=2, name="web", project_id="p")
SSH = {"id": FIVE, "parent_group_id": ONE, "ip_protocol": "tcp", "from_port": 22, "to_port": 22, "group": {},
       "ip_range": {"cidr": "0.0.0.0/0"}}


def stored(rule, **_):
    rule.id = 5
    return rule


def pick(group_id, **_):
    return {1: DEFAULT, 2: WEB}.get(group_id)


@pytest.fixture
def groups(api):
    api.headers = {"X-Project-Id": "p"}
    return stub(api, "security_groups", SecurityGroups, index=[DEFAULT, WEB], get=pick, create=WEB, update=WEB,
                add_rule=stored)


def test_security_groups_are_shown_with_their_rules(api, groups):
    shown = api.get(GROUPS, roles="reader").json["security_groups"]
    assert shown[0] == {"id": ONE, "name": "default", "description": "d", "tenant_id": "p", "rules": [SSH, {
        "id": "00000000-0000-0000-0000-000000000006", "parent_group_id": ONE, "ip_protocol": None, "from_port": None,
        "to_port": None, "group": {"name": "web", "tenant_id": "p"}, "ip_range": {}}]}
    assert api.get(f"{GROUPS}/{ONE}", roles="reader").json == {"security_group": shown[0]}
    assert groups.last("get") == {"group_id": 1, "project_id": "p", "uuid": ONE}


@pytest.mark.parametrize(("query", "names"), [("", ["default", "web"]), ("limit=1", ["default"]),
                                              ("offset=1", ["web"]), ("limit=0", ["default", "web"])])
def test_list_security_groups_limit_and_offset(api, groups, query, names):
    found = api.get(f"{GROUPS}?{query}").json["security_groups"]
    assert [group["name"] for group in found] == names


@pytest.mark.parametrize(("roles", "query", "project"), [
    ("admin", "", "p"), ("admin", "?all_tenants=1", None), ("reader", "?all_tenants=1", "p")])
def test_list_security_groups_all_tenants_requires_admin(api, groups, roles, query, project):
    api.get(GROUPS + query, roles=roles)
    assert groups.last("index") == {"project_id": project}


def test_security_group_is_created_updated_and_deleted(api, groups):
    body = {"security_group": {"name": " web ", "description": "x"}}
    assert api.post(GROUPS, body).json["security_group"]["id"] == TWO
    assert groups.last("create") == {"name": " web ", "description": "x"}
    assert api("PUT", f"{GROUPS}/{TWO}", body, roles="member").status == 200
    assert groups.last("update") == {"group_id": 2, "name": " web ", "description": "x", "project_id": "p",
                                     "uuid": ""}
    assert api("DELETE", f"{GROUPS}/{TWO}", roles="member").status == 202
    assert groups.last("delete") == {"group_id": 2, "project_id": "p", "uuid": ""}


@pytest.mark.parametrize("body", [{"name": "", "description": "x"}, {"name": " ", "description": "x"},
                                  {"name": "x"}, {"name": "a\u0000b", "description": "x"},
                                  {"name": "x" * 256, "description": "x"}, {"name": "x", "description": None}])
def test_create_security_group_refuses_invalid_fields(api, groups, body):
    assert api.post(GROUPS, {"security_group": body}).error[1] == 400
    assert not groups.calls


@pytest.mark.parametrize(("ident", "status"), [("1", 400), ("default", 400), (UUID, 404), (TWO[:-1] + "9", 404)])
def test_security_group_id_must_be_a_uuid(api, groups, ident, status):
    groups.answers["get"] = exception.SecurityGroupNotFound(security_group_id=9)
    body = {"security_group": {"name": "web", "description": "x"}}
    for answer in (api("PUT", f"{GROUPS}/{ident}", body), api("DELETE", f"{GROUPS}/{ident}")):
        assert answer.error[1] == status
        assert ident in answer.text


@pytest.mark.parametrize("ident", ["1", "default", UUID])
def test_show_security_group_by_name_returns_404(api, groups, ident):
    groups.answers["get"] = exception.SecurityGroupNotFound(security_group_id=9)
    assert api.get(f"{GROUPS}/{ident}", version="2.1").error == (
        "itemNotFound", 404, f"Security group {ident} not found.")


def test_security_groups_of_a_server_are_listed(api, groups):
    stub(api, "servers", Servers, get=Instance(
        uuid=UUID, project_id="p", user_id="u", display_name="s", hostname="s", security_groups=["web"],
        created_at=datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC),
        flavor=Flavor(flavorid="1", name="f", memory_mb=1, vcpus=1)))
    answer = api.get(f"/v2.1/servers/{UUID}/os-security-groups", version="2.104", roles="reader")
    assert [group["name"] for group in answer.json["security_groups"]] == ["web"]


# -- rules ------------------------------------------------------------------------------------------
def add(api, **body):
    return api.post("/v2.1/os-security-group-rules", {"security_group_rule": {"parent_group_id": ONE, **body}},
                    roles="member")


def test_create_security_group_rule_allows_any_source_by_default(api, groups):
    assert add(api, ip_protocol="tcp", from_port="22", to_port=22).json == {"security_group_rule": SSH}
    assert groups.last("add_rule")["project_id"] == "p"


def test_create_security_group_rule_with_a_source_group(api, groups):
    shown = add(api, ip_protocol="icmp", from_port=-1, to_port=-1, group_id=TWO).json["security_group_rule"]
    assert (shown["group"], shown["ip_range"]) == ({"name": "web", "tenant_id": "p"}, {})
    assert groups.last("add_rule")["rule"].group_id == 2


@pytest.mark.parametrize("body", [
    {"from_port": "a"}, {"from_port": 1.5}, {"from_port": True}, {"from_port": 10**9}, {"to_port": []},
    {"ip_protocol": 6}, {"cidr": {}}, {"group_id": "x"}, {"parent_group_id": "1"}])
def test_malformed_security_group_rules_are_refused(api, groups, body):
    assert add(api, **body).error[1] == 400
    assert not [call for call in groups.calls if call[0] == "add_rule"]


def test_delete_security_group_rule_and_its_errors(api, groups):
    path = "/v2.1/os-security-group-rules"
    assert api("DELETE", f"{path}/{FIVE}", roles="member").status == 202
    assert groups.last("delete_rule") == {"rule_id": 5, "project_id": "p", "uuid": FIVE}
    groups.answers["delete_rule"] = exception.SecurityGroupRuleNotFound(rule_id=5)
    assert api("DELETE", f"{path}/{FIVE}").error == ("itemNotFound", 404, f"Security group rule {FIVE} not found.")
    assert api("DELETE", f"{path}/5").error[1] == 400
    assert api("DELETE", f"{path}/4abc093b-49f5-48d8-8024-8d779cababbe").error[1] == 404
