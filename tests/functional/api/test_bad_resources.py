"""Invalid requests about resources other than servers, and requests about resources of other projects."""

import json
import os

import pytest

from nova import context, exception
from nova.conf import CONF
from nova.image.directory import DirectoryStore
from nova.objects.base import new_uuid
from nova.objects.images.image import Image
from nova.objects.networks.network import Network
from tests.functional.client import Client, Failed
from tests.functional.refusals import (  # noqa: F401 (fixtures)
    FIELD,
    HUGE,
    KEY,
    LONG,
    NIL,
    UNEXPECTED,
    no_rows,
    nothing_left_fixture,
    raw,
    refused,
    server_fixture,
    shelf_fixture,
)

# --- resources of other projects ---------------------------------------------------------------------
_OF_A_SERVER = [
    ("GET", "", None), ("PUT", "", {"server": {"name": "mine"}}), ("DELETE", "", None),
    ("GET", "/metadata", None), ("POST", "/metadata", {"metadata": {"a": "b"}}),
    ("PUT", "/metadata", {"metadata": {"a": "b"}}), ("GET", "/metadata/a", None),
    ("PUT", "/metadata/a", {"meta": {"a": "b"}}), ("DELETE", "/metadata/a", None),
    ("GET", "/tags", None), ("PUT", "/tags", {"tags": ["a"]}), ("DELETE", "/tags", None), ("GET", "/tags/a", None),
    ("PUT", "/tags/a", None), ("DELETE", "/tags/a", None), ("GET", "/ips", None), ("GET", "/ips/private", None),
    ("GET", "/os-instance-actions", None), ("GET", "/os-instance-actions/req-1", None),
    ("GET", "/os-security-groups", None), ("GET", "/os-interface", None), ("GET", f"/os-interface/{NIL}", None),
    ("POST", "/os-interface", {"interfaceAttachment": {}}), ("DELETE", f"/os-interface/{NIL}", None),
    ("GET", "/os-volume_attachments", None), ("GET", f"/os-volume_attachments/{NIL}", None),
    ("POST", "/os-volume_attachments", {"volumeAttachment": {"volumeId": NIL}}),
    ("DELETE", f"/os-volume_attachments/{NIL}", None), ("GET", "/topology", None),
    *(("POST", "/action", {name: value}) for name, value in [
        ("os-start", None), ("os-stop", None), ("pause", None), ("unpause", None), ("suspend", None),
        ("resume", None), ("reboot", {"type": "HARD"}), ("lock", None), ("unlock", None), ("forceDelete", None),
        ("addSecurityGroup", {"name": "default"}), ("removeSecurityGroup", {"name": "default"}),
        ("os-getConsoleOutput", {}), ("resize", {"flavorRef": "1"}), ("confirmResize", None), ("revertResize", None)]),
]


def test_server_of_another_project_is_not_found_by_any_operation(suite, server):
    stranger = Client(suite.url, project="strangers", user="s", roles="member,reader")
    with no_rows(suite):
        for ident in (server, NIL, "nonsense", "x" * 300, "%00", "%F0%9F%98%80"):
            for method, path, body in _OF_A_SERVER:
                with pytest.raises(Failed) as failed:
                    stranger.call(method, f"/servers/{ident}{path}", body)
                assert (failed.value.code, failed.value.key) == (404, "itemNotFound"), (method, path, body, ident)
                if ident == server:
                    assert failed.value.message == f"Instance {server} could not be found.", (method, path)
    assert stranger.get("/servers/detail")["servers"] == []
    assert [shown["id"] for shown in Client(suite.url).get("/servers")["servers"]] == [server]


