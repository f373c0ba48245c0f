"""Invalid requests about servers: the response is a 4xx that names the field, and the database is unchanged."""

import json

import pytest

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
def test_malformed_request_bodies_are_refused(suite, admin, nothing_left, data, headers, code, text):
    answer = raw(admin, "POST", "/servers", data, **headers)
    assert answer.status_code == code, answer.text
    (fault,) = answer.json().values()
    assert fault["code"] == code
    assert text is None or text in fault["message"]


@pytest.mark.parametrize(("method", "path"), [
    ("GET", "/nothing"), ("GET", "/servers/x/y/z"), ("POST", "/servers/detail/x"), ("PATCH", "/servers"),
    ("DELETE", "/servers"), ("PUT", "/flavors"), ("GET", "/servers//metadata"), ("GET", "/%00"), ("GET", "/%ff%fe"),
    ("GET", "/servers/" + "x" * 3000 + "/y"), ("OPTIONS", "/servers"),
])
def test_unknown_urls_are_not_found(admin, method, path):
    answer = raw(admin, method, path)
    assert answer.status_code == 404, answer.text


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
def test_invalid_server_actions_are_refused_without_changes(suite, admin, server, body, code, text):
    before = admin.server(server)
    with no_rows(suite):
        refused(admin, "POST", f"/servers/{server}/action", code, text, body=body)
    assert admin.server(server) == before


def test_huge_console_log_length_returns_the_whole_log(admin, server):
    for length in (2**63 - 1, HUGE, "-1", None, -1):
        assert "login:" in admin.action(server, "os-getConsoleOutput", {"length": length})["output"]


# --- lists -------------------------------------------------------------------------------------------
_LISTS = ["/servers", "/servers/detail", "/flavors", "/flavors/detail", "/os-keypairs", "/os-hypervisors",
          "/os-hypervisors/detail"]


@pytest.mark.parametrize("path", _LISTS)
def test_invalid_limit_and_marker_are_refused(admin, server, path):
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
    ("/servers", {"name": "a" * 1025}, 400, "Invalid input for query parameters name.", "2.96"),
    ("/servers", {"metadata": "{}"}, 400, "Invalid filter field: metadata.", "2.96"),
    ("/servers", {"_x": "1"}, 400, "Invalid filter field: _x.", "2.96"),
    ("/servers", {"all_tenants": "perhaps"}, 400, "all_tenants", "2.96"),
    ("/servers", {"locked": "perhaps"}, 400, "locked", "2.96"),
    ("/servers", {"name": "\0"}, 400, "the query string contains a NUL character", "2.96"),
    ("/flavors", {"name": "a" * 1025}, 400, "Invalid input for query parameters name.", "2.102"),
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
def test_invalid_query_parameters_are_refused(admin, path, query, code, text, version):
    refused(admin, "GET", path, code, text, version=version, **query)


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|a)*$", "((a*)b)*$", "(?:a+)+$", "(a{1,9}){1,9}$", ".*.*.*.*.*x",
                                     "(a?){40}$", "a?" * 40 + "a" * 40, "(a|a)" * 40 + "$"])
def test_expensive_name_regex_gets_a_response(admin, shelf, pattern):
    uuid = admin.boot(shelf["flavor"], shelf["image"], name="a" * 60 + "!")
    found = [server["id"] for server in admin.get("/servers", name=f"^({pattern})")["servers"]]
    assert found == ([uuid] if pattern == "a?" * 40 + "a" * 40 else [])


def test_too_long_name_regex_is_refused(admin):
    refused(admin, "GET", "/servers", 400, "Invalid input for query parameters name.", name="a" * 5000)


@pytest.mark.parametrize("name", ["c++", "web[1", "vm (test)", r"(a)\1", "*", "(?=a)"])
def test_name_filter_matches_regex_metacharacters_literally(admin, shelf, name):
    uuid = admin.boot(shelf["flavor"], shelf["image"], name=name)
    admin.boot(shelf["flavor"], shelf["image"], name="other")
    assert [found["id"] for found in admin.get("/servers", name=name)["servers"]] == [uuid]
    assert [found["id"] for found in admin.get("/servers/detail", name=name, limit=1)["servers"]] == [uuid]


