"""Whatever is wrong with a request: a clear 4xx that names the field, and not a row of it is left."""

import contextlib
import json

import pytest
import sqlalchemy as sa

from nova import context, exception
from nova.db import models
from nova.objects.base import new_uuid
from nova.objects.network import Network
from tests.functional.client import Client, Failed

NIL = "00000000-0000-0000-0000-000000000000"
LONG = "x" * 256
HUGE = "9" * 30
UNEXPECTED = "Additional properties are not allowed ('{}' was unexpected)"

# What services write while a test runs has nothing to do with its requests.
_BACKGROUND = {"services", "compute_nodes", "inventories", "alembic_version"}


def rows(suite):
    """How many rows each table has."""
    tables = [table for name, table in models.metadata.tables.items() if name not in _BACKGROUND]
    return suite.conductor.core.db.read(lambda connection: {
        table.name: connection.scalar(sa.select(sa.func.count()).select_from(table)) for table in tables})


@contextlib.contextmanager
def no_rows(suite):
    before = rows(suite)
    yield
    assert rows(suite) == before


def raw(client, method, path, data=None, version="2.96", prefix="/v2.1", **headers):
    """The answer to a request that a decent client would not send."""
    sent = {"OpenStack-API-Version": f"compute {version}", "Content-Type": "application/json",
            **{name.replace("_", "-"): value for name, value in headers.items()}}
    return client.session.request(method, f"{client.url}{prefix}{path}", data=data, headers=sent, timeout=60)


def refused(client, method, path, code, text, body=None, **options):
    """The request fails with this status and a message with this text."""
    with pytest.raises(Failed) as failed:
        client.call(method, path, body, **options)
    assert (failed.value.code, text) == (code, text if text in (failed.value.message or "") else failed.value.message)


@pytest.fixture
def nothing_left(suite):
    with no_rows(suite):
        yield


@pytest.fixture(scope="module")
def shelf(suite, image_id, flavor):
    """One of everything, of project p: what the requests of these tests are about."""
    admin = Client(suite.url)
    old = Client(suite.url, version="2.1")
    made = {
        "flavor": flavor, "image": image_id,
        "group": admin.post("/os-server-groups", {"server_group": {
            "name": "g", "policy": "affinity"}})["server_group"]["id"],
        "security_group": old.post("/os-security-groups", {"security_group": {
            "name": "s", "description": "d"}})["security_group"]["id"],
        "aggregate": admin.post("/os-aggregates", {"aggregate": {"name": "shelf"}})["aggregate"]["id"],
    }
    yield made
    admin.delete(f"/os-server-groups/{made['group']}")
    old.delete(f"/os-security-groups/{made['security_group']}")
    admin.delete(f"/os-aggregates/{made['aggregate']}")


@pytest.fixture
def server(admin, shelf):
    uuid = admin.boot(shelf["flavor"], shelf["image"])
    admin.wait(uuid, "ACTIVE")
    return uuid


# --- the request itself ------------------------------------------------------------------------------
@pytest.mark.parametrize(("data", "headers", "code", "text"), [
    (b"{", {}, 400, "Malformed request body"),
    (b"nonsense", {}, 400, "Malformed request body"),
    (b"\xff\xfe\x00", {}, 400, "Malformed request body"),
    (b"[" * 50_000, {}, 400, "Malformed request body"),
    (b'{"server": "\\ud800"}', {}, 400, "Malformed request body"),
    (b"", {}, 400, "malformed or otherwise incorrect"),
    (b"[]", {}, 400, "is not of type 'object'"),
    (b'"server"', {}, 400, "is not of type 'object'"),
    (b"{}", {}, 400, "'server' is a required property"),
    (b'{"server": {"name": "\\u0000"}}', {}, 400, "the request body contains a NUL character"),
    (b'{"server": {"name": NaN}}', {}, 400, "Malformed request body"),
    (b'{"server": {"min_count": 1' + b"0" * 5000 + b"}}", {}, 400, None),
    (b'{"server": {"min_count": "1' + b"0" * 5000 + b'"}}', {}, 400, "min_count"),
    (b"{}", {"Content_Type": "application/xml"}, 415, "Unsupported Content-Type"),
    (b"{}", {"Content_Type": "multipart/form-data; boundary=x"}, 415, "Unsupported Content-Type"),
    (b"x" * (1 << 20), {}, 413, "Request is too large."),
    (json.dumps({"server": {"name": "n" * (1 << 20)}}), {}, 413, "Request is too large."),
    (iter([b"x" * 65536] * 16), {}, 413, "Request is too large."),
])
def test_a_body_that_cannot_be_read_is_refused(suite, admin, nothing_left, data, headers, code, text):
    answer = raw(admin, "POST", "/servers", data, **headers)
    assert answer.status_code == code, answer.text
    (fault,) = answer.json().values()
    assert fault["code"] == code
    assert text is None or text in fault["message"]


