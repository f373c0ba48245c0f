"""Ports of Neutron: create, bind, attach, update by events, and delete without leftovers."""

import contextlib
import copy
import threading
import time

import pytest
import sqlalchemy as sa

from nova.conductor.service_events import MissedEvents
from nova.conf import CONF
from nova.db import tables
from nova.db.hosts import services
from nova.db.servers import servers
from nova.metadata.openstack import network_data
from nova.network.neutron.allocator import NeutronAllocator
from nova.objects.servers import states
from nova.service.process import workers_of
from tests.functional.client import Failed, wait_for
from tests.functional.networks.conftest import plug
from tests.functional.networks.test_plugging import tell
from tests.functional.servers.test_interfaces import attach, attached, refused, wait_idle


# --- boot and delete -------------------------------------------------------------------------------------
def test_boot_creates_a_port_and_delete_removes_it(suite, admin, member, driver, neutron, blue, boot):
    server = boot({"uuid": blue, "fixed_ip": "10.50.0.77"})
    wait_for(lambda: admin.server(server)["OS-EXT-STS:power_state"] == states.POWER_PAUSED)
    port, = neutron.ports(device_id=server)
    assert (port["binding:host_id"], port["tenant_id"], port["device_owner"]) == (
        suite.compute.host, "p", "compute:nova")
    shown, = attached(member, server)
    assert (shown["port_id"], shown["port_state"], shown["mac_addr"], shown["fixed_ips"]) == (
        port["id"], "DOWN", port["mac_address"], port["fixed_ips"])
    plug(admin, neutron, server)
    assert admin.wait(server, "ACTIVE")["addresses"]["blue"][0]["addr"] == "10.50.0.77"
    assert driver.guest(server).interfaces == (port["mac_address"],)
    member.delete(f"/servers/{server}")
    member.wait_gone(server)
    assert neutron.ports() == []


def test_network_auto_creates_the_network_of_a_project_without(admin, member, neutron, flavor, image_id):
    with pytest.raises(Failed) as error:
        member.boot(flavor, image_id, networks="auto")
    assert (error.value.code, error.value.message) == (
        400, "Unable to automatically allocate a network for project p")
    neutron.extensions.append("auto-allocated-topology")
    for _number in range(2):
        server = member.boot(flavor, image_id, networks="auto")
        plug(admin, neutron, server)
        assert list(member.wait(server, "ACTIVE")["addresses"]) == ["auto"]


def test_user_port_is_unbound_and_kept_on_server_delete(admin, member, neutron, blue, boot):
    port = neutron.port(blue)["id"]
    server = boot({"port": port})
    plug(admin, neutron, server)
    admin.wait(server, "ACTIVE")
    assert [item["port_id"] for item in attached(member, server)] == [port]
    member.delete(f"/servers/{server}")
    member.wait_gone(server)
    left, = neutron.ports()
    assert (left["id"], left["device_id"], left["device_owner"], left["binding:host_id"]) == (port, "", "", None)


def test_boot_with_invisible_misspelled_or_used_ports_is_refused_without_changes(
        admin, member, neutron, blue, boot, flavor, image_id):
    theirs = neutron.network("theirs", project="q")
    their_port, used = neutron.port(theirs, project="q")["id"], neutron.port(blue, device_id="other")["id"]
    bare = neutron.network("bare", cidr=None)
    upper = neutron.port(blue, id="aaaaaaaa-2222-4333-8444-555555555555")["id"].upper()
    other = neutron.network("other", id="bbbbbbbb-2222-4333-8444-555555555555").upper()
    before = neutron.ports()
    for networks, code, message in [
            ({"port": upper}, 400, f"Port id {upper} could not be found."),
            ({"uuid": other}, 400, f"Network {other} could not be found."),
            ({"uuid": theirs}, 400, f"Network {theirs} could not be found."),
            ({"port": their_port}, 400, f"Port id {their_port} could not be found."),
            ({"port": used}, 409, f"Port {used} is still in use."),
            ({"uuid": bare}, 400, f"Network {bare} requires a subnet in order to boot instances on.")]:
        assert refused(boot, networks) == (code, message)
    with pytest.raises(Failed) as error:
        member.boot(flavor, image_id, networks=[{"uuid": blue}], security_groups=[{"name": "nobody's"}])
    assert error.value.code == 400
    assert neutron.ports() == before
    assert member.get("/servers")["servers"] == []