def test_reader_role_cannot_change_resources_of_its_project(suite, server):
    reader = Client(suite.url, roles="reader")
    of_servers = [(method, f"/servers/{server}{path}", body) for method, path, body in _OF_A_SERVER if method != "GET"]
    others = [
        ("POST", "/servers", {"server": {"name": "s", "flavorRef": "1", "imageRef": NIL, "networks": "none"}}),
        ("POST", "/os-server-groups", {"server_group": {"name": "g", "policy": "affinity"}}),
        ("POST", "/os-server-external-events", {"events": [{"name": "network-changed", "server_uuid": server}]}),
        ("PUT", "/os-quota-sets/p", {"quota_set": {"cores": 5}}), ("DELETE", "/os-quota-sets/p", None)]
    old = [("POST", "/os-volumes", {"volume": {"size": 1}}), ("DELETE", f"/os-volumes/{NIL}", None),
           ("POST", "/os-security-groups", {"security_group": {"name": "s", "description": "d"}})]
    with no_rows(suite):
        for version, asked in (("2.96", of_servers + others), ("2.1", old)):
            for method, path, body in asked:
                with pytest.raises(Failed) as failed:
                    reader.call(method, path, body, version=version)
                assert (failed.value.code, failed.value.key) == (403, "forbidden"), (method, path, body)


def test_server_and_security_groups_of_other_projects_are_not_found(suite, shelf, nothing_left):
    stranger = Client(suite.url, project="strangers", user="s", roles="member,reader")
    group, wall = shelf["group"], shelf["security_group"]
    refused(stranger, "GET", f"/os-server-groups/{group}", 404, group)
    refused(stranger, "DELETE", f"/os-server-groups/{group}", 404, group)
    refused(stranger, "GET", f"/os-security-groups/{wall}", 404, wall, version="2.1")
    refused(stranger, "PUT", f"/os-security-groups/{wall}", 404, wall, version="2.1",
            body={"security_group": {"name": "a", "description": "b"}})
    refused(stranger, "DELETE", f"/os-security-groups/{wall}", 404, wall, version="2.1")
    refused(stranger, "POST", "/os-security-group-rules", 404, wall, version="2.1", body={"security_group_rule": {
        "parent_group_id": wall, "ip_protocol": "tcp", "from_port": 1, "to_port": 2}})
    # The requests create the default group of the stranger's project, which is allowed.


def test_reader_role_cannot_change_images_of_its_project(suite, image_id):
    path = os.path.join(CONF.state_path, "of-p.raw")
    with open(path, "wb") as file:
        file.write(b"\0" * 1024)
    ours = DirectoryStore().add(path, Image(id=new_uuid(), name="ours", disk_format="raw", owner="p",
                                            visibility="private")).id
    reader, member = Client(suite.url, roles="reader"), Client(suite.url, roles="member,reader")
    for method, url, body in (("DELETE", "", None), ("DELETE", "/metadata/a", None),
                              ("POST", "/metadata", {"metadata": {"a": "c"}}),
                              ("PUT", "/metadata", {"metadata": {"b": "c"}}),
                              ("PUT", "/metadata/a", {"meta": {"a": "c"}})):
        member.call("POST", f"/images/{ours}/metadata", {"metadata": {"a": "b"}}, version="2.35")
        refused(reader, method, f"/images/{ours}{url}", 403, ours, body=body, version="2.35")
    assert reader.get(f"/images/{ours}", version="2.35")["image"]["metadata"] == {"a": "b"}
    member.call("DELETE", f"/images/{ours}", version="2.35")


def test_private_flavor_is_not_accepted_as_marker(suite, admin):
    secret, open_one = admin.flavor(**{"os-flavor-access:is_public": False}), admin.flavor()
    stranger = Client(suite.url, project="strangers", user="s", roles="member,reader")
    try:
        refused(stranger, "GET", "/flavors", 400, f"marker [{secret}] not found", marker=secret)
        stranger.get("/flavors", marker=open_one)
        admin.get("/flavors", marker=secret, is_public="None")
        admin.post(f"/flavors/{secret}/action", {"addTenantAccess": {"tenant": "strangers"}})
        stranger.get("/flavors", marker=secret)
    finally:
        admin.delete(f"/flavors/{secret}")
        admin.delete(f"/flavors/{open_one}")