@pytest.mark.parametrize(("version", "code"), [
    ("2.105", 406), ("2.0", 406), ("3.1", 406), ("1.1", 406), ("2." + HUGE, 406),
    ("2", 400), ("2.01", 400), ("abc", 400), ("2.1.1", 400), ("-2.1", 400), ("2.x", 400), ("\N{DIGIT TWO}.1x", 400),
    ("2." + "9" * 5000, 406),
])
def test_a_version_that_does_not_exist_is_refused(admin, version, code):
    answer = raw(admin, "GET", "/servers", version=version)
    assert answer.status_code == code, answer.text
    assert version[:100] in next(iter(answer.json().values()))["message"]


@pytest.mark.parametrize(("method", "path"), [
    ("GET", "/nothing"), ("GET", "/servers/x/y/z"), ("POST", "/servers/detail/x"), ("PATCH", "/servers"),
    ("DELETE", "/servers"), ("PUT", "/flavors"), ("GET", "/servers//metadata"), ("GET", "/%00"), ("GET", "/%ff%fe"),
    ("GET", "/servers/" + "x" * 3000 + "/y"), ("OPTIONS", "/servers"),
])
def test_an_unknown_url_is_not_found(admin, method, path):
    answer = raw(admin, method, path)
    assert answer.status_code == 404, answer.text


# --- other people's things ---------------------------------------------------------------------------
_OF_A_SERVER = [
    ("GET", "", None), ("PUT", "", {"server": {"name": "mine"}}), ("DELETE", "", None),
    ("GET", "/metadata", None), ("POST", "/metadata", {"metadata": {"a": "b"}}),
    ("PUT", "/metadata", {"metadata": {"a": "b"}}), ("GET", "/metadata/a", None),
    ("PUT", "/metadata/a", {"meta": {"a": "b"}}), ("DELETE", "/metadata/a", None),
    ("GET", "/tags", None), ("PUT", "/tags", {"tags": ["a"]}), ("DELETE", "/tags", None), ("GET", "/tags/a", None),
    ("PUT", "/tags/a", None), ("DELETE", "/tags/a", None), ("GET", "/ips", None), ("GET", "/ips/private", None),
    ("GET", "/os-instance-actions", None), ("GET", "/os-instance-actions/req-1", None),
    ("GET", "/os-security-groups", None),
    *(("POST", "/action", {name: value}) for name, value in [
        ("os-start", None), ("os-stop", None), ("pause", None), ("unpause", None), ("suspend", None),
        ("resume", None), ("reboot", {"type": "HARD"}), ("lock", None), ("unlock", None), ("forceDelete", None),
        ("addSecurityGroup", {"name": "default"}), ("removeSecurityGroup", {"name": "default"}),
        ("os-getConsoleOutput", {})]),
]


def test_nothing_of_another_projects_server_can_be_reached(suite, server):
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


def test_other_projects_things_do_not_exist(suite, shelf, nothing_left):
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
    # (the attempt made the stranger's own default group, which the request may)


def test_names_and_ids_of_others_in_a_create_request_are_not_found(suite, admin, shelf, flavor, image_id, networks):
    admin.post("/os-keypairs", {"keypair": {"name": "private", "public_key": _KEY}})
    secret = admin.flavor(**{"os-flavor-access:is_public": False})
    other = networks.create(_ctx(), Network(uuid=new_uuid(), label="other", cidr="10.99.1.0/24", gateway="", bridge="",
                                             project_id="p"))
    stranger = Client(suite.url, project="strangers", user="s", roles="member,reader")
    server = {"name": "s", "flavorRef": flavor, "imageRef": image_id, "networks": "none"}
    stranger.get("/os-security-groups", version="2.1")  # makes the default group of the project
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
        networks.delete(_ctx(), other.uuid)
        admin.delete(f"/flavors/{secret}")
        admin.delete("/os-keypairs/private")


