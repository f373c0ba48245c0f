"""os-networks, os-floating-ip-pools and os-floating-ips with the back end "neutron", with the rights of the caller."""

import concurrent.futures
import threading

import pytest

from nova import context, exception, service_clients
from tests.functional.several_hosts import refused

OLD, NEW = "2.35", "2.36"
PATH = "/os-floating-ips"


@pytest.fixture
def public(neutron):
    return neutron.network("nova", project="operator", cidr=None, **{"router:external": True})


def created(client, body=None):
    return client.post(PATH, body, version=OLD)["floating_ip"]


def add(client, server, address, **more):
    client.action(server, "addFloatingIp", {"address": address, **more}, version="2.43")


def test_networks_of_the_project_and_shared_networks_are_shown(admin, member, neutron, blue, public):
    neutron.network("secret", project="other")
    shared = neutron.network("shared", project="other", shared=True)
    shown = member.get("/os-networks", version=OLD)["networks"]
    assert {(network["id"], network["label"]) for network in shown} == {(blue, "blue"), (shared, "shared")}
    assert {network[name] for network in shown for name in ("cidr", "netmask", "gateway", "broadcast")} == {None}
    assert ("GET", "networks", "m:p") in neutron.calls
    assert admin.get(f"/os-networks/{blue}", version=OLD)["network"]["label"] == "blue"
    assert member.get(f"/os-tenant-networks/{blue}", version=OLD)["network"] == {
        "id": blue, "label": "blue", "cidr": None}
    assert refused(lambda: member.get("/os-networks/0b7ac5b8-0000-4000-8000-000000000000", version=OLD))[0] == 404
    assert refused(lambda: member.get("/os-networks", version=NEW))[0] == 404


def test_floating_ip_is_allocated_shown_and_released(member, neutron, public):
    assert member.get("/os-floating-ip-pools", version=OLD) == {"floating_ip_pools": [{"name": "nova"}]}
    made = created(member)
    assert made == {"id": made["id"], "ip": "203.0.113.7", "pool": "nova", "instance_id": None, "fixed_ip": None}
    assert neutron.rows["floatingips"][made["id"]]["tenant_id"] == "p"
    assert ("POST", "floatingips", "m:p") in neutron.calls, "the rights of the caller"
    assert member.get(f"{PATH}/{made['id']}", version=OLD)["floating_ip"] == made
    assert member.get(PATH, version=OLD)["floating_ips"] == [made]
    second = created(member, {"pool": public})
    assert second["ip"] == "203.0.113.8"
    assert refused(lambda: created(member, {"pool": "nova"})) == (404, "No more floating IPs in pool nova.")
    assert refused(lambda: created(member, {"pool": "other"})) == (404, "Floating IP pool not found.")
    member.delete(f"{PATH}/{made['id']}", version=OLD)
    assert refused(lambda: member.delete(f"{PATH}/{made['id']}", version=OLD))[0] == 404
    assert refused(lambda: member.get(f"{PATH}/{made['id']}", version=OLD))[0] == 404
    assert [row["id"] for row in neutron.rows["floatingips"].values()] == [second["id"]]
    assert refused(lambda: member.get(PATH, version=NEW))[0] == 404


def test_floating_ip_is_associated_and_disassociated(admin, member, neutron, public, server):
    made = created(member)
    port, = neutron.ports(device_id=server)
    own = port["fixed_ips"][0]["ip_address"]
    assert refused(lambda: add(member, server, made["ip"], fixed_address="10.9.9.9")) == (
        400, "Specified fixed address not assigned to instance")
    assert refused(lambda: add(member, server, "203.0.113.200"))[0] == 404
    add(member, server, made["ip"], fixed_address=own)
    stored = neutron.rows["floatingips"][made["id"]]
    assert (stored["port_id"], stored["fixed_ip_address"]) == (port["id"], own)
    shown = member.get(f"{PATH}/{made['id']}", version=OLD)["floating_ip"]
    assert (shown["instance_id"], shown["fixed_ip"]) == (server, own)
    member.action(server, "removeFloatingIp", {"address": made["ip"]}, version="2.43")
    assert neutron.rows["floatingips"][made["id"]]["port_id"] is None
    assert refused(lambda: member.action(server, "removeFloatingIp", {"address": made["ip"]}, version="2.43"))[0] == 409
    member.action(server, "lock")
    admin.action(server, "addFloatingIp", {"address": made["ip"]}, version="2.43")
    assert refused(lambda: member.action(server, "removeFloatingIp", {"address": made["ip"]}, version="2.43"))[0] == 409
    assert neutron.rows["floatingips"][made["id"]]["port_id"] == port["id"]
    member.action(server, "unlock")


def test_error_of_the_network_service_is_passed_on(member, neutron, public):
    neutron.faults[("POST", "floatingips")] = [413]
    assert refused(lambda: created(member))[0] == 403
    neutron.faults[("GET", "floatingips")] = [503]
    assert refused(lambda: member.get(PATH, version=OLD))[0] == 503


def test_allocated_address_is_returned_although_the_service_fails_afterwards(member, neutron, public):
    neutron.faults[("GET", "floatingips")] = [503]
    assert created(member)["ip"] == "203.0.113.7"
    assert len(neutron.rows["floatingips"]) == 1


def test_address_is_not_allocated_after_the_request_has_timed_out(suite, neutron, public):
    ctx = context.RequestContext(user_id="m", project_id="p", auth_token="m:p")
    with context.deadline(0.0), pytest.raises(exception.ServiceUnavailable, match="nothing was changed"):
        suite.conductor.core.allocator.floating_ips.allocate(ctx, "p")
    assert not neutron.rows["floatingips"]


def test_silent_service_does_not_occupy_all_threads_with_changes(member, neutron, public, monkeypatch):
    monkeypatch.setattr(service_clients, "_MAX_PENDING_SUSPECT", 1)
    monkeypatch.setattr(service_clients, "_MAX_PENDING", 1)
    monkeypatch.setattr(service_clients, "_SUSPECT_AFTER", 0.1)
    made, arrived, release = created(member), threading.Event(), threading.Event()

    def silent(answer):
        arrived.set()
        release.wait(20)
        return answer

    neutron.twists[("DELETE", "floatingips")] = [silent]
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        first = threads.submit(member.delete, f"{PATH}/{made['id']}", version=OLD)
        assert arrived.wait(20)
        second = refused(lambda: member.delete(f"{PATH}/{made['id']}", version=OLD))
        release.set()
        first.result()
    assert second[0] == 503


def test_unknown_ids_of_any_form_are_not_found(member, neutron, public):
    for path in ("/os-networks/", "/os-tenant-networks/", f"{PATH}/"):
        for ident in ("a", "a%2Fb", "..%2Fports", "%3Flimit=1", "%23", "%C3%A4%20%0A", "x" * 300, f"{public}%3F"):
            assert refused(lambda path=path, ident=ident: member.get(path + ident, version=OLD))[0] == 404, ident