def test_fixed_ip_conflict_does_not_reveal_the_server(suite, admin, shelf, networks):
    shared = networks.create(context.admin(), Network(uuid=new_uuid(), label="shared", cidr="10.98.1.0/24",
                                                      cidr_v6="fd00:98::/64", ipv6_mode="dhcpv6-stateful", gateway="",
                                                      bridge=""))
    stranger = Client(suite.url, project="strangers", user="s", roles="member,reader")
    wanted = {address: [{"uuid": shared.uuid, "fixed_ip": address}] for address in ("10.98.1.7", "fd00:98::abcd")}
    owners = []
    try:
        for network in wanted.values():
            owners.append(admin.boot(shelf["flavor"], shelf["image"], networks=network))
            admin.wait(owners[-1], "ACTIVE")
        for address, network in wanted.items():
            with pytest.raises(Failed) as failed:
                stranger.boot(shelf["flavor"], shelf["image"], networks=network)
            assert (failed.value.code, failed.value.message) == (400, f"Fixed IP address {address} is already in use.")
    finally:
        for uuid in owners:
            admin.delete(f"/servers/{uuid}")
            admin.wait_gone(uuid)
        networks.delete(context.admin(), shared.uuid)


def test_duplicate_fixed_ip_in_a_create_request_is_refused(suite, admin, shelf, networks):
    net = networks.create(context.admin(), Network(uuid=new_uuid(), label="once", cidr="10.98.2.0/24",
                                                   cidr_v6="fd00:98:2::/64", ipv6_mode="dhcpv6-stateful", gateway="",
                                                   bridge="")).uuid
    try:
        with no_rows(suite):
            for one, same in (("10.98.2.7", "10.98.2.7"), ("fd00:98:2::7", "fd00:98:2:0::7")):
                wanted = [{"uuid": net, "fixed_ip": one}, {"uuid": net, "fixed_ip": same}]
                with pytest.raises(Failed) as failed:
                    admin.boot(shelf["flavor"], shelf["image"], networks=wanted)
                assert (failed.value.code, failed.value.message) == (
                    400, f"Fixed IP address {one} is already in use.")
    finally:
        networks.delete(context.admin(), net)


def test_create_server_with_resources_of_other_projects_is_refused(suite, admin, shelf, flavor, image_id, networks):
    admin.post("/os-keypairs", {"keypair": {"name": "private", "public_key": KEY}})
    secret = admin.flavor(**{"os-flavor-access:is_public": False})
    other = networks.create(context.admin(), Network(uuid=new_uuid(), label="other", cidr="10.99.1.0/24", gateway="",
                                                      bridge="", project_id="p"))
    stranger = Client(suite.url, project="strangers", user="s", roles="member,reader")
    server = {"name": "s", "flavorRef": flavor, "imageRef": image_id, "networks": "none"}
    stranger.get("/os-security-groups", version="2.1")  # creates the default group of the project
    try:
        with no_rows(suite):
            for values, hints, text in [
                    ({"key_name": "private"}, {}, "Invalid key_name provided."),
                    ({"flavorRef": secret}, {}, f"Flavor {secret} could not be found."),
                    ({"networks": [{"uuid": other.uuid}]}, {}, f"Network {other.uuid} could not be found."),
                    ({"security_groups": [{"name": "s"}]}, {}, "Security group s not found"),
                    ({"security_groups": [{"name": shelf["security_group"]}]}, {}, shelf["security_group"]),
                    ({}, {"group": shelf["group"]}, f"Instance group {shelf['group']} could not be found.")]:
                refused(stranger, "POST", "/servers", 400, text,
                        body={"server": {**server, **values}, "os:scheduler_hints": hints})
    finally:
        networks.delete(context.admin(), other.uuid)
        admin.delete(f"/flavors/{secret}")
        admin.delete("/os-keypairs/private")


# --- flavors -----------------------------------------------------------------------------------------
_FLAVOR = {"name": "bad", "ram": 1, "vcpus": 1, "disk": 1}


