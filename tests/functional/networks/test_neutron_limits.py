"""Neutron: long lists, quotas, ports of other projects, and an account without rights."""

import pytest

from nova.cmd import manage
from nova.conductor.service_events import MissedEvents
from nova.network.neutron.allocator import NeutronAllocator
from tests.functional.client import Failed, wait_for
from tests.functional.networks.conftest import plug
from tests.functional.servers.test_interfaces import attach, attached, refused, wait_idle


@pytest.fixture
def compare_all(suite, admin, neutron):
    """Return a function that compares the servers of all hosts with the ports of Neutron."""
    def compare():
        healer = MissedEvents(suite.conductor.core, suite.conductor.engine)
        for _service in admin.get("/os-services", binary="nova-compute")["services"]:
            healer.run()

    return compare


def test_lists_longer_than_a_page_are_read_completely(admin, member, neutron, server, compare_all, blue, boot):
    neutron.page = 2
    others = [neutron.port(blue)["id"] for _number in range(4)]
    second = boot({"uuid": blue})
    plug(admin, neutron, second)
    admin.wait(second, "ACTIVE")
    with neutron.lock:
        for port in neutron.rows["ports"].values():
            port["binding:host_id"] = neutron.ports(device_id=server)[0]["binding:host_id"]
        changed, = neutron.ports(device_id=second)
        neutron.rows["ports"][changed["id"]]["fixed_ips"] = [{**changed["fixed_ips"][0], "ip_address": "10.50.0.202"}]
    neutron.calls.clear()
    compare_all()
    wait_for(lambda: member.server(second)["addresses"]["blue"][0]["addr"] == "10.50.0.202")
    groups = [neutron._add("security-groups", name=f"g{number}", tenant_id="p")["id"] for number in range(5)]
    member.action(second, "addSecurityGroup", {"name": "g4"})
    assert neutron.ports(device_id=second)[0]["security_groups"] == [groups[4]]
    assert len(member.get("/os-security-groups", version="2.1")["security_groups"]) == 5
    assert len(neutron.ports()) == len(others) + 2


def test_interfaces_stay_attached_when_the_account_of_nova_loses_its_rights(
        admin, member, neutron, server, compare_all, caplog):
    """All ports seem to be deleted then."""
    admin.wait(server, "ACTIVE")
    neutron.demoted = True
    compare_all()
    assert "has lost the role admin" in caplog.text
    neutron.demoted = False
    with neutron.lock:
        ports = dict(neutron.rows["ports"])
        neutron.rows["ports"].clear()
    caplog.clear()
    compare_all()
    assert "Neutron has lost its data" in caplog.text
    wait_idle(member, server)
    assert len(attached(member, server)) == 1
    neutron.rows["ports"].update(ports)


def test_port_of_another_project_with_the_id_of_a_server_is_neither_used_nor_deleted(
        admin, member, neutron, blue, server):
    """Users may give their ports any device_id. On a shared network such a port fits the request."""
    foreign = neutron.port(blue, project="q", device_id=server)["id"]
    attach(member, server, net_id=blue)
    plug(admin, neutron, server, 2)
    wait_idle(member, server)
    assert foreign not in [item["port_id"] for item in attached(member, server)]
    web = neutron._add("security-groups", name="web", tenant_id="p")["id"]
    member.action(server, "addSecurityGroup", {"name": "web"})
    assert [web in port["security_groups"] for port in neutron.ports(device_id=server, tenant_id="p")] == [True, True]
    member.delete(f"/servers/{server}")
    member.wait_gone(server)
    assert [port["id"] for port in neutron.ports()] == [foreign]


def test_security_groups_changed_by_two_requests_at_once_are_both_kept(member, neutron, server):
    web, mail = (neutron._add("security-groups", name=name, tenant_id="p")["id"] for name in ("web", "mail"))
    port, = neutron.ports()

    def change_meanwhile(answer):
        with neutron.lock:
            row = neutron.rows["ports"][port["id"]]
            row.update(security_groups=[mail], revision_number=row["revision_number"] + 1)
        return answer

    # The listed ports have the groups before the change of the other request.
    def read(answer):
        return change_meanwhile({"ports": [dict(row) for row in answer["ports"]]})

    neutron.twists["GET", "ports"] = [read]
    member.action(server, "addSecurityGroup", {"name": "web"})
    assert sorted(neutron.ports()[0]["security_groups"]) == sorted([web, mail])
    neutron.twists["GET", "ports"] = 3 * [read]
    assert refused(member.action, server, "removeSecurityGroup", {"name": "mail"})[0] == 409


def test_group_id_is_preferred_to_the_name_of_another_group(member, neutron, server):
    web = neutron._add("security-groups", name="web", tenant_id="p")["id"]
    neutron._add("security-groups", name=web, tenant_id="p")
    member.action(server, "addSecurityGroup", {"name": web})
    assert neutron.ports()[0]["security_groups"] == [web]