def test_boot_is_refused_with_503_while_neutron_is_unavailable(member, neutron, blue, boot):
    neutron.faults["GET", "networks"] = [503] * 4
    assert refused(boot, {"uuid": blue})[0] == 503
    assert member.get("/servers")["servers"] == []


# --- malformed responses -----------------------------------------------------------------------------------
def having(**values):
    """Return a function that changes each row of a response."""
    def change(answer):
        return {kind: [{**row, **values} for row in told] if isinstance(told, list) else {**told, **values}
                for kind, told in answer.items()}

    return change


@pytest.mark.parametrize("twist", [
    lambda _answer: {}, lambda _answer: [], lambda _answer: "no", lambda _answer: {"network": None},
    having(id=7), having(subnets=3), having(name={})])
def test_malformed_network_response_refuses_the_boot(member, neutron, blue, boot, twist):
    neutron.twists["GET", "networks"] = [twist]
    code, message = refused(boot, {"uuid": blue})
    assert (code, "its response is malformed" in message) == (503, True)
    assert member.get("/servers")["servers"] == []


@pytest.mark.parametrize(("asked", "twist"), [
    (("POST", "ports"), lambda _answer: {}), (("POST", "ports"), having(mac_address=5)),
    (("POST", "ports"), having(fixed_ips=[{"subnet_id": "s", "ip_address": "nowhere"}])),
    (("PUT", "ports"), lambda _answer: None), (("PUT", "ports"), having(**{"binding:profile": [1]})),
    (("PUT", "ports"), having(**{"binding:vif_details": "x"})), (("GET", "ports"), lambda _answer: {"ports": None}),
    (("GET", "subnets"), having(gateway_ip=7)), (("GET", "subnets"), having(cidr="none"))])
def test_malformed_port_and_subnet_responses_are_requested_again(admin, member, neutron, blue, boot, asked, twist):
    neutron.twists[asked] = [twist]
    server = boot({"uuid": blue})
    plug(admin, neutron, server)
    admin.wait(server, "ACTIVE")
    assert not neutron.twists[asked]
    assert [item["port_id"] for item in attached(member, server)] == [port["id"] for port in neutron.ports()]
    assert [shown["id"] for shown in admin.get("/servers/detail")["servers"]] == [server]


def test_delete_ignores_listed_ports_of_other_servers(admin, neutron, blue, server):
    other = neutron.port(blue, project="q", device_id="somebody")["id"]
    neutron.twists["GET", "ports"] = [lambda _answer: {"ports": neutron.ports()}] * 4
    admin.delete(f"/servers/{server}")
    admin.wait_gone(server)
    assert [port["id"] for port in neutron.ports()] == [other]


# --- failures of port requests ---------------------------------------------------------------------------
@pytest.mark.parametrize("status", [503, -503])
def test_failed_port_create_is_retried_without_duplicate_ports(admin, neutron, blue, boot, status):
    neutron.faults["POST", "ports"] = [status, status]
    server = boot({"uuid": blue}, {"uuid": blue})
    plug(admin, neutron, server, 2)
    admin.wait(server, "ACTIVE")
    assert len(neutron.ports()) == 2


def test_failed_build_deletes_or_unbinds_its_ports(admin, neutron, blue, boot, driver):
    kept = neutron.port(blue)["id"]
    driver.behaviour.failure["spawn"] = 1.0
    server = boot({"uuid": blue}, {"port": kept})
    assert admin.wait(server, "ERROR")["addresses"] == {}
    assert [(port["id"], port["device_id"]) for port in neutron.ports()] == [(kept, "")]


def test_delete_during_a_build_leaves_no_port(admin, neutron, blue, boot):
    neutron.faults["POST", "ports"] = [-503]
    server = boot({"uuid": blue})
    wait_for(lambda: neutron.ports(device_id=server))
    admin.delete(f"/servers/{server}")
    admin.wait_gone(server)
    wait_for(lambda: neutron.ports() == [])


def test_delete_retries_when_neutron_is_unavailable(admin, neutron, server):
    neutron.faults["DELETE", "ports"] = [503]
    admin.delete(f"/servers/{server}")
    admin.wait_gone(server)
    assert neutron.ports() == []