@pytest.mark.parametrize("pattern", ["web", "^web-\\d+$", "(web|db)-[0-9]*", "[(a+)+]*w", "w(e+)(b+)", "WEB",
                                     "\\w{3}-\\d"])
def test_name_filter_supports_common_regex_syntax(admin, shelf, pattern):
    uuid = admin.boot(shelf["flavor"], shelf["image"], name="web-12")
    assert [found["id"] for found in admin.get("/servers", name=pattern)["servers"]] == [uuid]


def test_non_utf8_query_strings_are_no_server_error(admin):
    for query in ("name=%ff", "%ff=1", "name=%ed%a0%80", "limit=%00", "&&&==&", "%zz=1", "name=%"):
        assert raw(admin, "GET", f"/servers?{query}", version="2.1").status_code in (200, 400), query


def test_instance_actions_refuse_invalid_pagination(admin, server):
    path = f"/servers/{server}/os-instance-actions"
    refused(admin, "GET", path, 400, "limit", limit="-1")
    refused(admin, "GET", path, 400, "req-nope", marker="req-nope")
    refused(admin, "GET", path, 400, "changes-since", **{"changes-since": "x"})
    refused(admin, "GET", f"{path}/req-nope", 404, "req-nope")
    admin.get(path, limit=HUGE)