# --- actions -----------------------------------------------------------------------------------------
@pytest.mark.parametrize(("body", "code", "text"), [
    ({}, 400, "Malformed request body"),
    ({"os-stop": None, "os-start": None}, 400, "Malformed request body"),
    ([], 400, "Malformed request body"),
    ("os-stop", 400, "Malformed request body"),
    ({"fly": None}, 400, "There is no such action: fly"),
    ({"": None}, 400, "There is no such action: "),
    ({"OS-STOP": None}, 400, "There is no such action: OS-STOP"),
    ({"reboot": None}, 400, "reboot"),
    ({"reboot": {}}, 400, "'type' is a required property"),
    ({"reboot": {"type": "WARM"}}, 400, "Invalid input for field/attribute type."),
    ({"reboot": {"type": "HARD", "speed": 1}}, 400, UNEXPECTED.format("speed")),
    ({"lock": {"locked_reason": ""}}, 400, "Invalid input for field/attribute locked_reason."),
    ({"lock": {"locked_reason": LONG}}, 400, "Invalid input for field/attribute locked_reason."),
    ({"lock": "why"}, 400, "Invalid input for field/attribute lock."),
    ({"os-getConsoleOutput": {"length": -2}}, 400, "Invalid input for field/attribute length."),
    ({"os-getConsoleOutput": {"length": "many"}}, 400, "Invalid input for field/attribute length."),
    ({"os-getConsoleOutput": {"length": 1.5}}, 400, "Invalid input for field/attribute length."),
    ({"os-getConsoleOutput": []}, 400, "Invalid input for field/attribute os-getConsoleOutput."),
    ({"os-resetState": {"state": "deleted"}}, 400, "Invalid input for field/attribute state."),
    ({"os-resetState": {}}, 400, "'state' is a required property"),
    ({"addSecurityGroup": {"name": "nope"}}, 404, "Security group nope not found"),
    ({"addSecurityGroup": {"name": " "}}, 400, "Security group name cannot be empty"),
    ({"addSecurityGroup": {}}, 400, "'name' is a required property"),
    ({"addSecurityGroup": {"name": "default"}}, 400, "is already associated with the instance"),
    ({"removeSecurityGroup": {"name": HUGE}}, 404, "not found"),
    ({"resetNetwork": None}, 410, "no longer available"),
])
def test_a_bad_action_is_refused_and_changes_nothing(suite, admin, server, body, code, text):
    before = admin.server(server)
    with no_rows(suite):
        refused(admin, "POST", f"/servers/{server}/action", code, text, body=body)
    assert admin.server(server) == before


def test_huge_numbers_of_console_lines_are_all_lines(admin, server):
    for length in (10**40, HUGE, "-1", None, -1):
        assert "login:" in admin.action(server, "os-getConsoleOutput", {"length": length})["output"]


# --- lists -------------------------------------------------------------------------------------------
_LISTS = ["/servers", "/servers/detail", "/flavors", "/flavors/detail", "/os-keypairs", "/os-hypervisors",
          "/os-hypervisors/detail"]


@pytest.mark.parametrize("path", _LISTS)
def test_pages_that_cannot_be(admin, server, path):
    for limit in ("-1", "x", "1.5", "", "1e3", " 1", "9" * 5000 + "x"):
        refused(admin, "GET", path, 400, "Invalid input for query parameters limit.", limit=limit)
    admin.get(path, limit=HUGE)
    admin.get(path, limit="9" * 5000)
    for marker in ("nope", NIL, HUGE, "-1", "😀", "x" * 2000, "'; drop table instances; --"):
        refused(admin, "GET", path, 400, marker[:100], marker=marker)


@pytest.mark.parametrize(("path", "query", "code", "text", "version"), [
    ("/servers", {"sort_key": "nope"}, 400, "Invalid input for query parameters sort_key.", "2.96"),
    ("/servers", {"sort_key": "user_data"}, 400, "sort_key", "2.96"),
    ("/servers", {"sort_key": "uuid", "sort_dir": "up"}, 400, "Unknown sort direction", "2.96"),
    ("/servers", {"sort_key": "uuid", "sort_dir": ["asc", "asc"]}, 400, "Sort direction size", "2.96"),
    ("/servers", {"colour": "red"}, 400, UNEXPECTED.format("colour"), "2.96"),
    ("/servers", {"changes-since": "yesterday"}, 400, "changes-since", "2.96"),
    ("/servers", {"changes-since": "2020-01-02T00:00:00Z", "changes-before": "2020-01-01T00:00:00Z"}, 400,
     "changes-since", "2.96"),
    ("/servers", {"status": "nope"}, 400, "Invalid status value", "2.96"),
    ("/servers", {"name": "("}, 400, "Invalid input for query parameters name.", "2.96"),
    ("/servers", {"metadata": "{}"}, 400, "Invalid filter field: metadata.", "2.96"),
    ("/servers", {"_x": "1"}, 400, "Invalid filter field: _x.", "2.96"),
    ("/servers", {"all_tenants": "perhaps"}, 400, "all_tenants", "2.96"),
    ("/servers", {"locked": "perhaps"}, 400, "locked", "2.96"),
    ("/servers", {"name": "\0"}, 400, "the query string contains a NUL character", "2.96"),
    ("/flavors", {"sort_key": "nope"}, 400, "Invalid input for query parameters sort_key.", "2.96"),
    ("/flavors", {"sort_dir": "up"}, 400, "Invalid input for query parameters sort_dir.", "2.96"),
    ("/flavors", {"minRam": "much"}, 400, "Invalid minRam filter [much]", "2.96"),
    ("/flavors", {"minDisk": "1.5"}, 400, "Invalid minDisk filter [1.5]", "2.96"),
    ("/flavors", {"is_public": "perhaps"}, 400, "Invalid is_public filter [perhaps]", "2.96"),
    ("/flavors", {"colour": "red"}, 400, UNEXPECTED.format("colour"), "2.96"),
    ("/os-services", {"colour": "red"}, 400, UNEXPECTED.format("colour"), "2.96"),
    ("/os-server-groups", {"limit": "-1"}, 400, "Invalid input for query parameters limit.", "2.96"),
    ("/os-server-groups", {"offset": "x"}, 400, "Invalid input for query parameters offset.", "2.96"),
    ("/os-keypairs", {"user_id": LONG}, 400, "user_id", "2.96"),
    ("/images", {"limit": "-1"}, 400, "Invalid input for query parameters limit.", "2.1"),
    ("/images", {"marker": "nope"}, 400, "nope", "2.1"),
    ("/os-security-groups", {"limit": "x"}, 400, "Invalid input for query parameters limit.", "2.1"),
])
def test_a_bad_query_is_refused(admin, path, query, code, text, version):
    refused(admin, "GET", path, code, text, version=version, **query)