def test_deletes_blocked_by_neutron_do_not_block_builds(admin, member, neutron, blue, boot, flavor, image_id):
    servers = [boot({"uuid": blue}) for _number in range(CONF.conductor.outside_threads + 2)]
    for uuid in servers:
        plug(admin, neutron, uuid)
        admin.wait(uuid, "ACTIVE")
    answers = threading.Event()
    neutron.twists["DELETE", "ports"] = [lambda answer: answers.wait(60) and answer] * len(servers)
    try:
        for uuid in servers:
            admin.delete(f"/servers/{uuid}")
        wait_for(lambda: len(neutron.twists["DELETE", "ports"]) <= 2)
        admin.wait(member.boot(flavor, image_id, networks="none"), "ACTIVE", seconds=30)
        assert len(neutron.twists["DELETE", "ports"]) <= 2
    finally:
        answers.set()
    for uuid in servers:
        admin.wait_gone(uuid)


# --- attaching -------------------------------------------------------------------------------------------
def test_interface_attach_creates_a_port_and_detach_deletes_it(admin, member, neutron, driver, server):
    green = neutron.network("green", cidr="10.51.0.0/24")
    made = attach(member, server, net_id=green, tag="data")
    port, = neutron.ports(network_id=green)
    assert (made["port_id"], made["fixed_ips"], made["port_state"]) == (port["id"], port["fixed_ips"], "DOWN")
    plug(admin, neutron, server, 2)
    wait_for(lambda: made["mac_addr"] in driver.guest(server).interfaces)
    assert wait_idle(admin, server)["message"] is None
    member.delete(f"/servers/{server}/os-interface/{port['id']}", expect=202)
    wait_for(lambda: len(attached(member, server)) == 1)
    assert neutron.ports(network_id=green) == []
    assert made["mac_addr"] not in driver.guest(server).interfaces


def test_delete_of_a_server_booted_without_ports_leaves_no_port(admin, member, neutron, blue, flavor, image_id):
    server = member.boot(flavor, image_id, networks="none")
    member.wait(server, "ACTIVE")
    attach(member, server, net_id=blue)
    plug(admin, neutron, server)
    wait_idle(admin, server)
    member.delete(f"/servers/{server}")
    member.wait_gone(server)
    assert neutron.ports() == []


def test_user_port_is_attached_and_detached(admin, member, neutron, blue, server):
    port = neutron.port(blue)["id"]
    assert attach(member, server, port_id=port)["port_id"] == port
    assert refused(attach, member, server, port_id=port) == (409, f"Port {port} is still in use.")
    plug(admin, neutron, server, 2)
    wait_idle(admin, server)
    member.delete(f"/servers/{server}/os-interface/{port}", expect=202)
    wait_for(lambda: len(attached(member, server)) == 1)
    assert [found["device_id"] for found in neutron.ports() if found["id"] == port] == [""]


@pytest.mark.parametrize("of_user", [True, False])
def test_interface_attach_that_fails_on_the_host_leaves_no_port(admin, member, neutron, driver, blue, server, of_user):
    port = neutron.port(blue)["id"] if of_user else None
    before = sorted(found["id"] for found in neutron.ports())
    driver.behaviour.failure["attach_interface"] = 1.0
    # The failure may happen before or after the response.
    with contextlib.suppress(Failed):
        attach(member, server, **({"port_id": port} if of_user else {"net_id": blue}))
    wait_for(lambda: len(attached(member, server)) == 1)
    assert sorted(found["id"] for found in neutron.ports()) == before
    assert len(neutron.ports(device_id=server)) == 1


def test_neutron_errors_are_returned_to_the_client(member, neutron, blue, server):
    taken = neutron.ports(device_id=server)[0]["fixed_ips"][0]["ip_address"]
    assert refused(attach, member, server, net_id=blue, fixed_ips=[{"ip_address": taken}])[0] == 409
    neutron.faults["POST", "ports"] = [400]
    assert refused(attach, member, server, net_id=blue) == (400, "Invalid input received: It is broken.")
    assert len(neutron.ports()) == len(attached(member, server)) == 1


