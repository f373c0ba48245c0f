"""[api]legacy: the API that upstream removed with nova-network, served with the embedded networks."""

import jsonschema
import pytest

from nova import context
from nova.api import openapi, routes
from nova.api.legacy import certificates
from nova.api.legacy import routes as legacy_routes
from nova.conf import CONF
from nova.objects.base import new_uuid
from nova.objects.networks.network import Network
from tests.functional.client import Client, Failed
from tests.functional.refusals import NIL

OLD = "2.35"
CIDR = "10.71.0.0/24"


@pytest.fixture
def old(legacy_url):
    return Client(legacy_url, version=OLD)


@pytest.fixture
def network(networks):
    made = networks.create(context.admin(), Network(uuid=new_uuid(), label="legacy", cidr=CIDR, gateway="", bridge=""))
    yield made.uuid
    networks.delete(context.admin(), made.uuid)


@pytest.fixture
def boot(admin, flavor, image_id, network):
    """Return a function that boots a server on the network: ``boot()``."""
    made = []

    def boot(client=admin, **wanted):
        made.append(client.boot(flavor, image_id, networks=[{"uuid": network, **wanted}]))
        return made[-1]

    yield boot
    for uuid in made:
        admin.session.delete(f"{admin.url}/v2.1/servers/{uuid}", timeout=60)
        admin.wait_gone(uuid)


def refused(client, method, path, body=None, version=OLD):
    with pytest.raises(Failed) as failed:
        client.call(method, path, body, version=version)
    return failed.value.code, failed.value.message


# -- networks -----------------------------------------------------------------------------------------
def test_legacy_network_create_show_and_delete(old):
    made = old.post("/os-networks", {"network": {
        "label": "new net", "cidr": "10.72.0.0/24", "mtu": 9000, "dhcp_server": "10.72.0.2", "dns1": "192.0.2.53",
        "allowed_start": "10.72.0.10", "allowed_end": "10.72.0.12", "share_address": True, "multi_host": True,
        "project_id": "somebody"}})["network"]
    shown = old.get(f"/os-networks/{made['id']}")["network"]
    assert shown == made
    assert {name: shown[name] for name in ("label", "cidr", "mtu", "gateway", "dhcp_server", "dhcp_start", "dns1",
                                           "project_id", "netmask", "host")} == {
        "label": "new net", "cidr": "10.72.0.0/24", "mtu": 9000, "gateway": "10.72.0.2", "dhcp_server": "10.72.0.2",
        "dhcp_start": "10.72.0.10", "dns1": "192.0.2.53", "project_id": "somebody", "netmask": "255.255.255.0",
        "host": None}
    old.call("DELETE", f"/os-networks/{made['id']}", expect=202)
    assert refused(old, "DELETE", f"/os-networks/{made['id']}")[0] == 404


def test_legacy_network_assigns_addresses_of_its_fixed_cidr_only(old, admin, flavor, image_id):
    uuid = old.post("/os-networks", {"network": {
        "label": "small", "cidr": "10.72.0.0/24", "fixed_cidr": "10.72.0.8/31"}})["network"]["id"]
    servers = [admin.boot(flavor, image_id, networks=[{"uuid": uuid}]) for _number in range(2)]
    for server in servers:
        admin.wait(server, "ACTIVE")
    assert {admin.server(server)["addresses"]["small"][0]["addr"] for server in servers} == {"10.72.0.8", "10.72.0.9"}
    assert refused(old, "DELETE", f"/os-networks/{uuid}") == (409, f"Network {uuid} is still in use.")
    third = admin.boot(flavor, image_id, networks=[{"uuid": uuid}])
    admin.wait(third, "ERROR")
    for server in [*servers, third]:
        admin.delete(f"/servers/{server}")
        admin.wait_gone(server)
    old.delete(f"/os-networks/{uuid}")