def test_queries_of_any_bytes(admin):
    for query in ("name=%ff", "%ff=1", "name=%ed%a0%80", "limit=%00", "&&&==&", "%zz=1", "name=%"):
        assert raw(admin, "GET", f"/servers?{query}", version="2.1").status_code in (200, 400), query


def test_an_actions_list_refuses_bad_pages(admin, server):
    path = f"/servers/{server}/os-instance-actions"
    refused(admin, "GET", path, 400, "limit", limit="-1")
    refused(admin, "GET", path, 400, "req-nope", marker="req-nope")
    refused(admin, "GET", path, 400, "changes-since", **{"changes-since": "x"})
    refused(admin, "GET", f"{path}/req-nope", 404, "req-nope")
    admin.get(path, limit=HUGE)


# --- servers -----------------------------------------------------------------------------------------
_FIELD = "Invalid input for field/attribute {}."


@pytest.mark.parametrize(("values", "text"), [
    ({"name": LONG}, _FIELD.format("name")), ({"name": " s"}, _FIELD.format("name")),
    ({"name": 7}, _FIELD.format("name")), ({"name": None}, _FIELD.format("name")),
    ({"name": "a\nb"}, _FIELD.format("name")), ({"name": "a\u2028b"}, _FIELD.format("name")),
    ({"imageRef": "nope"}, _FIELD.format("imageRef")), ({"imageRef": ""}, "Missing imageRef attribute"),
    ({"imageRef": 1}, _FIELD.format("imageRef")), ({"imageRef": NIL}, "Can not find requested image"),
    ({"flavorRef": ""}, _FIELD.format("flavorRef")), ({"flavorRef": LONG}, "could not be found"),
    ({"flavorRef": 10**30}, "could not be found"), ({"flavorRef": ["1"]}, _FIELD.format("flavorRef")),
    ({"flavorRef": "http://x/y/😀"}, "Flavor 😀 could not be found."),
    ({"min_count": 0}, _FIELD.format("min_count")), ({"min_count": -1}, _FIELD.format("min_count")),
    ({"min_count": "many"}, _FIELD.format("min_count")), ({"min_count": True}, _FIELD.format("min_count")),
    ({"min_count": 1.5}, _FIELD.format("min_count")), ({"max_count": HUGE}, "max_count must be at most"),
    ({"max_count": 10**25}, "max_count must be at most"),
    ({"min_count": 2, "max_count": 1}, "min_count must be <= max_count"),
    ({"metadata": {"a": 1}}, _FIELD.format("a")), ({"metadata": {"a": LONG}}, _FIELD.format("a")),
    ({"metadata": {"": "b"}}, _FIELD.format("metadata")), ({"metadata": {"a/b": "c"}}, _FIELD.format("metadata")),
    ({"metadata": []}, _FIELD.format("metadata")),
    ({"user_data": "%%%"}, _FIELD.format("user_data")), ({"user_data": "A" * 65536}, _FIELD.format("user_data")),
    ({"user_data": None}, _FIELD.format("user_data")),
    ({"config_drive": "perhaps"}, _FIELD.format("config_drive")),
    ({"key_name": "nope"}, "Invalid key_name provided."), ({"key_name": LONG}, _FIELD.format("key_name")),
    ({"availability_zone": "mars"}, "The requested availability zone is not available"),
    ({"availability_zone": "nova:nowhere"}, "Compute host nowhere could not be found."),
    ({"availability_zone": "nova::nowhere"}, "nowhere"),
    ({"availability_zone": "a:b:c:d"}, "Unable to parse availability_zone: a:b:c:d."),
    ({"host": "nowhere"}, "Compute host nowhere could not be found."),
    ({"hypervisor_hostname": "nowhere"}, "nowhere"),
    ({"host": "no where"}, _FIELD.format("host")),
    ({"networks": "some"}, _FIELD.format("networks")), ({"networks": [{}]}, "missing 'uuid' or 'port'"),
    ({"networks": {}}, _FIELD.format("networks")),
    ({"networks": [{"uuid": "x"}]}, "networks"),
    ({"networks": [{"uuid": NIL}]}, f"Network {NIL} could not be found."),
    ({"networks": [{"port": NIL}]}, "Ports are not supported"),
    ({"networks": [{"uuid": NIL, "fixed_ip": "1.2.3"}]}, _FIELD.format("fixed_ip")),
    ({"networks": [{"uuid": NIL, "colour": 1}]}, _FIELD.format("networks.0")),
    ({"networks": [{"uuid": NIL, "colour": 1}]}, UNEXPECTED.format("colour")),
    ({"security_groups": [{"name": "nope"}]}, "Security group nope not found"),
    ({"security_groups": ["default"]}, _FIELD.format("security_groups.0")),
    ({"tags": ["a,b"]}, _FIELD.format("tags.0")), ({"tags": ["t"] * 51}, _FIELD.format("tags")),
    ({"tags": [""]}, _FIELD.format("tags.0")), ({"description": LONG}, _FIELD.format("description")),
    ({"accessIPv4": "1.2.3"}, _FIELD.format("accessIPv4")), ({"accessIPv6": "1.2.3.4"}, _FIELD.format("accessIPv6")),
    ({"hostname": "a b"}, _FIELD.format("hostname")), ({"OS-DCF:diskConfig": "auto"}, _FIELD.format("diskConfig")),
    ({"block_device_mapping_v2": [{"source_type": "volume", "uuid": NIL, "boot_index": 0}]}, "Volumes"),
    ({"block_device_mapping_v2": [{"source_type": "blank", "destination_type": "local", "volume_size": 5,
                                   "boot_index": -1}]}, "Ephemeral disks requested are larger"),
    ({"block_device_mapping_v2": [{"boot_index": 0}]}, "source_type is missing"),
    ({"trusted_image_certificates": []}, _FIELD.format("trusted_image_certificates")),
    ({"colour": "red"}, UNEXPECTED.format("colour")),
])
def test_a_bad_create_request_names_its_field(suite, admin, shelf, nothing_left, values, text):
    server = {"name": "s", "flavorRef": shelf["flavor"], "imageRef": shelf["image"], "networks": "none", **values}
    if "diskConfig" in text:
        text = text.replace("diskConfig", "OS-DCF:diskConfig")
    refused(admin, "POST", "/servers", 400, text, body={"server": server})