@pytest.mark.parametrize(("values", "text"), [
    ({"name": ""}, "name"), ({"name": LONG}, "name"), ({"name": " x"}, "name"),
    ({"ram": 0}, "ram"), ({"ram": -1}, "ram"), ({"ram": HUGE}, "ram"), ({"ram": 2**31}, "ram"), ({"ram": 1.5}, "ram"),
    ({"ram": "1.5"}, "ram"), ({"ram": None}, "ram"), ({"ram": True}, "ram"), ({"ram": "9" * 5000}, "ram"),
    ({"ram": "\N{ARABIC-INDIC DIGIT ONE}"}, "ram"), ({"vcpus": 0}, "vcpus"), ({"vcpus": "x"}, "vcpus"),
    ({"disk": -1}, "disk"), ({"disk": []}, "disk"), ({"swap": -1}, "swap"),
    ({"OS-FLV-EXT-DATA:ephemeral": "x"}, "OS-FLV-EXT-DATA:ephemeral"), ({"rxtx_factor": 0}, "rxtx_factor"),
    ({"rxtx_factor": "1e400"}, "rxtx_factor"), ({"rxtx_factor": 1e39}, "rxtx_factor"),
    ({"os-flavor-access:is_public": "perhaps"}, "os-flavor-access:is_public"),
    ({"id": ""}, "id"), ({"id": " 1"}, "id"), ({"id": LONG}, "id"), ({"id": "a/b"}, "id"), ({"id": "ü"}, "id"),
    ({"description": "a\0b"}, "NUL"), ({"description": "x" * 65536}, "description"), ({"colour": 1}, "colour"),
])
def test_invalid_flavors_are_refused(admin, nothing_left, values, text):
    refused(admin, "POST", "/flavors", 400, text, body={"flavor": {**_FLAVOR, **values}})


@pytest.mark.parametrize(("method", "path", "body", "code", "text"), [
    ("GET", "/flavors/nope", None, 404, "Flavor nope could not be found."),
    ("GET", "/flavors/%F0%9F%98%80", None, 404, "could not be found"),
    ("DELETE", "/flavors/nope", None, 404, "Flavor nope could not be found."),
    ("PUT", "/flavors/nope", {"flavor": {"description": None}}, 404, "Flavor nope could not be found."),
    ("PUT", "/flavors/{flavor}", {"flavor": {}}, 400, "'description' is a required property"),
    ("PUT", "/flavors/{flavor}", {"flavor": {"description": 7}}, 400, FIELD.format("description")),
    ("POST", "/flavors", {"flavor": {**_FLAVOR, "id": "{flavor}"}}, 409, "already exists"),
    ("POST", "/flavors/{flavor}/os-extra_specs", {"extra_specs": {"a/b": "c"}}, 400, "extra_specs"),
    ("POST", "/flavors/{flavor}/os-extra_specs", {"extra_specs": {"a": LONG}}, 400, "a"),
    ("POST", "/flavors/{flavor}/os-extra_specs", {"extra_specs": {"a": None}}, 400, "a"),
    ("POST", "/flavors/{flavor}/os-extra_specs", {"extra_specs": {"a": []}}, 400, "a"),
    ("POST", "/flavors/{flavor}/os-extra_specs", {}, 400, "'extra_specs' is a required property"),
    ("POST", "/flavors/{flavor}/os-extra_specs", {"extra_specs": {"hw:cpu_policy": "fast"}}, 400, "hw:cpu_policy"),
    ("POST", "/flavors/nope/os-extra_specs", {"extra_specs": {"a": "b"}}, 404, "Flavor nope could not be found."),
    ("PUT", "/flavors/{flavor}/os-extra_specs/a", {"b": "c"}, 400, "Request body and URI mismatch"),
    ("PUT", "/flavors/{flavor}/os-extra_specs/a", {"a": "b", "c": "d"}, 400, ""),
    ("GET", "/flavors/{flavor}/os-extra_specs/nope", None, 404, "nope"),
    ("DELETE", "/flavors/{flavor}/os-extra_specs/nope", None, 404, "nope"),
    ("GET", "/flavors/nope/os-flavor-access", None, 404, "Flavor nope could not be found."),
    ("POST", "/flavors/{flavor}/action", {"addTenantAccess": {}}, 400, "'tenant' is a required property"),
    ("POST", "/flavors/{flavor}/action", {"addTenantAccess": {"tenant": ""}}, 400, "tenant"),
    ("POST", "/flavors/{flavor}/action", {"addTenantAccess": {"tenant": LONG}}, 400, "tenant"),
    ("POST", "/flavors/{flavor}/action", {"addTenantAccess": {"tenant": "x"}}, 409, ""),
    ("POST", "/flavors/{flavor}/action", {"removeTenantAccess": {"tenant": "x"}}, 404, ""),
    ("POST", "/flavors/nope/action", {"addTenantAccess": {"tenant": "x"}}, 404, "Flavor nope could not be found."),
    ("POST", "/flavors/{flavor}/action", {"fly": {}}, 400, "There is no such action: fly"),
    ("POST", "/flavors/{flavor}/action", {}, 400, "Malformed request body"),
])
def test_invalid_flavor_requests_are_refused(admin, shelf, nothing_left, method, path, body, code, text):
    body = json.loads(json.dumps(body).replace("{flavor}", shelf["flavor"]))
    refused(admin, method, path.replace("{flavor}", shelf["flavor"]), code, text, body=body)