def test_security_group_is_added_to_the_ports_of_a_running_server_and_removed(member, neutron, server):
    web = neutron._add("security-groups", name="web", tenant_id="p")["id"]
    for name in ("web", web):
        member.action(server, "addSecurityGroup", {"name": name})
        assert [port["security_groups"] for port in neutron.ports()] == [[web]]
        assert member.server(server)["security_groups"] == [{"name": "default"}, {"name": name}]
    assert len([change for change in neutron.changes if "security_groups" in change]) == 1
    assert neutron.tokens[-1], "the rights of the caller"
    member.action(server, "removeSecurityGroup", {"name": "web"})
    assert [port["security_groups"] for port in neutron.ports()] == [[]]
    assert member.server(server)["security_groups"] == [{"name": "default"}]
    assert refused(member.action, server, "removeSecurityGroup", {"name": "web"}) == (
        404, f"Security group web not associated with the instance {server}")
    assert refused(member.action, server, "addSecurityGroup", {"name": "mail"}) == (
        404, "Security group mail not found.")
    neutron._add("security-groups", name="web", tenant_id="p")
    assert refused(member.action, server, "addSecurityGroup", {"name": "web"})[0] == 409
    with neutron.lock:
        for port in neutron.rows["ports"].values():
            port["port_security_enabled"] = False
    assert refused(member.action, server, "addSecurityGroup", {"name": web})[0] == 400


def test_security_groups_and_rules_of_neutron_by_the_routes_of_nova(member, neutron, server):
    made = member.post("/os-security-groups", {"security_group": {"name": "web", "description": "d"}}, version="2.1")
    group = made["security_group"]
    assert neutron.rows["security-groups"][group["id"]]["name"] == "web"
    assert (group["rules"], group["tenant_id"]) == ([], "p")
    assert ("POST", "security-groups", "m:p") in neutron.calls, "the rights of the caller"
    rule = {"parent_group_id": group["id"], "ip_protocol": "tcp", "from_port": 22, "to_port": 22, "cidr": "10.0.0.0/8"}
    added = member.post("/os-security-group-rules", {"security_group_rule": rule}, version="2.1")["security_group_rule"]
    assert {**rule, "ip_range": {"cidr": "10.0.0.0/8"}}.items() >= {
        name: added[name] for name in ("parent_group_id", "ip_protocol", "from_port", "to_port", "ip_range")}.items()
    assert refused(member.post, "/os-security-group-rules", {"security_group_rule": rule}, version="2.1")[0] == 400
    ping = {"parent_group_id": group["id"], "ip_protocol": "icmp", "from_port": -1, "to_port": -1,
            "group_id": group["id"]}
    shown = member.post("/os-security-group-rules", {"security_group_rule": ping}, version="2.1")["security_group_rule"]
    assert (shown["from_port"], shown["group"]) == (-1, {"name": "web", "tenant_id": "p"})
    stored = neutron.rows["security-group-rules"][shown["id"]]
    assert (stored["direction"], stored["port_range_min"], stored["remote_group_id"]) == ("ingress", None, group["id"])
    member.put(f"/os-security-groups/{group['id']}", {"security_group": {"name": "www", "description": ""}},
               version="2.1")
    assert [(item["name"], len(item["rules"])) for item in member.get("/os-security-groups", version="2.1")[
        "security_groups"]] == [("www", 2)]
    member.action(server, "addSecurityGroup", {"name": "www"})
    assert [item["id"] for item in member.get(f"/servers/{server}/os-security-groups")["security_groups"]] == [
        group["id"]]
    assert refused(member.delete, f"/os-security-groups/{group['id']}", version="2.1")[0] == 400
    member.action(server, "removeSecurityGroup", {"name": "www"})
    member.delete(f"/os-security-group-rules/{added['id']}", version="2.1")
    member.delete(f"/os-security-groups/{group['id']}", version="2.1")
    assert refused(member.get, f"/os-security-groups/{group['id']}", version="2.1")[0] == 404
    assert refused(member.delete, f"/os-security-group-rules/{added['id']}", version="2.1")[0] == 404


# --- events ----------------------------------------------------------------------------------------------
def test_network_changed_event_updates_the_addresses(admin, member, neutron, server):
    port, = neutron.ports()
    with neutron.lock:
        row = neutron.rows["ports"][port["id"]]
        row["fixed_ips"] = [{**row["fixed_ips"][0], "ip_address": "10.50.0.200"}]
    assert tell(admin, server, port["id"], name="network-changed") == 200
    wait_for(lambda: member.server(server)["addresses"]["blue"][0]["addr"] == "10.50.0.200")