@pytest.mark.parametrize(("values", "text"), [
    ({"metadata": {f"k{number}": "v" for number in range(129)}}, "Maximum number of metadata items exceeds 128"),
    ({"personality": [{"path": "/a", "contents": ""}] * 6}, "Personality file limit exceeded"),
    ({"personality": [{"path": "/" + LONG, "contents": ""}]}, "Personality file path exceeds maximum 255"),
    ({"personality": [{"path": "/a", "contents": "A" * 13656}]}, "Personality file content exceeds maximum 10240"),
])
def test_more_than_a_server_may_be_given_is_refused(admin, shelf, nothing_left, values, text):
    server = {"name": "s", "flavorRef": shelf["flavor"], "imageRef": shelf["image"], **values}
    refused(admin, "POST", "/servers", 403, text, body={"server": server}, version="2.1")


def test_the_quota_of_metadata_items_is_the_projects(suite, admin, shelf):
    poor = Client(suite.url, project="laconic", user="x", roles="member")
    admin.put("/os-quota-sets/laconic", {"quota_set": {"metadata_items": 1}})
    with pytest.raises(Failed) as failed:
        poor.boot(shelf["flavor"], shelf["image"], metadata={"a": "1", "b": "2"})
    assert (failed.value.code, failed.value.message) == (403, "Maximum number of metadata items exceeds 1")
    poor.boot(shelf["flavor"], shelf["image"], metadata={"a": "1"})