# --- other resources ---------------------------------------------------------------------------------
@pytest.mark.parametrize(("values", "text"), [
    ({"name": ""}, "name"), ({"name": LONG}, "name"), ({"name": "ü"}, "name"), ({"name": "a/b"}, "name"),
    ({"name": 7}, "name"), ({"name": None}, "name"),
    ({"public_key": ""}, "Keypair data is invalid"), ({"public_key": "ssh-rsa"}, "Keypair data is invalid"),
    ({"public_key": "ssh-rsa %%% x"}, "Keypair data is invalid"), ({"public_key": "ssh-rsa AAAA"}, "Keypair data"),
    ({"public_key": "ssh-rsa " + "A" * 70000}, "Keypair data is invalid"), ({"public_key": 7}, "public_key"),
    ({"public_key": "ssh-ed25519 ü"}, "Keypair data is invalid"),
    ({"type": "x509"}, "Keypair data is invalid"), ({"type": "dsa"}, "type"), ({"user_id": 7}, "user_id"),
    ({"user_id": LONG}, "user_id"), ({"colour": 1}, "colour"),
])
def test_invalid_key_pairs_are_refused(admin, nothing_left, values, text):
    refused(admin, "POST", "/os-keypairs", 400, text,
            body={"keypair": {"name": "k", "public_key": KEY, **values}})