@pytest.mark.parametrize(("changes", "field"), [
    ({"cidr": None}, "cidr"), ({"cidr": "nonsense"}, "cidr"), ({"label": ""}, "label"), ({"bridge": "br100"}, "bridge"),
    ({"enable_dhcp": False}, "enable_dhcp"), ({"gateway": "10.72.0.1", "dhcp_server": "10.72.0.2"}, "dhcp_server"),
    ({"allowed_end": "10.73.0.1"}, "dhcp_end"),
    ({"allowed_start": "10.72.0.9", "allowed_end": "10.72.0.8"}, "dhcp_end"),
    ({"fixed_cidr": "10.73.0.0/28"}, "fixed_cidr"), ({"fixed_cidr": "x"}, "fixed_cidr"),
    ({"cidr": "10.72.0.1/32", "fixed_cidr": "10.72.0.1/32"}, "cidr"),
    ({"fixed_cidr": "10.72.0.0/28", "allowed_start": "10.72.0.2"}, "fixed_cidr"), ({"vlan": 5}, "bridge_interface"),
    ({"vlan": 5000, "bridge_interface": "eth1"}, "vlan"), ({"mtu": "many"}, "mtu"), ({"unknown": 1}, "unknown")])
def test_invalid_legacy_network_is_refused_with_its_field(old, changes, field):
    code, message = refused(old, "POST", "/os-networks", {"network": {
        "label": "wrong", "cidr": "10.72.0.0/24", **changes}})
    assert code == 400
    assert field in message


def test_legacy_network_associate_and_disassociate_a_project(old, legacy_url, network, boot, admin):
    mine = Client(legacy_url, project="mine", version=OLD)
    others = Client(legacy_url, project="others", version=OLD, roles="member,reader")
    assert network in [each["id"] for each in others.get("/os-networks")["networks"]]
    mine.call("POST", "/os-networks/add", {"id": network}, expect=202)
    assert old.get(f"/os-networks/{network}")["network"]["project_id"] == "mine"
    assert network not in [each["id"] for each in others.get("/os-networks")["networks"]]
    assert refused(old, "POST", "/os-networks/add", {"id": network})[0] == 409
    assert refused(old, "POST", "/os-networks/add", {"id": NIL})[0] == 404
    old.call("POST", f"/os-networks/{network}/action", {"disassociate_project": None}, expect=202)
    assert network in [each["id"] for each in others.get("/os-networks")["networks"]]
    server = boot(Client(admin.url, project="others"))
    admin.wait(server, "ACTIVE")
    assert refused(mine, "POST", "/os-networks/add", {"id": network})[0] == 409


def test_legacy_network_add_associates_any_free_network(legacy_url, network):
    mine = Client(legacy_url, project="mine", version=OLD)
    theirs = {each["id"] for each in mine.get("/os-networks")["networks"] if each["project_id"] == "mine"}
    mine.post("/os-networks/add", {"id": None})
    [got] = {each["id"] for each in mine.get("/os-networks")["networks"] if each["project_id"] == "mine"} - theirs
    mine.post(f"/os-networks/{got}/action", {"disassociate": None})
    assert mine.get(f"/os-networks/{got}")["network"]["project_id"] is None


def test_legacy_network_with_servers_cannot_be_disassociated(old, legacy_url, network, boot, admin):
    Client(legacy_url, project="p", version=OLD).post("/os-networks/add", {"id": network})
    admin.wait(boot(), "ACTIVE")
    assert refused(old, "POST", f"/os-networks/{network}/action", {"disassociate": None})[0] == 409
    assert old.get(f"/os-networks/{network}")["network"]["project_id"] == "p"