@pytest.mark.parametrize(("hints", "text"), [
    ({"group": "nope"}, "group"), ({"group": NIL}, f"Instance group {NIL} could not be found."),
    ({"same_host": ["nope"]}, "same_host"), ({"different_host": 7}, "different_host"),
    ({"cidr": "24"}, "cidr"), ({"build_near_host_ip": "x"}, "build_near_host_ip"),
])
def test_bad_hints_are_refused(admin, shelf, nothing_left, hints, text):
    server = {"name": "s", "flavorRef": shelf["flavor"], "imageRef": shelf["image"], "networks": "none"}
    refused(admin, "POST", "/servers", 400, text, body={"server": server, "os:scheduler_hints": hints})


@pytest.mark.parametrize("hints", [{"query": "["}, {"query": '["=", "$nothing", 1]'}, {"query": "{}"},
                                   {"query": '["in"]'}, {"query": {"a": 1}}, {"colour": {"deep": [1, None]}},
                                   {"same_host": [NIL]}, {"different_host": NIL}])
def test_a_server_with_odd_hints_ends_active_or_in_error(admin, shelf, hints):
    with contextlib.suppress(Failed):
        uuid = admin.boot(shelf["flavor"], shelf["image"], top={"os:scheduler_hints": hints})
        server = admin.wait(uuid, "ACTIVE", "ERROR")
        assert server["status"] == "ACTIVE" or "No valid host was found." in server["fault"]["message"]


@pytest.mark.parametrize(("method", "path", "body", "code", "text"), [
    ("PUT", "", {"server": {"name": ""}}, 400, _FIELD.format("name")),
    ("PUT", "", {"server": {"name": LONG}}, 400, _FIELD.format("name")),
    ("PUT", "", {"server": {"vm_state": "active"}}, 400, UNEXPECTED.format("vm_state")),
    ("PUT", "", {}, 400, "'server' is a required property"),
    ("PUT", "", {"server": {"accessIPv4": "::1"}}, 400, _FIELD.format("accessIPv4")),
    ("POST", "/metadata", {"metadata": {"a": None}}, 400, _FIELD.format("a")),
    ("POST", "/metadata", {"metadata": {"x" * 256: "a"}}, 400, "metadata"),
    ("POST", "/metadata", {}, 400, "'metadata' is a required property"),
    ("POST", "/metadata", {"metadata": {f"k{number}": "v" for number in range(129)}}, 403, "exceeds 128"),
    ("PUT", "/metadata/a", {"meta": {"b": "c"}}, 400, "Request body and URI mismatch"),
    ("PUT", "/metadata/a", {"meta": {}}, 400, "meta"),
    ("GET", "/metadata/nope", None, 404, "Metadata item was not found"),
    ("DELETE", "/metadata/%F0%9F%98%80", None, 404, "Metadata item was not found"),
    ("PUT", "/tags", {"tags": ["x" * 61]}, 400, _FIELD.format("tags.0")),
    ("PUT", "/tags", {"tags": "a"}, 400, _FIELD.format("tags")),
    ("PUT", "/tags/" + "x" * 61, None, 400, "It must be 1 to 60 characters long"),
    ("PUT", "/tags/a,b", None, 400, "a,b"),
    ("GET", "/tags/nope", None, 404, "has no tag 'nope'"),
    ("DELETE", "/tags/nope", None, 404, "has no tag 'nope'"),
    ("GET", "/ips/nope", None, 404, ""),
])
def test_bad_changes_of_a_server_change_nothing(suite, admin, server, method, path, body, code, text):
    before = admin.server(server)
    with no_rows(suite):
        if path.endswith("tags/nope") and method == "GET":
            assert raw(admin, method, f"/servers/{server}{path}").status_code == code
        else:
            refused(admin, method, f"/servers/{server}{path}", code, text, body=body)
    assert admin.server(server) == before


def test_unicode_goes_in_and_comes_out(admin, shelf):
    name = "Ünï ☃ 日本"
    uuid = admin.boot(shelf["flavor"], shelf["image"], name=name, description="Ж", metadata={"k": "😀"}, tags=["ü"])
    admin.wait(uuid, "ACTIVE")
    shown = admin.server(uuid)
    assert (shown["name"], shown["description"], shown["metadata"], shown["tags"]) == (name, "Ж", {"k": "😀"}, ["ü"])
    assert [found["id"] for found in admin.get("/servers", name="☃")["servers"]] == [uuid]
    assert [found["id"] for found in admin.get("/servers", tags="ü")["servers"]] == [uuid]
    admin.call("GET", f"/servers/{uuid}/tags/ü", expect=204)
    assert shown["OS-EXT-SRV-ATTR:hostname"].isascii()


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
def test_a_bad_flavor_is_refused(admin, nothing_left, values, text):
    refused(admin, "POST", "/flavors", 400, text, body={"flavor": {**_FLAVOR, **values}})