def test_late_port_response_does_not_overwrite_newer_addresses(admin, member, neutron, server):
    """Two events arrive, and the ports that were read for the first event are stored after those of the second."""
    port, = neutron.ports()
    held, stale, released = threading.Event(), [], threading.Event()

    def late(answer):
        stale.append(answer := copy.deepcopy(answer))
        held.set()
        assert released.wait(20)
        return answer

    wait_for(lambda: member.server(server)["OS-EXT-STS:task_state"] is None)
    neutron.twists["GET", "ports"] = [late]
    assert tell(admin, server, port["id"], name="network-changed") == 200
    assert held.wait(15)
    with neutron.lock:
        row = neutron.rows["ports"][port["id"]]
        row["fixed_ips"] = [{**row["fixed_ips"][0], "ip_address": "10.50.0.201"}]
    assert tell(admin, server, port["id"], name="network-changed") == 200
    wait_for(lambda: member.server(server)["addresses"]["blue"][0]["addr"] == "10.50.0.201")
    assert stale[0]["ports"][0]["fixed_ips"] == port["fixed_ips"]
    before = len(neutron.calls)
    released.set()
    wait_for(lambda: ("GET", "ports") in [call[:2] for call in neutron.calls[before:]])
    assert member.server(server)["addresses"]["blue"][0]["addr"] == "10.50.0.201"


def test_floating_address_is_shown_while_it_is_associated(suite, admin, member, neutron, blue, boot, server):
    neutron.extensions.append("router")
    suite.conductor.core.allocator = NeutronAllocator()  # has read no extensions yet
    port, = neutron.ports()
    made = neutron._add("floatingips", port_id=port["id"], floating_ip_address="203.0.113.7")
    assert tell(admin, server, port["id"], name="network-changed") == 200
    wait_for(lambda: [(address["OS-EXT-IPS:type"], address["addr"]) for address in member.server(server)["addresses"][
        "blue"]] == [("fixed", port["fixed_ips"][0]["ip_address"]), ("floating", "203.0.113.7")])
    with neutron.lock:
        del neutron.rows["floatingips"][made["id"]]
    assert tell(admin, server, port["id"], name="network-changed") == 200
    wait_for(lambda: len(member.server(server)["addresses"]["blue"]) == 1)
    mine = neutron.port(blue)
    neutron._add("floatingips", port_id=mine["id"], floating_ip_address="203.0.113.8")
    other = boot({"port": mine["id"]})
    wait_for(lambda: mine["id"] in [port["id"] for port in neutron.ports(device_id=other) if port["binding:host_id"]])
    assert tell(admin, other, mine["id"]) == 200
    assert [address["addr"] for address in member.wait(other, "ACTIVE")["addresses"]["blue"]] == [
        mine["fixed_ips"][0]["ip_address"], "203.0.113.8"]


@pytest.fixture
def former_conductor(suite):
    """A conductor that is forced down."""
    db = suite.conductor.core.db
    former = db.write(lambda connection: services.register(connection, "former", "nova-conductor", "conductor", 1))
    this = tables.services.c.uuid == former.uuid
    db.write(lambda connection: connection.execute(sa.update(tables.services).where(this).values(forced_down=True)))
    yield
    db.write(lambda connection: connection.execute(sa.delete(tables.services).where(this)))