def test_legacy_network_associate_and_disassociate_a_host(old, suite, network):
    host = suite.compute.host
    old.call("POST", f"/os-networks/{network}/action", {"associate_host": host}, expect=202)
    assert old.get(f"/os-networks/{network}")["network"]["host"] == host
    assert refused(old, "POST", f"/os-networks/{network}/action", {"associate_host": "nowhere"})[0] == 404
    old.call("POST", f"/os-networks/{network}/action", {"disassociate_host": None}, expect=202)
    assert old.get(f"/os-networks/{network}")["network"]["host"] is None
    old.post(f"/os-networks/{network}/action", {"associate_host": host})
    old.post(f"/os-networks/{network}/action", {"disassociate": None})
    assert old.get(f"/os-networks/{network}")["network"]["host"] is None


def test_tenant_network_create_list_and_delete(legacy_url, network):
    mine = Client(legacy_url, project="mine", version=OLD)
    made = mine.post("/os-tenant-networks", {"network": {
        "label": "own", "cidr": "10.73.0.0/24", "vlan_start": 1, "num_networks": 1, "network_size": 255}})["network"]
    assert made == {"id": made["id"], "label": "own", "cidr": "10.73.0.0/24"}
    assert made in mine.get("/os-tenant-networks")["networks"]
    assert refused(Client(legacy_url, version=OLD), "DELETE", f"/os-tenant-networks/{made['id']}")[0] == 404
    assert refused(mine, "DELETE", f"/os-tenant-networks/{network}")[0] == 404, "a shared network was deleted"
    mine.call("DELETE", f"/os-tenant-networks/{made['id']}", expect=202)
    assert made not in mine.get("/os-tenant-networks")["networks"]


# -- addresses ----------------------------------------------------------------------------------------
def test_fixed_ip_is_shown_with_its_server(old, admin, suite, boot):
    server = boot(fixed_ip="10.71.0.77")
    admin.wait(server, "ACTIVE")
    hostname = admin.server(server)["OS-EXT-SRV-ATTR:hostname"]
    shown = {"address": "10.71.0.77", "cidr": CIDR, "host": suite.compute.host, "hostname": hostname}
    assert old.get("/os-fixed-ips/10.71.0.77", version="2.3") == {"fixed_ip": shown}
    assert old.get("/os-fixed-ips/10.71.0.77") == {"fixed_ip": {**shown, "reserved": False}}


def test_reserved_fixed_ip_is_not_assigned(old, admin, boot):
    """Reserve 10.71.0.2, the first address of the network, and release it again."""
    old.call("POST", "/os-fixed-ips/10.71.0.2/action", {"reserve": None}, expect=202)
    assert old.get("/os-fixed-ips/10.71.0.2")["fixed_ip"] == {
        "address": "10.71.0.2", "cidr": CIDR, "host": None, "hostname": None, "reserved": True}
    server = boot()
    admin.wait(server, "ACTIVE")
    assert admin.server(server)["addresses"]["legacy"][0]["addr"] == "10.71.0.3"
    with pytest.raises(Failed) as failed:
        boot(fixed_ip="10.71.0.2")
    assert (failed.value.code, failed.value.message) == (400, "Fixed IP address 10.71.0.2 is already in use.")
    old.call("POST", "/os-fixed-ips/10.71.0.2/action", {"unreserve": None}, expect=202)
    other = boot(fixed_ip="10.71.0.2")
    admin.wait(other, "ACTIVE")


def test_reserving_a_fixed_ip_in_use_leaves_it_with_its_server(old, admin, boot):
    server = boot(fixed_ip="10.71.0.5")
    admin.wait(server, "ACTIVE")
    old.post("/os-fixed-ips/10.71.0.5/action", {"reserve": None})
    assert admin.server(server)["addresses"]["legacy"][0]["addr"] == "10.71.0.5"
    admin.delete(f"/servers/{server}")
    admin.wait_gone(server)
    with pytest.raises(Failed, match="already in use"):
        boot(fixed_ip="10.71.0.5")


@pytest.mark.parametrize(("address", "code"), [("10.99.0.1", 404), ("nonsense", 400), ("10.71.0.1", 400)])
def test_reserving_an_invalid_fixed_ip_is_refused(old, network, address, code):
    assert refused(old, "POST", f"/os-fixed-ips/{address}/action", {"reserve": None})[0] == code