@pytest.mark.parametrize(("method", "path", "body", "code", "text"), [
    ("GET", "/flavors/nope", None, 404, "Flavor nope could not be found."),
    ("GET", "/flavors/%F0%9F%98%80", None, 404, "could not be found"),
    ("DELETE", "/flavors/nope", None, 404, "Flavor nope could not be found."),
    ("PUT", "/flavors/nope", {"flavor": {"description": None}}, 404, "Flavor nope could not be found."),
    ("PUT", "/flavors/{flavor}", {"flavor": {}}, 400, "'description' is a required property"),
    ("PUT", "/flavors/{flavor}", {"flavor": {"description": 7}}, 400, _FIELD.format("description")),
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
def test_bad_requests_about_flavors(admin, shelf, nothing_left, method, path, body, code, text):
    body = json.loads(json.dumps(body).replace("{flavor}", shelf["flavor"]))
    refused(admin, method, path.replace("{flavor}", shelf["flavor"]), code, text, body=body)


# --- everything else ---------------------------------------------------------------------------------
_KEY = ("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGRtZGtzbGRrc2xka3NsZGtzbGRrc2xka3NsZGtzbGRr c")


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
def test_a_bad_key_is_refused(admin, nothing_left, values, text):
    refused(admin, "POST", "/os-keypairs", 400, text,
            body={"keypair": {"name": "k", "public_key": _KEY, **values}})


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
    ("GET", "/os-aggregates/-1", None, 400, "-1"), ("GET", "/os-aggregates/0", None, 404, "Aggregate 0 could not"),
    ("GET", "/os-aggregates/" + HUGE, None, 404, "could not be found"),
    ("GET", "/os-aggregates/99999999", None, 404, "could not be found"),
    ("DELETE", "/os-aggregates/99999999", None, 404, "could not be found"),
    ("PUT", "/os-aggregates/{aggregate}", {"aggregate": {}}, 400, "aggregate"),
    ("PUT", "/os-aggregates/99999999", {"aggregate": {"name": "x"}}, 404, "could not be found"),
    ("POST", "/os-aggregates/{aggregate}/action", {"add_host": {"host": "nowhere"}}, 404, "nowhere"),
    ("POST", "/os-aggregates/{aggregate}/action", {"add_host": {"host": "no where"}}, 400, _FIELD.format("host")),
    ("POST", "/os-aggregates/{aggregate}/action", {"add_host": {}}, 400, "'host' is a required property"),
    ("POST", "/os-aggregates/{aggregate}/action", {"remove_host": {"host": "nowhere"}}, 404, "nowhere"),
    ("POST", "/os-aggregates/{aggregate}/action", {"set_metadata": {"metadata": {"a": 1}}}, 400, _FIELD.format("a")),
    ("POST", "/os-aggregates/{aggregate}/action", {"set_metadata": {"metadata": {"availability_zone": "a:b"}}}, 400,
     "availability"),
    ("POST", "/os-aggregates/{aggregate}/action", {"fly": {}}, 400, "There is no such action: fly"),
    ("POST", "/os-aggregates/{aggregate}/action", {"add_host": {}, "remove_host": {}}, 400, "Malformed request body"),
    ("POST", "/os-server-groups", {"server_group": {"name": "g"}}, 400, "'policy' is a required property"),
    ("POST", "/os-server-groups", {"server_group": {"name": "g", "policy": "close"}}, 400, _FIELD.format("policy")),
    ("POST", "/os-server-groups", {"server_group": {"name": "", "policy": "affinity"}}, 400, _FIELD.format("name")),
    ("POST", "/os-server-groups", {"server_group": {"name": LONG, "policy": "affinity"}}, 400, _FIELD.format("name")),
    ("POST", "/os-server-groups", {"server_group": {"name": "g", "policy": "affinity", "rules": {
        "max_server_per_host": 2}}}, 400, "Only the policy anti-affinity supports rules."),
    ("POST", "/os-server-groups", {"server_group": {"name": "g", "policy": "anti-affinity", "rules": {
        "max_server_per_host": 0}}}, 400, _FIELD.format("max_server_per_host")),
    ("POST", "/os-server-groups", {"server_group": {"name": "g", "policy": "anti-affinity", "rules": {
        "colour": 2}}}, 400, UNEXPECTED.format("colour")),
    ("GET", "/os-server-groups/nope", None, 404, "nope"), ("DELETE", f"/os-server-groups/{NIL}", None, 404, NIL),
    ("PUT", "/os-services/nope", {"status": "disabled"}, 400, "nope"),
    ("PUT", f"/os-services/{NIL}", {"status": "disabled"}, 404, NIL),
    ("PUT", f"/os-services/{NIL}", {"status": "off"}, 400, _FIELD.format("status")),
    ("PUT", f"/os-services/{NIL}", {}, 400, "No updates were requested."),
    ("PUT", f"/os-services/{NIL}", {"status": "disabled", "disabled_reason": LONG}, 400, "disabled_reason"),
    ("PUT", f"/os-services/{NIL}", {"forced_down": "perhaps"}, 400, _FIELD.format("forced_down")),
    ("DELETE", f"/os-services/{NIL}", None, 404, NIL), ("DELETE", "/os-services/7", None, 400, "7"),
    ("GET", "/os-hypervisors/nope", None, 400, "nope"), ("GET", f"/os-hypervisors/{NIL}", None, 404, NIL),
    ("GET", "/extensions/nope", None, 404, ""),
])
def test_bad_requests_about_other_things(admin, shelf, nothing_left, method, path, body, code, text):
    refused(admin, method, path.format(**shelf) if "{" in path else path, code, text, body=body)