def test_missed_events_are_found_by_comparison_with_the_ports_of_hosts(suite, admin, member, neutron, driver, server,
                                                                       former_conductor):
    neutron.extensions.append("router")
    suite.conductor.core.allocator = NeutronAllocator()  # has read no extensions yet
    healer = MissedEvents(suite.conductor.core, suite.conductor.engine)
    hosts = len(admin.get("/os-services", binary="nova-compute")["services"])

    def is_quiet():
        """Return True if no request of the boot arrived for a moment."""
        before = len(neutron.calls)
        time.sleep(0.5)
        return len(neutron.calls) == before

    def compare_all():
        """Compare all hosts; return the kinds of the requests to Neutron."""
        neutron.calls.clear()
        for _number in range(hosts):
            assert healer.run() == CONF.heal_instance_info_cache_interval * workers_of(CONF.conductor.workers) / hosts
        return {kind: [call[1] for call in neutron.calls].count(kind) for kind in ("ports", "floatingips", "networks")}

    admin.wait(server, "ACTIVE")
    port, = neutron.ports()
    with neutron.lock:
        neutron.rows["ports"][port["id"]]["status"] = "ACTIVE"
    wait_for(is_quiet)
    assert compare_all() == {"ports": hosts, "floatingips": 1, "networks": 0}
    with neutron.lock:
        row = neutron.rows["ports"][port["id"]]
        row["fixed_ips"] = [{**row["fixed_ips"][0], "ip_address": "10.50.0.201"}]
        neutron._add("floatingips", port_id=port["id"], floating_ip_address="203.0.113.9")
    compare_all()
    wait_for(lambda: [address["addr"] for address in member.server(server)["addresses"]["blue"]] == [
        "10.50.0.201", "203.0.113.9"])
    neutron.port(port["network_id"])
    with neutron.lock:
        del neutron.rows["ports"][port["id"]]
    compare_all()
    wait_for(lambda: attached(member, server) == [])
    assert driver.guest(server).interfaces == ()
    assert compare_all() == {"ports": hosts, "floatingips": 0, "networks": 0}


def test_network_vif_deleted_event_detaches_the_interface(admin, member, neutron, driver, server):
    port, = neutron.ports()
    with neutron.lock:
        del neutron.rows["ports"][port["id"]]
    assert tell(admin, server, port["id"], name="network-vif-deleted") == 200
    wait_for(lambda: attached(member, server) == [])
    assert driver.guest(server).interfaces == ()


# --- DNS names, routes and unsupported ports ---------------------------------------------------------------
@pytest.fixture
def named(neutron):
    """Return a Neutron with the extension dns-integration."""
    neutron.extensions.append("dns-integration")
    return neutron


def test_ports_get_the_hostname_of_their_server_as_dns_name(admin, member, named, boot):
    server = boot({"uuid": named.network("blue")}, {"port": (given := named.port(named.network("red")))["id"]})
    plug(admin, named, server, 2)
    hostname = admin.wait(server, "ACTIVE")["OS-EXT-SRV-ATTR:hostname"]
    assert [port["dns_name"] for port in named.ports(device_id=server)] == [hostname, hostname]
    member.delete(f"/servers/{server}")
    member.wait_gone(server)
    assert [(port["id"], port["device_id"], port["dns_name"]) for port in named.ports()] == [(given["id"], "", "")]


def namings(named):
    """Return the fields and the token of each update that named a port."""
    return [(sorted(changes), token) for changes, token in zip(named.changes, named.tokens, strict=True)
            if changes.get("dns_name")]


def test_port_is_named_while_nova_binds_it_on_a_network_without_dns_domain(admin, named, boot):
    server = boot({"uuid": named.network("blue", dns_domain="")})
    plug(admin, named, server)
    admin.wait(server, "ACTIVE")
    assert namings(named) == [(["binding:host_id", "device_id", "device_owner", "dns_name"], None)]


@pytest.mark.parametrize("given", [False, True], ids=["new port", "port of a user"])
def test_port_on_a_network_with_dns_domain_is_named_with_the_token_of_the_user(admin, named, boot, given):
    network = named.network("blue", dns_domain="example.org.")
    server = boot({"port": named.port(network)["id"]} if given else {"uuid": network})
    plug(admin, named, server)
    hostname = admin.wait(server, "ACTIVE")["OS-EXT-SRV-ATTR:hostname"]
    assert [port["dns_name"] for port in named.ports(device_id=server)] == [hostname]
    assert namings(named) == [(["dns_name"], "m:p")]


def test_attached_port_on_a_network_with_dns_domain_is_named_with_the_token_of_the_user(admin, member, named, server):
    red = named.network("red", cidr="10.51.0.0/24", dns_domain="example.org.")
    named.changes.clear()
    named.tokens.clear()
    port = attach(member, server, net_id=red)["port_id"]
    assert tell(admin, server, port) == 200
    wait_idle(admin, server)
    assert namings(named) == [(["dns_name"], "m:p")]