# --- servers -----------------------------------------------------------------------------------------
@pytest.mark.parametrize(("values", "text"), [
    ({"name": LONG}, FIELD.format("name")), ({"name": " s"}, FIELD.format("name")),
    ({"name": 7}, FIELD.format("name")), ({"name": None}, FIELD.format("name")),
    ({"name": "x" * 255, "max_count": 2}, FIELD.format("name")), ({"adminPass": LONG}, FIELD.format("adminPass")),
    ({"name": "a\nb"}, FIELD.format("name")), ({"name": "a\u2028b"}, FIELD.format("name")),
    ({"imageRef": "nope"}, FIELD.format("imageRef")), ({"imageRef": ""}, "Missing imageRef attribute"),
    ({"imageRef": 1}, FIELD.format("imageRef")), ({"imageRef": NIL}, "Can not find requested image"),
    ({"flavorRef": ""}, FIELD.format("flavorRef")), ({"flavorRef": LONG}, "could not be found"),
    ({"flavorRef": 10**30}, FIELD.format("flavorRef")), ({"flavorRef": ["1"]}, FIELD.format("flavorRef")),
    ({"flavorRef": "http://x/y/😀"}, "Flavor 😀 could not be found."),
    ({"min_count": 0}, FIELD.format("min_count")), ({"min_count": -1}, FIELD.format("min_count")),
    ({"min_count": "many"}, FIELD.format("min_count")), ({"min_count": True}, FIELD.format("min_count")),
    ({"min_count": 1.5}, FIELD.format("min_count")), ({"max_count": HUGE}, "max_count must be at most"),
    ({"max_count": 10**25}, FIELD.format("max_count")), ({"max_count": 10**9}, "max_count must be at most"),
    ({"min_count": 2, "max_count": 1}, "min_count must be <= max_count"),
    ({"metadata": {"a": 1}}, FIELD.format("a")), ({"metadata": {"a": LONG}}, FIELD.format("a")),
    ({"metadata": {"": "b"}}, FIELD.format("metadata")), ({"metadata": {"a/b": "c"}}, FIELD.format("metadata")),
    ({"metadata": []}, FIELD.format("metadata")),
    ({"user_data": "%%%"}, FIELD.format("user_data")), ({"user_data": "A" * 65536}, FIELD.format("user_data")),
    ({"user_data": None}, FIELD.format("user_data")),
    ({"config_drive": "perhaps"}, FIELD.format("config_drive")),
    ({"key_name": "nope"}, "Invalid key_name provided."), ({"key_name": LONG}, FIELD.format("key_name")),
    ({"availability_zone": "mars"}, "The requested availability zone is not available"),
    ({"availability_zone": "nova:nowhere"}, "Compute host nowhere could not be found."),
    ({"availability_zone": "nova::nowhere"}, "nowhere"),
    ({"availability_zone": "a:b:c:d"}, "Unable to parse availability_zone: a:b:c:d."),
    ({"host": "nowhere"}, "Compute host nowhere could not be found."),
    ({"hypervisor_hostname": "nowhere"}, "nowhere"),
    ({"host": "no where"}, FIELD.format("host")),
    ({"networks": "some"}, FIELD.format("networks")), ({"networks": [{}]}, "missing 'uuid' or 'port'"),
    ({"networks": {}}, FIELD.format("networks")),
    ({"networks": [{"uuid": "x"}]}, FIELD.format("uuid")),
    ({"networks": [{"uuid": NIL}]}, f"Network {NIL} could not be found."),
    ({"networks": [{"port": NIL}]}, "Ports are not supported"),
    ({"networks": [{"uuid": NIL, "fixed_ip": "1.2.3"}]}, FIELD.format("fixed_ip")),
    ({"networks": [{"uuid": NIL, "colour": 1}]}, FIELD.format("networks.0")),
    ({"networks": [{"uuid": NIL, "colour": 1}]}, UNEXPECTED.format("colour")),
    ({"security_groups": [{"name": "nope"}]}, "Security group nope not found"),
    ({"security_groups": ["default"]}, FIELD.format("security_groups.0")),
    ({"tags": ["a,b"]}, FIELD.format("tags.0")), ({"tags": ["t"] * 51}, FIELD.format("tags")),
    ({"tags": [""]}, FIELD.format("tags.0")), ({"description": LONG}, FIELD.format("description")),
    ({"accessIPv4": "1.2.3"}, FIELD.format("accessIPv4")), ({"accessIPv6": "1.2.3.4"}, FIELD.format("accessIPv6")),
    ({"hostname": "a b"}, FIELD.format("hostname")), ({"OS-DCF:diskConfig": "auto"}, FIELD.format("diskConfig")),
    ({"block_device_mapping_v2": [{"source_type": "volume", "uuid": NIL, "boot_index": 2}]}, "Boot sequence"),
    ({"block_device_mapping_v2": [{"source_type": "volume", "uuid": NIL}]}, f"Volume {NIL} could not be found."),
    ({"imageRef": "", "block_device_mapping_v2": [{"source_type": "volume", "uuid": NIL, "boot_index": 0}]},
     f"Volume {NIL} could not be found."),
    ({"block_device_mapping_v2": [{"source_type": "blank", "destination_type": "local", "volume_size": 5,
                                   "boot_index": -1}]}, "Ephemeral disks requested are larger"),
    ({"block_device_mapping_v2": [{"boot_index": 0}]}, "source_type is missing"),
    ({"trusted_image_certificates": []}, FIELD.format("trusted_image_certificates")),
    ({"colour": "red"}, UNEXPECTED.format("colour")),
])
def test_invalid_create_server_request_names_the_field(suite, admin, shelf, nothing_left, values, text):
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
def test_create_server_beyond_quota_limits_is_refused(admin, shelf, nothing_left, values, text):
    server = {"name": "s", "flavorRef": shelf["flavor"], "imageRef": shelf["image"], **values}
    refused(admin, "POST", "/servers", 403, text, body={"server": server}, version="2.1")


def test_metadata_items_quota_of_the_project_is_enforced(suite, admin, shelf):
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
def test_invalid_scheduler_hints_are_refused(admin, shelf, nothing_left, hints, text):
    server = {"name": "s", "flavorRef": shelf["flavor"], "imageRef": shelf["image"], "networks": "none"}
    refused(admin, "POST", "/servers", 400, text, body={"server": server, "os:scheduler_hints": hints})