@pytest.mark.parametrize(("method", "path", "body", "code", "text"), [
    ("GET", "/os-keypairs/nope", None, 404, "nope"), ("DELETE", "/os-keypairs/nope", None, 404, "nope"),
    ("GET", "/os-keypairs/%F0%9F%98%80", None, 404, ""),
    ("PUT", "/os-quota-sets/p", {"quota_set": {"instances": -2}}, 400, "instances"),
    ("PUT", "/os-quota-sets/p", {"quota_set": {"instances": 2**31}}, 400, "instances"),
    ("PUT", "/os-quota-sets/p", {"quota_set": {"instances": "9" * 5000}}, 400, "instances"),
    ("PUT", "/os-quota-sets/p", {"quota_set": {"instances": 1.5}}, 400, "instances"),
    ("PUT", "/os-quota-sets/p", {"quota_set": {"instances": None}}, 400, "instances"),
    ("PUT", "/os-quota-sets/p", {"quota_set": {"colours": 1}}, 400, UNEXPECTED.format("colours")),
    ("PUT", "/os-quota-sets/p", {"quota_set": {"force": "perhaps"}}, 400, "force"),
    ("PUT", "/os-quota-sets/p", {"quota_set": []}, 400, "quota_set"), ("PUT", "/os-quota-sets/p", {}, 400, "quota_set"),
    ("PUT", "/os-quota-sets/" + LONG, {"quota_set": {"instances": 1}}, 400, "is not a valid project"),
    ("PUT", f"/os-quota-sets/p?user_id={LONG}", {"quota_set": {"instances": 1}}, 400, "user_id"),
    ("GET", f"/os-quota-sets/p?user_id={LONG}", None, 400, "user_id"),
    ("GET", "/os-quota-sets/" + LONG, None, 400, "is not a valid project"),
    ("PUT", "/os-quota-class-sets/default", {"quota_class_set": {"instances": -2}}, 400, "instances"),
    ("PUT", "/os-quota-class-sets/" + LONG, {"quota_class_set": {"instances": 1}}, 400, ""),
    ("PUT", "/os-quota-class-sets/default", {"quota_class_set": {"colours": 1}}, 400, "colours"),
    ("POST", "/os-aggregates", {"aggregate": {"name": ""}}, 400, "name"),
    ("POST", "/os-aggregates", {"aggregate": {"name": LONG}}, 400, "name"),
    ("POST", "/os-aggregates", {"aggregate": {"name": "a", "availability_zone": "x:y"}}, 400, "availability_zone"),
    ("POST", "/os-aggregates", {"aggregate": {"name": "a", "availability_zone": ""}}, 400, "availability_zone"),
    ("POST", "/os-aggregates", {"aggregate": {"name": "a", "colour": 1}}, 400, UNEXPECTED.format("colour")),
    ("POST", "/os-aggregates", {"aggregate": {"name": "shelf"}}, 409, "Aggregate shelf already exists."),
    ("GET", "/os-aggregates/nope", None, 400, "Aggregate id must be an integer, not 'nope'."),
    ("GET", "/os-aggregates/-1", None, 404, "-1"), ("GET", "/os-aggregates/0", None, 404, "Aggregate 0 could not"),
    ("GET", "/os-aggregates/" + HUGE, None, 404, "could not be found"),
    ("GET", "/os-aggregates/99999999", None, 404, "could not be found"),
    ("DELETE", "/os-aggregates/99999999", None, 404, "could not be found"),
    ("PUT", "/os-aggregates/{aggregate}", {"aggregate": {}}, 400, "aggregate"),
    ("PUT", "/os-aggregates/99999999", {"aggregate": {"name": "x"}}, 404, "could not be found"),
    ("POST", "/os-aggregates/{aggregate}/action", {"add_host": {"host": "nowhere"}}, 404, "nowhere"),
    ("POST", "/os-aggregates/{aggregate}/action", {"add_host": {"host": "no where"}}, 400, FIELD.format("host")),
    ("POST", "/os-aggregates/{aggregate}/action", {"add_host": {}}, 400, "'host' is a required property"),
    ("POST", "/os-aggregates/{aggregate}/action", {"remove_host": {"host": "nowhere"}}, 404, "nowhere"),
    ("POST", "/os-aggregates/{aggregate}/action", {"set_metadata": {"metadata": {"a": 1}}}, 400, FIELD.format("a")),
    ("POST", "/os-aggregates/{aggregate}/action", {"set_metadata": {"metadata": {"availability_zone": "a:b"}}}, 400,
     "availability"),
    ("POST", "/os-aggregates/{aggregate}/action", {"fly": {}}, 400, "There is no such action: fly"),
    ("POST", "/os-aggregates/{aggregate}/action", {"add_host": {}, "remove_host": {}}, 400, "Malformed request body"),
    ("POST", "/os-server-groups", {"server_group": {"name": "g"}}, 400, "'policy' is a required property"),
    ("POST", "/os-server-groups", {"server_group": {"name": "g", "policy": "close"}}, 400, FIELD.format("policy")),
    ("POST", "/os-server-groups", {"server_group": {"name": "", "policy": "affinity"}}, 400, FIELD.format("name")),
    ("POST", "/os-server-groups", {"server_group": {"name": LONG, "policy": "affinity"}}, 400, FIELD.format("name")),
    ("POST", "/os-server-groups", {"server_group": {"name": "g", "policy": "affinity", "rules": {
        "max_server_per_host": 2}}}, 400, "Only the policy anti-affinity supports rules."),
    ("POST", "/os-server-groups", {"server_group": {"name": "g", "policy": "anti-affinity", "rules": {
        "max_server_per_host": 0}}}, 400, FIELD.format("max_server_per_host")),
    ("POST", "/os-server-groups", {"server_group": {"name": "g", "policy": "anti-affinity", "rules": {
        "colour": 2}}}, 400, UNEXPECTED.format("colour")),
    ("GET", "/os-server-groups/nope", None, 404, "nope"), ("DELETE", f"/os-server-groups/{NIL}", None, 404, NIL),
    ("PUT", "/os-services/nope", {"status": "disabled"}, 400, "nope"),
    ("PUT", f"/os-services/{NIL}", {"status": "disabled"}, 404, NIL),
    ("PUT", f"/os-services/{NIL}", {"status": "off"}, 400, FIELD.format("status")),
    ("PUT", f"/os-services/{NIL}", {}, 400, "No updates were requested."),
    ("PUT", f"/os-services/{NIL}", {"status": "disabled", "disabled_reason": LONG}, 400, "disabled_reason"),
    ("PUT", f"/os-services/{NIL}", {"forced_down": "perhaps"}, 400, FIELD.format("forced_down")),
    ("DELETE", f"/os-services/{NIL}", None, 404, NIL), ("DELETE", "/os-services/7", None, 400, "7"),
    ("GET", "/os-hypervisors/nope", None, 400, "nope"), ("GET", f"/os-hypervisors/{NIL}", None, 404, NIL),
    ("GET", "/extensions/nope", None, 404, ""),
])
def test_invalid_requests_about_other_resources_are_refused(admin, shelf, nothing_left, method, path, body, code, text):
    refused(admin, method, path.format(**shelf) if "{" in path else path, code, text, body=body)