@pytest.mark.parametrize(("method", "path", "body", "code", "text"), [
    ("POST", "/os-security-groups", {"security_group": {"name": "", "description": ""}}, 400, "name cannot be empty"),
    ("POST", "/os-security-groups", {"security_group": {"name": LONG, "description": ""}}, 400, _FIELD.format("name")),
    ("POST", "/os-security-groups", {"security_group": {"name": "g"}}, 400, "'description' is a required property"),
    ("POST", "/os-security-groups", {"security_group": {"name": "a\nb", "description": ""}}, 400, "not printable"),
    ("POST", "/os-security-groups", {"security_group": {"name": "s", "description": ""}}, 400, "already exists"),
    ("GET", "/os-security-groups/nope", None, 400, "nope"), ("GET", f"/os-security-groups/{NIL}", None, 404, NIL),
    ("GET", "/os-security-groups/ffffffff-ffff-ffff-ffff-ffffffffffff", None, 404, "ffffffff"),
    ("DELETE", f"/os-security-groups/{NIL}", None, 404, NIL),
    ("POST", "/os-security-group-rules", {"security_group_rule": {}}, 400, "parent_group_id"),
    ("POST", "/os-security-group-rules", {"security_group_rule": {"parent_group_id": NIL}}, 404, NIL),
    *(("POST", "/os-security-group-rules", {"security_group_rule": {
        "parent_group_id": "{security_group}", "ip_protocol": "tcp", "from_port": 1, "to_port": 2, **values}}, 400, text)
      for values, text in [
          ({"ip_protocol": "carrier-pigeon"}, "carrier-pigeon"), ({"ip_protocol": 7}, "ip_protocol"),
          ({"from_port": "x"}, "from_port"), ({"from_port": 3}, ""), ({"from_port": -5}, "port"),
          ({"to_port": 65536}, "65536"), ({"to_port": HUGE}, "to_port"), ({"cidr": "nonsense"}, "nonsense"),
          ({"cidr": "10.0.0.0/33"}, "10.0.0.0/33"), ({"cidr": ["10.0.0.0/8"]}, "cidr"),
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
    ("POST", "/images/{image}/metadata", {"metadata": {"a": 1}}, 400, _FIELD.format("a")),
    ("PUT", "/os-services/fly", {"host": "h", "binary": "nova-compute"}, 404, "Unknown action"),
    ("PUT", "/os-services/disable", {"host": "nowhere", "binary": "nova-compute"}, 404, "nowhere"),
    ("PUT", "/os-services/disable", {"host": "no where", "binary": "nova-compute"}, 400, _FIELD.format("host")),
    ("PUT", "/os-services/disable", {"host": "h"}, 400, "'binary' is a required property"),
    ("PUT", "/os-services/disable-log-reason", {"host": "h", "binary": "b"}, 400, "Missing disabled reason field"),
    ("DELETE", "/os-services/" + HUGE, None, 404, ""), ("DELETE", "/os-services/x", None, 400, "x"),
    ("GET", "/os-hypervisors/" + HUGE, None, 404, HUGE), ("GET", "/os-hypervisors/nope/uptime", None, 404, "nope"),
    ("GET", "/os-hypervisors/nope/search", None, 404, "nope"), ("GET", "/os-hypervisors/%/servers", None, 404, ""),
])
def test_bad_requests_of_old_versions(admin, shelf, nothing_left, method, path, body, code, text):
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
def test_a_bad_network_is_refused(networks, nothing_left, values, text):
    wanted = {"uuid": new_uuid(), "label": "bad", "cidr": "10.98.0.0/24", "gateway": "", "bridge": "", **values}
    with pytest.raises(exception.NovaException) as refusal:
        networks.create(_ctx(), Network(**wanted))
    assert 400 <= refusal.value.code < 500
    assert text in refusal.value.message


def _ctx():
    return context.admin()
