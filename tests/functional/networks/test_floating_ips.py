"""Floating IPs over HTTP: pools, projects, association with servers, and the addresses sent to hosts."""

import concurrent.futures

import pytest

from nova import context
from nova.db import audit, tables
from nova.db.networks import floating_ips, security_filters
from nova.objects.base import new_uuid
from nova.objects.networks.network import Network
from tests.functional.client import Client, Failed, wait_for

OLD = "2.35"
PATH = "/os-floating-ips"


@pytest.fixture
def pool(suite):
    """Create a pool "public" of two floating IPs."""
    db = suite.conductor.core.db
    db.write(lambda connection: floating_ips.create(connection, "public", "203.0.113.0/30"))
    yield "public"
    for held in db.read(lambda connection: floating_ips.index(connection)):
        if held.project_id:
            db.write(lambda connection, held=held: floating_ips.release(connection, held.uuid))
    db.write(lambda connection: floating_ips.delete(connection, "203.0.113.0/30"))


@pytest.fixture
def networks_of_two(networks):
    made = [networks.create(context.admin(), Network(uuid=new_uuid(), label=label, cidr=cidr, gateway="", bridge=""))
            for label, cidr in (("green", "10.41.0.0/24"), ("blue", "10.42.0.0/24"))]
    yield [network.uuid for network in made]
    for network in made:
        networks.delete(context.admin(), network.uuid)


@pytest.fixture
def server(admin, flavor, image_id, networks_of_two):
    uuid = admin.boot(flavor, image_id, networks=[{"uuid": network} for network in networks_of_two])
    admin.wait(uuid, "ACTIVE")
    yield uuid
    admin.session.delete(f"{admin.url}/v2.1/servers/{uuid}", timeout=60)
    admin.wait_gone(uuid)


def taken(client, pool="public"):
    return client.post(PATH, {"pool": pool}, version=OLD)["floating_ip"]


def shown(client, uuid):
    """Return the floating IPs of the server by network label, as the API shows them."""
    return {label: [each["addr"] for each in found if each["OS-EXT-IPS:type"] == "floating"]
            for label, found in client.server(uuid)["addresses"].items()}


def refused(client, method, path, body=None, version=OLD):
    with pytest.raises(Failed) as failed:
        client.call(method, path, body, version=version)
    return failed.value.code, failed.value.message


def told(suite, uuid):
    """Return the floating IPs in the filter rules for the server's host, and the version of the rules."""
    rules = suite.conductor.core.db.read(
        lambda connection: security_filters.rules_for(connection, [uuid]))[uuid]
    return sorted(rules.floating.values()), rules.version


def test_floating_ip_allocate_show_and_release(pool, admin, member):
    assert member.get("/os-floating-ip-pools", version=OLD) == {"floating_ip_pools": [{"name": "public"}]}
    first = taken(member)
    assert first == {"id": first["id"], "ip": "203.0.113.1", "pool": "public", "instance_id": None, "fixed_ip": None}
    second = taken(member, None)
    assert member.get(PATH, version=OLD) == {"floating_ips": [first, second]}
    assert member.get(f"{PATH}/{second['id']}", version=OLD) == {"floating_ip": second}
    assert refused(member, "POST", PATH, {"pool": "public"}) == (404, "No more floating IPs in pool public.")
    assert refused(member, "POST", PATH, {"pool": "other"}) == (404, "Floating IP pool not found.")
    member.delete(f"{PATH}/{first['id']}", version=OLD, expect=202)
    assert refused(member, "GET", f"{PATH}/{first['id']}")[0] == 404
    assert taken(member)["ip"] == "203.0.113.1"


def test_floating_ips_of_other_projects_are_hidden_and_unchanged(suite, pool, admin, server):
    mine = taken(admin)
    stranger = Client(suite.url, project="strangers", user="s", roles="member,reader")
    assert stranger.get(PATH, version=OLD) == {"floating_ips": []}
    for method in ("GET", "DELETE"):
        assert refused(stranger, method, f"{PATH}/{mine['id']}")[0] == 404
    theirs = taken(stranger)
    assert refused(admin, "POST", f"/servers/{server}/action", {"addFloatingIp": {"address": theirs["ip"]}})[0] == 404
    given = {"addFloatingIp": {"address": theirs["ip"]}}
    assert refused(stranger, "POST", f"/servers/{server}/action", given)[0] == 404