def test_gateway_address_is_shown_as_reserved(old, network):
    assert old.get("/os-fixed-ips/10.71.0.1")["fixed_ip"]["reserved"] is True
    assert refused(old, "GET", "/os-fixed-ips/10.99.0.1") == (404, "Fixed IP not found for address 10.99.0.1.")


# -- floating IPs -------------------------------------------------------------------------------------
def test_floating_ip_bulk_create_and_delete(old, legacy_url):
    wanted = {"ip_range": "203.0.113.16/30", "pool": "bulk", "interface": "eth0"}
    assert old.post("/os-floating-ips-bulk", {"floating_ips_bulk_create": wanted}) == {
        "floating_ips_bulk_create": wanted}
    assert refused(old, "POST", "/os-floating-ips-bulk", {"floating_ips_bulk_create": wanted})[0] == 409
    mine = [each for each in old.get("/os-floating-ips-bulk")["floating_ip_info"] if each["pool"] == "bulk"]
    assert mine == [{"address": f"203.0.113.{number}", "pool": "bulk", "interface": None, "project_id": None,
                     "instance_uuid": None, "fixed_ip": None} for number in (17, 18)]
    taken = old.post("/os-floating-ips", {"pool": "bulk"})["floating_ip"]["id"]
    assert refused(old, "PUT", "/os-floating-ips-bulk/delete", {"ip_range": wanted["ip_range"]})[0] in (400, 409)
    old.delete(f"/os-floating-ips/{taken}")
    assert old.put("/os-floating-ips-bulk/delete", {"ip_range": wanted["ip_range"]}) == {
        "floating_ips_bulk_delete": wanted["ip_range"]}
    assert not [each for each in old.get("/os-floating-ips-bulk")["floating_ip_info"] if each["pool"] == "bulk"]
    assert refused(old, "PUT", "/os-floating-ips-bulk/other", {"ip_range": wanted["ip_range"]})[0] == 404
    code, message = refused(old, "POST", "/os-floating-ips-bulk", {"floating_ips_bulk_create": {"ip_range": "x"}})
    assert (code, "ip_range" in message) == (400, True)


def test_floating_ip_bulk_list_of_a_host(old, admin, suite, boot):
    host = suite.compute.host
    assert refused(old, "GET", f"/os-floating-ips-bulk/{host}")[0] == 404
    old.post("/os-floating-ips-bulk", {"floating_ips_bulk_create": {"ip_range": "203.0.113.16/32"}})
    floating = old.post("/os-floating-ips", {"pool": "nova"})["floating_ip"]
    server = boot(fixed_ip="10.71.0.9")
    admin.wait(server, "ACTIVE")
    old.post(f"/servers/{server}/action", {"addFloatingIp": {"address": floating["ip"]}})
    assert old.get(f"/os-floating-ips-bulk/{host}") == {"floating_ip_info": [{
        "address": "203.0.113.16", "pool": "nova", "interface": None, "project_id": "p", "instance_uuid": server,
        "fixed_ip": "10.71.0.9"}]}
    old.delete(f"/os-floating-ips/{floating['id']}")
    old.put("/os-floating-ips-bulk/delete", {"ip_range": "203.0.113.16/32"})


# -- DNS entries --------------------------------------------------------------------------------------
@pytest.fixture
def domains(old):
    """Return a function that creates a DNS domain: ``domains(name, **entry)``."""
    made = []

    def make(name, **entry):
        made.append(name)
        return old.put(f"/os-floating-ip-dns/{name}", {"domain_entry": entry})["domain_entry"]

    yield make
    for name in made:
        old.session.delete(f"{old.url}/v2.1/os-floating-ip-dns/{name}", timeout=60)