@pytest.mark.parametrize(("method", "path", "body", "code", "text"), [
    ("POST", "/os-security-groups", {"security_group": {"name": "", "description": ""}}, 400, "name cannot be empty"),
    ("POST", "/os-security-groups", {"security_group": {"name": LONG, "description": ""}}, 400, FIELD.format("name")),
    ("POST", "/os-security-groups", {"security_group": {"name": "g"}}, 400, "'description' is a required property"),
    ("POST", "/os-security-groups", {"security_group": {"name": "a\nb", "description": ""}}, 400, "not printable"),
    ("POST", "/os-security-groups", {"security_group": {"name": "s", "description": ""}}, 400, "already exists"),
    ("GET", "/os-security-groups/nope", None, 404, "nope"), ("GET", f"/os-security-groups/{NIL}", None, 404, NIL),
    ("GET", "/os-security-groups/ffffffff-ffff-ffff-ffff-ffffffffffff", None, 404, "ffffffff"),
    ("DELETE", f"/os-security-groups/{NIL}", None, 404, NIL),
    ("POST", "/os-security-group-rules", {"security_group_rule": {}}, 400, "parent_group_id"),
    ("POST", "/os-security-group-rules", {"security_group_rule": {"parent_group_id": NIL}}, 404, NIL),
    *(("POST", "/os-security-group-rules", {"security_group_rule": {
        "parent_group_id": "{security_group}", "ip_protocol": "tcp", "from_port": 1, "to_port": 2, **values}},
       400, text)
      for values, text in [
          ({"ip_protocol": "carrier-pigeon"}, "carrier-pigeon"), ({"ip_protocol": 7}, "ip_protocol"),
          ({"from_port": "x"}, "from_port"), ({"from_port": 3}, ""), ({"from_port": -5}, "port"),
          ({"to_port": 65536}, "65536"), ({"to_port": HUGE}, "to_port"), ({"cidr": "nonsense"}, "nonsense"),
          ({"cidr": "10.0.0.0/33"}, "10.0.0.0/33"), ({"cidr": ["10.0.0.0/8"]}, "cidr"),
          ({"cidr": "fd00::%a }\nflush ruleset\n#/64"}, "cidr"), ({"cidr": "fd00::%eth0/64"}, "fd00::%eth0/64"),
          ({"ip_protocol": "icmp", "from_port": 256, "to_port": 256}, ""), ({"from_port": None}, ""),
          ({"ip_protocol": None}, "")]),
    ("POST", "/os-security-group-rules", {"security_group_rule": {
        "parent_group_id": "{security_group}", "group_id": NIL}}, 404, NIL),
    ("DELETE", "/os-security-group-rules/nope", None, 400, "nope"),
    ("DELETE", f"/os-security-group-rules/{NIL}", None, 404, NIL),
    ("GET", "/os-networks/nope", None, 404, "nope"), ("GET", f"/os-networks/{NIL}", None, 404, NIL),
    ("GET", "/os-tenant-networks/%F0%9F%98%80", None, 404, ""),
    ("GET", "/images/nope", None, 404, "nope"), ("DELETE", f"/images/{NIL}", None, 404, ""),
    ("GET", "/images/..%2F..%2Fetc", None, 404, ""),
    ("GET", "/images/nope/metadata", None, 404, ""),
    ("PUT", "/images/{image}/metadata/a", {"meta": {"b": "c"}}, 400, "Request body and URI mismatch"),
    ("POST", "/images/{image}/metadata", {"metadata": {"a": 1}}, 400, FIELD.format("a")),
    ("PUT", "/os-services/fly", {"host": "h", "binary": "nova-compute"}, 404, "Unknown action"),
    ("PUT", "/os-services/disable", {"host": "nowhere", "binary": "nova-compute"}, 404, "nowhere"),
    ("PUT", "/os-services/disable", {"host": "no where", "binary": "nova-compute"}, 400, FIELD.format("host")),
    ("PUT", "/os-services/disable", {"host": "h"}, 400, "'binary' is a required property"),
    ("PUT", "/os-services/disable-log-reason", {"host": "h", "binary": "b"}, 400, "Missing disabled reason field"),
    ("DELETE", "/os-services/" + HUGE, None, 404, ""), ("DELETE", "/os-services/x", None, 400, "x"),
    ("GET", "/os-hypervisors/" + HUGE, None, 404, HUGE), ("GET", "/os-hypervisors/nope/uptime", None, 404, "nope"),
    ("GET", "/os-hypervisors/nope/search", None, 404, "nope"), ("GET", "/os-hypervisors/%/servers", None, 404, ""),
])
def test_invalid_requests_in_microversion_2_11_are_refused(admin, shelf, nothing_left, method, path, body, code, text):
    body = json.loads(json.dumps(body).replace("{security_group}", shelf["security_group"]))
    path = path.replace("{image}", shelf["image"])
    refused(admin, method, path, code, text, body=body, version="2.11")


@pytest.mark.parametrize(("values", "text"), [
    ({"cidr": "nonsense"}, "nonsense"), ({"cidr": "10.0.0.0/33"}, "10.0.0.0/33"), ({"cidr": "10.0.0.1/32"}, ""),
    ({"cidr": "::/64"}, ""), ({"gateway": "10.1.0.1"}, "10.1.0.1"), ({"gateway": "x"}, "x"),
    ({"dns": ["x"]}, "x"), ({"mtu": 10}, "10"), ({"mtu": -1}, "-1"), ({"vlan": 5000}, "5000"),
    ({"dhcp_start": "10.1.0.1"}, "10.1.0.1"), ({"label": ""}, "label"), ({"label": LONG}, "label"),
    ({"bridge": "a/b"}, "bridge"), ({"bridge": "x" * 16}, "bridge"),
])
def test_invalid_networks_are_refused(networks, nothing_left, values, text):
    wanted = {"uuid": new_uuid(), "label": "bad", "cidr": "10.98.0.0/24", "gateway": "", "bridge": "", **values}
    with pytest.raises(exception.NovaException) as refusal:
        networks.create(context.admin(), Network(**wanted))
    assert 400 <= refusal.value.code < 500
    assert text in refusal.value.message