def test_default_floating_ip_limit_is_smaller_than_a_large_pool(suite, member):
    db = suite.conductor.core.db
    db.write(lambda connection: floating_ips.create(connection, "wide", "203.0.113.64/27"))
    try:
        for _each in range(10):
            member.post(PATH, {"pool": "wide"}, version=OLD)
        with pytest.raises(Failed, match="403"):
            member.post(PATH, {"pool": "wide"}, version=OLD)
    finally:
        for held in member.get(PATH, version=OLD)["floating_ips"]:
            member.delete(f"{PATH}/{held['id']}", version=OLD)
        db.write(lambda connection: floating_ips.delete(connection, "203.0.113.64/27"))


def test_floating_ips_quota_of_a_project_is_enforced(pool, admin, member):
    admin.put("/os-quota-sets/p", {"quota_set": {"floating_ips": 1}}, version=OLD)
    try:
        taken(member)
        assert refused(member, "POST", PATH, {"pool": "public"}) == (403, "Maximum number of floating IPs exceeded")
        used = member.get("/limits", version=OLD)["limits"]["absolute"]
        assert (used["totalFloatingIpsUsed"], used["maxTotalFloatingIps"]) == (1, 1)
    finally:
        admin.delete("/os-quota-sets/p")


def test_floating_ip_is_associated_and_disassociated(suite, pool, admin, server):
    address, before = taken(admin), told(suite, server)[1]
    admin.action(server, "addFloatingIp", {"address": address["ip"]}, version="2.43", expect=202)
    assert shown(admin, server) == {"green": [address["ip"]], "blue": []}
    mine = admin.get(f"{PATH}/{address['id']}", version=OLD)["floating_ip"]
    assert (mine["instance_id"], mine["fixed_ip"]) == (server, "10.41.0.2")
    addresses, version = told(suite, server)
    assert (addresses, version > before) == ([address["ip"]], True)
    admin.action(server, "removeFloatingIp", {"address": address["ip"]}, version="2.43", expect=202)
    assert shown(admin, server) == {"green": [], "blue": []}
    assert told(suite, server)[0] == []
    assert told(suite, server)[1] > version
    assert admin.get(f"{PATH}/{address['id']}", version=OLD)["floating_ip"]["instance_id"] is None


def test_floating_ip_is_associated_with_a_chosen_fixed_ip(pool, admin, server):
    one, two = taken(admin), taken(admin)
    admin.action(server, "addFloatingIp", {"address": one["ip"], "fixed_address": "10.42.0.2"}, version=OLD)
    admin.action(server, "addFloatingIp", {"address": two["ip"]}, version=OLD)
    assert shown(admin, server) == {"green": [two["ip"]], "blue": [one["ip"]]}


@pytest.mark.parametrize(("action", "body", "expected"), [
    ("addFloatingIp", {"address": "203.0.113.9"}, (404, "Floating IP not found for ID 203.0.113.9")),
    ("addFloatingIp", {"address": "203.0.113.1", "fixed_address": "10.41.0.77"},
     (400, "Specified fixed address not assigned to instance")),
    ("removeFloatingIp", {"address": "203.0.113.9"}, (404, "Floating IP not found for ID 203.0.113.9")),
])
def test_invalid_floating_ip_associations_are_refused(pool, admin, server, action, body, expected):
    taken(admin)
    assert refused(admin, "POST", f"/servers/{server}/action", {action: body}) == expected
    code, message = refused(admin, "POST", f"/servers/{server}/action", {"removeFloatingIp": {
        "address": "203.0.113.1"}})
    assert (code, message) == (409, f"Floating IP 203.0.113.1 is not associated with instance {server}.")
    assert refused(admin, "POST", f"/servers/{server}/action", {action: body}, "2.44")[0] == 404


@pytest.fixture
def other(admin, flavor, image_id, server, networks_of_two):
    uuid = admin.boot(flavor, image_id, networks=[{"uuid": networks_of_two[0]}])
    admin.wait(uuid, "ACTIVE")
    yield uuid
    admin.session.delete(f"{admin.url}/v2.1/servers/{uuid}", timeout=60)
    admin.wait_gone(uuid)


def test_floating_ip_moves_to_the_server_that_requests_it(suite, pool, admin, member, server, other):
    address, before = taken(admin), told(suite, server)[1]
    for uuid in (server, other, other):
        admin.action(uuid, "addFloatingIp", {"address": address["ip"]}, version=OLD, expect=202)
    assert shown(admin, server) == {"green": [], "blue": []}
    assert shown(admin, other) == {"green": [address["ip"]]}
    assert admin.get(f"{PATH}/{address['id']}", version=OLD)["floating_ip"]["instance_id"] == other
    assert (told(suite, server)[0], told(suite, other)[0]) == ([], [address["ip"]])
    assert told(suite, server)[1] > before + 1, "no new rules for the host of the first server"
    path, body = f"/servers/{server}/action", {"address": address["ip"]}
    assert refused(admin, "POST", path, {"removeFloatingIp": body})[0] == 409
    admin.action(other, "lock")
    assert refused(member, "POST", path, {"addFloatingIp": body})[0] == 409