def test_dns_entry_create_show_update_and_delete(old, legacy_url, domains):
    assert domains("domain1.example.org", scope="public", project="mine") == {
        "domain": "domain1.example.org", "scope": "public", "project": "mine", "availability_zone": None}
    mine = Client(legacy_url, project="mine", roles="member,reader", version=OLD)
    names = "/os-floating-ip-dns/domain1.example.org/entries"
    entry = {"id": None, "ip": "192.0.2.1", "type": "A", "name": "instance1", "domain": "domain1.example.org"}
    assert mine.put(f"{names}/instance1", {"dns_entry": {"ip": "192.0.2.1", "dns_type": "A"}}) == {"dns_entry": entry}
    assert mine.get(f"{names}/instance1") == {"dns_entry": entry}
    assert mine.get(f"{names}/192.0.2.1") == {"dns_entries": [entry]}
    mine.put(f"{names}/Instance1", {"dns_entry": {"ip": "192.0.2.2", "dns_type": "A"}})
    assert mine.get(f"{names}/instance1")["dns_entry"]["ip"] == "192.0.2.2"
    assert refused(mine, "GET", f"{names}/192.0.2.1")[0] == 404
    mine.call("DELETE", f"{names}/instance1", expect=202)
    assert refused(mine, "GET", f"{names}/instance1")[0] == 404
    assert refused(mine, "DELETE", f"{names}/instance1")[0] == 404


def test_deleting_a_dns_domain_deletes_its_entries(old, domains):
    old.put("/os-floating-ip-dns/gone.example.org", {"domain_entry": {"scope": "public"}})
    old.put("/os-floating-ip-dns/gone.example.org/entries/a", {"dns_entry": {"ip": "192.0.2.1", "dns_type": "A"}})
    old.call("DELETE", "/os-floating-ip-dns/gone.example.org", expect=202)
    assert refused(old, "DELETE", "/os-floating-ip-dns/gone.example.org")[0] == 404
    domains("gone.example.org", scope="public")
    assert refused(old, "GET", "/os-floating-ip-dns/gone.example.org/entries/a")[0] == 404


def test_project_sees_its_own_and_shared_dns_domains_only(old, legacy_url, domains):
    domains("mine.example.org", scope="public", project="mine")
    domains("all.example.org", scope="public")
    domains("zone.example.org", scope="private", availability_zone="nova")
    others = Client(legacy_url, project="others", roles="member,reader", version=OLD)
    assert [each["domain"] for each in others.get("/os-floating-ip-dns")["domain_entries"]] == [
        "all.example.org", "zone.example.org"]
    entry = {"dns_entry": {"ip": "192.0.2.1", "dns_type": "A"}}
    assert refused(others, "PUT", "/os-floating-ip-dns/mine.example.org/entries/a", entry)[0] == 404
    assert refused(others, "GET", "/os-floating-ip-dns/mine.example.org/entries/a")[0] == 404
    assert refused(others, "PUT", "/os-floating-ip-dns/zone.example.org/entries/a", entry)[0] == 403


def test_dns_entry_in_a_shared_domain_belongs_to_its_project(legacy_url, domains):
    domains("all.example.org", scope="public")
    www = "/os-floating-ip-dns/all.example.org/entries/www"
    entry = {"dns_entry": {"ip": "192.0.2.1", "dns_type": "A"}}
    mine, others = (Client(legacy_url, project=project, roles="member,reader", version=OLD)
                    for project in ("mine", "others"))
    mine.put(www, entry)
    assert refused(others, "PUT", www, {"dns_entry": {"ip": "192.0.2.9", "dns_type": "A"}})[0] == 403
    assert refused(others, "DELETE", www)[0] == 403
    assert others.get(www)["dns_entry"]["ip"] == "192.0.2.1"
    mine.put(www, entry)