@pytest.mark.parametrize("hints", [{"query": "["}, {"query": '["=", "$nothing", 1]'}, {"query": "{}"},
                                   {"query": '["in"]'}, {"query": {"a": 1}}, {"colour": {"deep": [1, None]}},
                                   {"same_host": [NIL]}, {"different_host": NIL}])
def test_unusual_scheduler_hints_end_in_active_or_error(admin, shelf, hints):
    try:
        uuid = admin.boot(shelf["flavor"], shelf["image"], top={"os:scheduler_hints": hints})
    except Failed as failed:
        if failed.code != 400:
            raise
        return
    server = admin.wait(uuid, "ACTIVE", "ERROR")
    assert server["status"] == "ACTIVE" or "No valid host was found." in server["fault"]["message"]


@pytest.mark.parametrize(("method", "path", "body", "code", "text"), [
    ("PUT", "", {"server": {"name": ""}}, 400, FIELD.format("name")),
    ("PUT", "", {"server": {"name": LONG}}, 400, FIELD.format("name")),
    ("PUT", "", {"server": {"vm_state": "active"}}, 400, UNEXPECTED.format("vm_state")),
    ("PUT", "", {}, 400, "'server' is a required property"),
    ("PUT", "", {"server": {"accessIPv4": "::1"}}, 400, FIELD.format("accessIPv4")),
    ("POST", "/metadata", {"metadata": {"a": None}}, 400, FIELD.format("a")),
    ("POST", "/metadata", {"metadata": {"x" * 256: "a"}}, 400, "metadata"),
    ("POST", "/metadata", {}, 400, "'metadata' is a required property"),
    ("POST", "/metadata", {"metadata": {f"k{number}": "v" for number in range(129)}}, 403, "exceeds 128"),
    ("PUT", "/metadata/a", {"meta": {"b": "c"}}, 400, "Request body and URI mismatch"),
    ("PUT", "/metadata/a", {"meta": {}}, 400, "meta"),
    ("GET", "/metadata/nope", None, 404, "Metadata item was not found"),
    ("DELETE", "/metadata/%F0%9F%98%80", None, 404, "Metadata item was not found"),
    ("PUT", "/tags", {"tags": ["x" * 61]}, 400, FIELD.format("tags.0")),
    ("PUT", "/tags", {"tags": "a"}, 400, FIELD.format("tags")),
    ("PUT", "/tags/" + "x" * 61, None, 400, "It must be 1 to 60 characters long"),
    ("PUT", "/tags/a,b", None, 400, "a,b"),
    ("GET", "/tags/nope", None, 404, "has no tag 'nope'"),
    ("DELETE", "/tags/nope", None, 404, "has no tag 'nope'"),
    ("GET", "/ips/nope", None, 404, ""),
])
def test_invalid_server_updates_are_refused_without_changes(suite, admin, server, method, path, body, code, text):
    before = admin.server(server)
    with no_rows(suite):
        if path.endswith("tags/nope") and method == "GET":
            assert raw(admin, method, f"/servers/{server}{path}").status_code == code
        else:
            refused(admin, method, f"/servers/{server}{path}", code, text, body=body)
    assert admin.server(server) == before


def test_unicode_in_server_attributes_is_preserved(admin, shelf):
    name = "Ünï ☃ 日本"
    uuid = admin.boot(shelf["flavor"], shelf["image"], name=name, description="Ж", metadata={"k": "😀"}, tags=["ü"])
    admin.wait(uuid, "ACTIVE")
    shown = admin.server(uuid)
    assert (shown["name"], shown["description"], shown["metadata"], shown["tags"]) == (name, "Ж", {"k": "😀"}, ["ü"])
    assert [found["id"] for found in admin.get("/servers", name="☃")["servers"]] == [uuid]
    assert [found["id"] for found in admin.get("/servers", tags="ü")["servers"]] == [uuid]
    admin.call("GET", f"/servers/{uuid}/tags/ü", expect=204)
    assert shown["OS-EXT-SRV-ATTR:hostname"].isascii()