def test_concurrent_associations_leave_a_floating_ip_with_a_single_server(suite, pool, admin, server, other):
    address = taken(admin)["ip"]
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda uuid: Client(admin.url).session.post(
            f"{admin.url}/v2.1/servers/{uuid}/action", json={"addFloatingIp": {"address": address}},
            headers={**admin.session.headers, "OpenStack-API-Version": "compute 2.35"}, timeout=60).status_code,
            [server, other] * 2))
    assert found == [202] * 4
    assert sorted(told(suite, server)[0] + told(suite, other)[0]) == [address]
    assert [each for uuid in (server, other) for found in shown(admin, uuid).values() for each in found] == [address]


def test_floating_ip_of_a_server_without_fixed_ips_is_refused(pool, admin, flavor, image_id):
    uuid = admin.boot(flavor, image_id, networks="none")
    admin.wait(uuid, "ACTIVE")
    address = taken(admin)["ip"]
    assert refused(admin, "POST", f"/servers/{uuid}/action", {"addFloatingIp": {"address": address}}) == (
        400, "No fixed IPs associated to instance")


def test_floating_ips_of_a_locked_server_are_unchanged(pool, admin, member, server):
    address = taken(member)["ip"]
    admin.action(server, "lock")
    assert refused(member, "POST", f"/servers/{server}/action", {"addFloatingIp": {"address": address}})[0] == 409
    admin.action(server, "addFloatingIp", {"address": address}, version=OLD)
    assert refused(member, "POST", f"/servers/{server}/action", {"removeFloatingIp": {"address": address}})[0] == 409


def test_released_floating_ip_is_disassociated(suite, pool, admin, server):
    address = taken(admin)
    admin.action(server, "addFloatingIp", {"address": address["ip"]}, version=OLD)
    admin.delete(f"{PATH}/{address['id']}", version=OLD)
    assert shown(admin, server) == {"green": [], "blue": []}
    assert told(suite, server)[0] == []


def test_deleted_server_or_interface_is_disassociated_from_floating_ips(pool, admin, server):
    one, two = taken(admin), taken(admin)
    for address in (one, two):
        admin.action(server, "addFloatingIp", {"address": address["ip"]}, version=OLD)

    def where():
        return [each["instance_id"] for each in admin.get(PATH, version=OLD)["floating_ips"]]

    assert where() == [server, server]
    port = admin.get(f"/servers/{server}/os-interface")["interfaceAttachments"][0]["port_id"]
    admin.delete(f"/servers/{server}/os-interface/{port}")
    wait_for(lambda: where() == [None, server], reason="the floating IP of the interface is disassociated")
    admin.delete(f"/servers/{server}")
    admin.wait_gone(server)
    assert where() == [None, None]


def test_audit_repairs_a_floating_ip_with_a_missing_interface(suite, pool, admin, server):
    address, db = taken(admin), suite.conductor.core.db
    db.write(lambda connection: connection.execute(tables.floating_ips.update().where(
        tables.floating_ips.c.uuid == address["id"]).values(instance_uuid=server, vif_id="gone")))
    assert [str(finding) for finding in audit.audit(db, repair=True)] == [
        f"floating address: {address['ip']}: associated with server {server}, whose network info lacks it (repaired)"]
    assert admin.get(f"{PATH}/{address['id']}", version=OLD)["floating_ip"]["instance_id"] is None


def test_floating_ip_stays_associated_after_migration_and_unshelve(pool, pair, admin, networks_of_two):
    uuid = admin.boot(pair.flavor, pair.image_id, networks=[{"uuid": networks_of_two[0]}])
    admin.wait(uuid, "ACTIVE")
    address = taken(admin)["ip"]
    admin.action(uuid, "addFloatingIp", {"address": address}, version=OLD)
    admin.action(uuid, "migrate")
    admin.wait(uuid, "VERIFY_RESIZE")
    admin.action(uuid, "confirmResize")
    admin.wait(uuid, "ACTIVE")
    admin.action(uuid, "shelve")
    admin.wait(uuid, "SHELVED_OFFLOADED")
    admin.action(uuid, "unshelve", None)
    admin.wait(uuid, "ACTIVE")
    assert shown(admin, uuid) == {"green": [address]}
    admin.delete(f"/servers/{uuid}")
    admin.wait_gone(uuid)