def test_dns_entry_in_the_subdomain_of_another_project_is_refused(old, legacy_url, domains):
    """Create entries with dots in their names: such a name belongs to the longest domain that matches it."""
    domains("example.net", scope="public")
    domains("theirs.example.net", scope="public", project="theirs")
    domains("inside.theirs.example.net", scope="private", availability_zone="nova")
    entry = {"dns_entry": {"ip": "192.0.2.9", "dns_type": "A"}}
    others, theirs = (Client(legacy_url, project=project, roles="member,reader", version=OLD)
                      for project in ("others", "theirs"))
    for client, domain, name in ((others, "example.net", "www.theirs"), (others, "example.net", "a.b.WWW.Theirs"),
                                 (others, "example.net", "theirs"), (others, "example.net", "db.inside.theirs"),
                                 (theirs, "theirs.example.net", "db.inside")):
        code, said = refused(client, "PUT", f"/os-floating-ip-dns/{domain}/entries/{name}", entry)
        assert (code, "theirs.example.net" in said) == (403, True), name
    for client, domain, name in ((others, "example.net", "nottheirs"), (others, "example.net", "theirs.mine"),
                                 (theirs, "theirs.example.net", "www")):
        client.put(f"/os-floating-ip-dns/{domain}/entries/{name}", entry)
    code, said = refused(old, "PUT", "/os-floating-ip-dns/mine.example.net", {"domain_entry": {"scope": "public"}})
    assert (code, "theirs.mine in example.net" in said) == (409, True)
    others.call("DELETE", "/os-floating-ip-dns/example.net/entries/theirs.mine", expect=202)
    domains("mine.example.net", scope="public")


def test_dns_entries_per_project_and_domain_are_limited(legacy_url, domains, monkeypatch):
    domains("all.example.org", scope="public")
    monkeypatch.setattr("nova.db.networks.floating_ip_dns._OF_PROJECT", 2)
    entry = {"dns_entry": {"ip": "192.0.2.1", "dns_type": "A"}}
    names = "/os-floating-ip-dns/all.example.org/entries"
    mine, others = (Client(legacy_url, project=project, roles="member,reader", version=OLD)
                    for project in ("mine", "others"))
    for name in ("a", "b"):
        mine.put(f"{names}/{name}", entry)
    assert refused(mine, "PUT", f"{names}/c", entry) == (403, "Quota exceeded, the project has too many names.")
    mine.put(f"{names}/a", entry)  # an existing entry
    others.put(f"{names}/c", entry)


@pytest.mark.parametrize(("name", "body"), [
    ("a", {"scope": "public", "availability_zone": "nova"}), ("a", {"scope": "private", "project": "p"}),
    ("a", {"scope": "other"}), ("a", {}), ("a_b.-c", {"scope": "public"}), ("a b", {"scope": "public"}),
    ("a" * 64, {"scope": "public"})])
def test_invalid_dns_domains_are_refused(old, name, body):
    assert refused(old, "PUT", f"/os-floating-ip-dns/{name}", {"domain_entry": body})[0] == 400


@pytest.mark.parametrize(("name", "body"), [
    ("a", {"ip": "x", "dns_type": "A"}), ("a", {"ip": "192.0.2.1", "dns_type": "MX"}), ("a", {"dns_type": "A"}),
    ("a", {"ip": "fd00::1", "dns_type": "A"}), ("-", {"ip": "192.0.2.1", "dns_type": "A"}),
    (".".join(["a" * 60] * 4), {"ip": "192.0.2.1", "dns_type": "A"})])
def test_invalid_dns_entries_are_refused(old, domains, name, body):
    domains("example.org", scope="public")
    assert refused(old, "PUT", f"/os-floating-ip-dns/example.org/entries/{name}", {"dns_entry": body})[0] == 400