def test_port_quota_limits_the_number_of_servers_before_anything_is_created(
        suite, admin, member, neutron, blue, flavor, image_id, server):
    neutron.extensions.append("quota_details")
    suite.conductor.core.allocator = NeutronAllocator()  # has read no extensions yet
    neutron.free_ports = 3
    before = {item["id"] for item in member.get("/servers")["servers"]}
    with pytest.raises(Failed) as error:
        member.boot(flavor, image_id, networks=[{"uuid": blue}, {"uuid": blue}], min_count=2, max_count=5)
    assert (error.value.code, error.value.message) == (403, "Maximum number of ports exceeded")
    assert {item["id"] for item in member.get("/servers")["servers"]} == before
    member.boot(flavor, image_id, networks=[{"uuid": blue}], min_count=1, max_count=5)
    made = wait_for(lambda: len(made := {item["id"] for item in member.get("/servers")["servers"]} - before) == 3
                    and made)
    for uuid in made:
        plug(admin, neutron, uuid)
        admin.wait(uuid, "ACTIVE")
    neutron.free_ports = 0
    assert refused(attach, member, server, net_id=blue) == (403, "Maximum number of ports exceeded")
    port = neutron.port(blue)["id"]
    attach(member, server, port_id=port)
    plug(admin, neutron, server, 2)
    wait_idle(member, server)


def test_audit_compares_ports_with_servers_and_releases_those_of_deleted_servers(
        suite, admin, member, neutron, blue, boot, server, monkeypatch, capsys):
    def audit(*options):
        core = suite.conductor.core
        monkeypatch.setattr("nova.cmd.manage.common.core", lambda: core)
        code = manage.main(["audit", "--settle", "0.1", *options])
        return code, sorted(capsys.readouterr().out.splitlines())

    mine, host = neutron.port(blue)["id"], neutron.ports(device_id=server)[0]["binding:host_id"]
    deleted = boot({"uuid": blue}, {"port": mine})
    plug(admin, neutron, deleted, 2)
    admin.wait(deleted, "ACTIVE")
    wait_idle(member, server)
    assert audit() == (0, [])
    with neutron.lock:
        copies = {port["id"]: dict(port) for port in neutron.ports(device_id=deleted)}
    member.delete(f"/servers/{deleted}")
    member.wait_gone(deleted)
    unknown = "aaaaaaaa-2222-4333-8444-555555555555"
    with neutron.lock:
        neutron.rows["ports"].update(copies)
        bound, = neutron.ports(device_id=server)
        neutron.rows["ports"][bound["id"]]["binding:host_id"] = "elsewhere"
    strange = neutron.port(blue, device_id=server)["id"]
    neutron.port(blue, project="q", device_id=server)
    lost = neutron.port(blue, device_id=unknown, device_owner="compute:nova", **{"binding:host_id": host})["id"]
    expected = [
        f"port: {bound['id']}: is bound to elsewhere, but its server {server} is on {host}",
        f"port: {strange}: has the device_id {server}, but is no interface of this server",
        f"port: {lost}: is bound to {host} for server {unknown}, which does not exist"]
    leaked = [f"port: {port}: is bound to {host} for server {deleted}, which is deleted" for port in copies]
    assert audit() == (1, sorted(expected + leaked))
    assert audit("--repair") == (1, sorted(expected + [f"{line} (repaired)" for line in leaked]))
    assert audit() == (1, sorted(expected))
    kept = {port["id"]: port["device_id"] for port in neutron.ports()}
    assert kept[mine] == ""
    assert kept.keys() & copies.keys() == {mine}
    with neutron.lock:
        for port in (bound["id"], strange, lost):
            del neutron.rows["ports"][port]
    missing = (f"port: {bound['id']}: server {server} has an interface with this port, which does not exist or belongs "
               "to another server")
    assert audit() == (1, [missing])
    neutron.faults["GET", "ports"] = [500] * 100
    assert audit() == (1, ["network service: -: the ports of servers cannot be compared: The network service could "
                           "not be reached: the service responded with status 500"])


@pytest.mark.parametrize("links", [5, ["x"], {"rel": "next"}], ids=str)
def test_malformed_links_of_a_list_are_an_unavailable_service(member, neutron, server, links):
    neutron.twists["GET", "security-groups"] = [lambda answer: {"security_groups": [
        {"id": server, "name": "web", "tenant_id": "p"}], "security_groups_links": links}]
    status, message = refused(member.get, "/os-security-groups", version="2.1")
    assert (status, "malformed" in message) == (503, True)


def test_unexpected_precondition_failure_is_an_unavailable_service(member, neutron, server):
    neutron.faults["GET", "security-groups"] = [412]
    assert refused(member.get, "/os-security-groups", version="2.1")[0] == 503


def test_port_with_a_malformed_address_does_not_hide_the_changes_of_other_servers(
        admin, member, neutron, server, compare_all, blue, boot, caplog):
    second = boot({"uuid": blue})
    plug(admin, neutron, second)
    admin.wait(second, "ACTIVE")
    with neutron.lock:
        for uuid, address in ((server, "nowhere"), (second, "10.50.0.203")):
            port, = neutron.ports(device_id=uuid)
            row = neutron.rows["ports"][port["id"]]
            row["binding:host_id"] = neutron.ports(device_id=server)[0]["binding:host_id"]
            row["fixed_ips"] = [{**port["fixed_ips"][0], "ip_address": address}]
    compare_all()
    wait_for(lambda: member.server(second)["addresses"]["blue"][0]["addr"] == "10.50.0.203")
    wait_for(lambda: f"[instance: {server}] Cannot refresh the interfaces" in caplog.text)