def test_dns_name_that_the_user_may_not_set_fails_the_build_and_leaves_no_port(admin, named, boot):
    named.faults["PUT", "ports"] = [0, 403]
    server = boot({"uuid": named.network("blue", dns_domain="example.org.")})
    assert admin.wait(server, "ERROR")["fault"]["code"] == 403
    assert named.ports() == []


def test_migration_keeps_the_dns_name_of_a_port(admin, named, blue, boot, second):
    server = boot({"uuid": blue})
    port, = plug(admin, named, server)
    admin.wait(server, "ACTIVE")
    named.rows["ports"][port["id"]]["dns_name"] = "changed-by-its-user"
    named.changes.clear()
    before = port["binding:host_id"]
    admin.action(server, "migrate")
    wait_for(lambda: named.ports()[0]["binding:host_id"] != before)
    plug(admin, named, server)
    admin.wait(server, "VERIFY_RESIZE")
    bindings = [changes for changes in named.changes if "binding:host_id" in changes]
    assert bindings
    assert not any("dns_name" in changes for changes in named.changes)
    assert named.ports()[0]["dns_name"] == "changed-by-its-user"


def test_dns_name_is_not_sent_without_dns_integration(admin, neutron, blue, boot):
    server = boot({"uuid": blue})
    plug(admin, neutron, server)
    admin.wait(server, "ACTIVE")
    assert not any("dns_name" in changes for changes in neutron.changes)


def test_port_with_the_dns_name_of_another_host_fails_the_build(admin, member, named, blue, boot):
    port = named.port(blue, dns_name="another")
    server = boot({"port": port["id"]})
    assert "its dns_name another is not the hostname" in admin.wait(server, "ERROR")["fault"]["message"]
    assert named.ports(id=port["id"])[0]["device_id"] == ""


@pytest.mark.parametrize("wants", [
    {"binding:vnic_type": "direct"}, {"device_profile": "fpga"},
    {"resource_request": {"request_groups": [{"resources": {"NET_BW_EGR_KILOBIT_PER_SEC": 1000}}]}}])
def test_unsupported_port_attributes_are_refused_by_name(member, neutron, blue, boot, wants):
    port = neutron.port(blue, **wants)
    field, = wants
    with pytest.raises(Failed) as failed:
        boot({"port": port["id"]})
    assert failed.value.code == 400
    assert f"{field}=" in failed.value.message


@pytest.mark.parametrize(("kind", "fields", "refused_"), [
    ("minimum_bandwidth", {"provider:physical_network": "physnet1"}, True),
    ("minimum_bandwidth", {"segments": [{}]}, True), ("minimum_bandwidth", {"provider:physical_network": None}, False),
    ("minimum_packet_rate", {}, True), ("bandwidth_limit", {"provider:physical_network": "physnet1"}, False)])
def test_network_whose_ports_get_guarantees_is_refused(admin, member, neutron, server, kind, fields, refused_):
    """Nova does not claim them. Neutron guarantees bandwidth on physical networks only."""
    neutron.policies["policy"] = [kind]
    network = neutron.network("guaranteed", cidr="10.60.0.0/24", qos_policy_id="policy", **fields)
    if refused_:
        assert refused(attach, member, server, net_id=network) == (
            400, f"Network {network} has a QoS policy with a minimum bandwidth or packet rate, which is not supported.")
    else:
        attach(member, server, net_id=network)
        plug(admin, neutron, server, 2)
        wait_idle(member, server)
    assert len(neutron.ports()) == 2 - refused_


def test_subnet_routes_are_included_in_guest_network_data(suite, admin, neutron, blue, boot):
    for subnet in neutron.rows["subnets"].values():
        subnet |= {"enable_dhcp": False, "host_routes": [{"destination": "192.0.2.0/24", "nexthop": "10.50.0.9"}]}
    server = boot({"uuid": blue})
    plug(admin, neutron, server)
    admin.wait(server, "ACTIVE")
    known = suite.conductor.core.db.read(lambda connection: servers.get(connection, server))
    assert network_data(known.network_info)["networks"][0]["routes"] == [
        {"network": "0.0.0.0", "netmask": "0.0.0.0", "gateway": "10.50.0.1"},
        {"network": "192.0.2.0", "netmask": "255.255.255.0", "gateway": "10.50.0.9"}]