# -- security group default rules ---------------------------------------------------------------------
def test_default_security_group_of_a_new_project_has_default_rules(old, legacy_url):
    rule = old.post("/os-security-group-default-rules", {"security_group_default_rule": {
        "ip_protocol": "TCP", "from_port": "80", "to_port": "80", "cidr": "10.10.10.0/24"}})[
            "security_group_default_rule"]
    assert rule == {"id": rule["id"], "ip_protocol": "tcp", "from_port": 80, "to_port": 80,
                    "ip_range": {"cidr": "10.10.10.0/24"}}
    this = f"/os-security-group-default-rules/{rule['id']}"
    assert old.get(this) == {"security_group_default_rule": rule}
    assert rule in old.get("/os-security-group-default-rules")["security_group_default_rules"]
    newcomer = Client(legacy_url, project=new_uuid(), version=OLD)
    [default] = newcomer.get("/os-security-groups")["security_groups"]
    assert [(each["ip_protocol"], each["from_port"], each["to_port"], each["ip_range"]) for each in default["rules"]
            ] == [("tcp", 80, 80, {"cidr": "10.10.10.0/24"})]
    old.call("DELETE", this, expect=204)
    assert refused(old, "DELETE", this)[0] == 404
    assert refused(old, "GET", this)[0] == 404
    assert newcomer.get("/os-security-groups")["security_groups"] == [default]
    another = Client(legacy_url, project=new_uuid(), version=OLD)
    assert another.get("/os-security-groups")["security_groups"][0]["rules"] == []


@pytest.mark.parametrize(("rule", "code"), [
    ({"ip_protocol": "sctp"}, 400), ({"ip_protocol": "tcp", "from_port": 1}, 400), ({"ip_protocol": 1}, 400),
    ({"ip_protocol": "tcp", "from_port": 2, "to_port": 1}, 400), ({"cidr": "x"}, 400)])
def test_invalid_security_group_default_rules_are_refused(old, rule, code):
    assert refused(old, "POST", "/os-security-group-default-rules", {"security_group_default_rule": rule})[0] == code


def test_duplicate_security_group_default_rule_is_refused(old):
    wanted = {"security_group_default_rule": {"ip_protocol": "icmp", "from_port": -1, "to_port": -1}}
    made = old.post("/os-security-group-default-rules", wanted)["security_group_default_rule"]
    assert made["ip_range"] == {"cidr": "0.0.0.0/0"}
    assert refused(old, "POST", "/os-security-group-default-rules", wanted) == (
        409, "This default rule already exists.")
    old.delete(f"/os-security-group-default-rules/{made['id']}")
    assert refused(old, "GET", "/os-security-group-default-rules/x")[0] == 400


# -- all legacy routes --------------------------------------------------------------------------------
def test_virtual_interfaces_have_the_keys_of_their_version(old, legacy_url, admin, network, boot):
    server = boot()
    admin.wait(server, "ACTIVE")
    [interface] = admin.get(f"/servers/{server}/os-interface")["interfaceAttachments"]
    short = {"id": interface["port_id"], "mac_address": interface["mac_addr"]}
    vifs = f"/servers/{server}/os-virtual-interfaces"
    assert old.get(vifs, version="2.11") == {"virtual_interfaces": [short]}
    assert old.get(vifs, version="2.43") == {"virtual_interfaces": [{**short, "net_id": network}]}
    assert old.session.get(f"{old.url}/v2{vifs}", timeout=60).json() == {
        "virtual_interfaces": [{**short, "OS-EXT-VIF-NET:net_id": network}]}
    assert refused(Client(legacy_url, project="others", roles="reader"), "GET", vifs)[0] == 404


def _path(route):
    return (route.path.replace("{id}", "1" if "rules" in route.path else NIL).replace("{server_id}", NIL)
            .replace("{domain}", "none.example.org").replace("{name}", "none"))


def _body(route):
    given = {"/os-networks": {"network": {"label": "n", "cidr": "10.74.0.0/24"}},
             "/os-networks/add": {"id": NIL},
             "/os-tenant-networks": {"network": {"label": "n", "cidr": "10.74.0.0/24"}},
             "/os-floating-ips-bulk": {"floating_ips_bulk_create": {"ip_range": "203.0.113.99/32"}},
             "/os-floating-ips-bulk/{id}": {"ip_range": "203.0.113.99/32"},
             "/os-floating-ip-dns/{domain}": {"domain_entry": {"scope": "public"}},
             "/os-floating-ip-dns/{domain}/entries/{name}": {"dns_entry": {"ip": "192.0.2.1", "dns_type": "A"}},
             "/os-security-group-default-rules": {"security_group_default_rule": {"ip_protocol": "tcp"}}}
    return {route.action: "host" if route.action == "associate_host" else None} if route.action else given.get(
        route.path) if route.method in ("POST", "PUT") else None


@pytest.mark.parametrize("route", legacy_routes.SERVED,
                         ids=lambda route: f"{route.method} {route.path} {route.action or ''}")
def test_legacy_route_refuses_other_roles_and_later_versions(legacy_url, route):
    nobody = Client(legacy_url, roles="other")
    expected = 404 if "server_id" in route.path else 403
    assert refused(nobody, route.method, _path(route), _body(route), f"2.{route.until}")[0] == expected
    assert refused(Client(legacy_url), route.method, _path(route), _body(route), f"2.{route.until + 1}")[0] == 404


@pytest.mark.parametrize("route", legacy_routes.SERVED,
                         ids=lambda route: f"{route.method} {route.path} {route.action or ''}")
def test_member_role_may_change_dns_entries_and_certificates_only(legacy_url, route):
    if route.method != "GET" and "/entries/" not in route.path and route.path != "/os-certificates":
        member = Client(legacy_url, roles="member,reader")
        assert refused(member, route.method, _path(route), _body(route), f"2.{route.until}")[0] == 403


def test_openapi_document_lists_legacy_routes_where_enabled(legacy_url, admin):
    with_them, without = (Client(base, version=OLD).get("/openapi")["paths"] for base in (legacy_url, admin.url))
    assert {route.path for route in legacy_routes.SERVED} - set(with_them) == set()
    assert "/os-fixed-ips/{id}" not in without
    assert "post" not in without["/os-networks"]


def test_legacy_responses_match_the_openapi_document(old, network, domains):
    domains("doc.example.org", scope="public")
    old.put("/os-floating-ip-dns/doc.example.org/entries/a", {"dns_entry": {"ip": "192.0.2.1", "dns_type": "A"}})
    paths = openapi.document(legacy_routes.added_to(routes.ROUTES), 35, "")["paths"]
    entry = "/os-floating-ip-dns/doc.example.org/entries/a"
    for path, asked in (("/os-fixed-ips/{id}", "/os-fixed-ips/10.71.0.9"), ("/os-floating-ips-bulk",) * 2,
                        ("/os-floating-ip-dns",) * 2, ("/os-security-group-default-rules",) * 2,
                        ("/os-floating-ip-dns/{domain}/entries/{name}", entry),
                        ("/os-networks/{id}", f"/os-networks/{network}")):
        schema = paths[path]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
        jsonschema.Draft202012Validator(schema).validate(old.get(asked))


def test_legacy_routes_of_networks_are_disabled_with_neutron(suite):
    CONF.set_override("legacy", True, group="api")
    CONF.set_override("driver", "neutron", group="network")
    try:
        served = {(route.method, route.path): route.handler for route in routes.table()}
        assert served["POST", "/os-networks"] is legacy_routes.no_longer_available
        assert served["POST", "/os-certificates"] is certificates.create
        assert {key for key, handler in served.items() if handler.__module__.startswith("nova.api.legacy")
                and handler is not legacy_routes.no_longer_available} == {
            ("POST", "/os-certificates"), ("GET", "/os-certificates/{id}")}
    finally:
        CONF.clear_override("driver", group="network")
        CONF.clear_override("legacy", group="api")
