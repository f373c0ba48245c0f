"""Numbers too large for columns and messages, and lists too long for statements: 400, the database is unchanged."""

import json
import re

import pytest

from nova.api import microversion, routes
from tests.functional.refusals import (  # noqa: F401 (fixtures)
    FIELD,
    HUGE,
    NIL,
    no_rows,
    nothing_left_fixture,
    raw,
    refused,
    server_fixture,
    shelf_fixture,
)

# Numbers around the limits of 32 and 64 bits, and floats.
NUMBERS = [2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 1, 2**64, -2**31 - 1, -2**63, -2**63 - 1, 10**300, -10**300, 1e19,
           1e300]


@pytest.mark.parametrize("number", [2**64, 2**70, -2**63 - 1, 10**300])
@pytest.mark.parametrize("wrap", [lambda number: {"query": {"a": number}}, lambda number: {"colour": number},
                                  lambda number: {"colour": [{"deep": [number]}]}])
def test_scheduler_hint_with_a_number_over_64_bits_is_refused(admin, shelf, nothing_left, number, wrap):
    server = {"name": "s", "flavorRef": shelf["flavor"], "imageRef": shelf["image"], "networks": "none"}
    refused(admin, "POST", "/servers", 400, "The number exceeds 64 bits",
            body={"server": server, "os:scheduler_hints": wrap(number)})


@pytest.mark.parametrize("depth", [40, 200, *range(800, 960, 15)])
def test_too_deeply_nested_scheduler_hint_is_refused(admin, shelf, nothing_left, depth):
    server = {"name": "s", "flavorRef": shelf["flavor"], "imageRef": shelf["image"], "networks": "none"}
    # Built as text, because the JSON encoder cannot write such deep nesting.
    body = json.dumps({"server": server, "os:scheduler_hints": {"colour": "deep"}}).replace(
        '"deep"', "[" * depth + "1" + "]" * depth)
    answer = admin.session.post(f"{admin.url}/v2.1/servers", data=body, timeout=60, headers={
        "Content-Type": "application/json", "OpenStack-API-Version": "compute 2.96"})
    assert answer.status_code == 400
    assert answer.json()["badRequest"]["message"].startswith(
        "Invalid input for field/attribute colour. The value is nested too deeply.")


def _bodies(number, shelf, flavor, server):
    """Return every place of a request that accepts numbers: method, path, body, version."""
    new = {"name": "s", "flavorRef": shelf["flavor"], "imageRef": shelf["image"], "networks": "none"}
    disk = {"source_type": "blank", "destination_type": "local", "boot_index": -1, "volume_size": 1}
    for name in ("boot_index", "volume_size"):
        yield "POST", "/servers", {"server": {**new, "block_device_mapping_v2": [{**disk, name: number}]}}, "2.96"
    for name in ("min_count", "max_count", "flavorRef"):
        yield "POST", "/servers", {"server": {**new, name: number}}, "2.96"
    yield "POST", "/servers", {"server": new, "os:scheduler_hints": {"colour": {"a": number}, "group": NIL}}, "2.96"
    for action in ({"resize": {"flavorRef": number}}, {"os-getConsoleOutput": {"length": number}},
                   {"createBackup": {"name": "b", "backup_type": "daily", "rotation": number}}):
        yield "POST", f"/servers/{server}/action", action, "2.96"
    yield "POST", f"/servers/{server}/action", {"addFixedIp": {"networkId": number}}, "2.1"
    size = {"name": "f", "ram": 1, "vcpus": 1, "disk": 1}
    for name in ("id", "ram", "vcpus", "disk", "swap", "OS-FLV-EXT-DATA:ephemeral", "rxtx_factor"):
        yield "POST", "/flavors", {"flavor": {**size, "id": str(number)[:200], name: number}}, "2.96"
    yield "POST", f"/flavors/{flavor}/os-extra_specs", {"extra_specs": {"a": number}}, "2.80"
    yield "POST", f"/flavors/{flavor}/os-extra_specs", {"extra_specs": {"hw:numa_nodes": number}}, "2.96"
    yield "PUT", f"/flavors/{flavor}/os-extra_specs/a", {"a": number}, "2.80"
    yield "POST", "/os-volumes", {"volume": {"size": number}}, "2.1"
    yield "POST", "/os-server-groups", {"server_group": {
        "name": "g", "policy": "anti-affinity", "rules": {"max_server_per_host": number}}}, "2.96"
    rule = {"parent_group_id": NIL, "ip_protocol": "tcp", "from_port": 1, "to_port": 2}
    for name in ("from_port", "to_port"):
        yield "POST", "/os-security-group-rules", {"security_group_rule": {**rule, name: number}}, "2.1"
    for name in ("instances", "cores", "ram", "key_pairs"):
        yield "PUT", "/os-quota-sets/p", {"quota_set": {name: number, "force": True}}, "2.96"
    yield "PUT", "/os-quota-class-sets/odd", {"quota_class_set": {"cores": number}}, "2.96"
    yield "PUT", f"/servers/{server}", {"server": {"name": number}}, "2.96"
    yield "POST", "/os-server-external-events", {"events": [
        {"name": "network-changed", "server_uuid": server, "tag": number}]}, "2.96"


@pytest.mark.parametrize("number", NUMBERS)
def test_numbers_in_bodies_cause_no_server_error(suite, admin, shelf, server, number):
    flavor = admin.flavor()  # no server uses it
    for sent in (number, str(number)):
        for method, path, body, version in _bodies(sent, shelf, flavor, server):
            answer = raw(admin, method, path, json.dumps(body), version=version)
            assert answer.status_code < 500 or answer.status_code == 501, (path, body, answer.text)
            _take_back(admin, path, answer)


def _take_back(admin, path, answer):
    """Undo the effect of a valid number."""
    if answer.status_code >= 300 or path not in ("/servers", "/flavors", "/os-volumes", "/os-server-groups"):
        return
    made = next(iter(answer.json().values()))
    admin.call("DELETE", f"{path}/{made['id']}", version="2.1")


_LISTS = {
    "/servers": ("limit", "launch_index", "power_state", "progress"), "/flavors": ("limit", "minRam", "minDisk"),
    "/servers/detail": ("limit",), "/os-keypairs": ("limit",), "/os-hypervisors": ("limit", "marker"),
    "/os-server-groups": ("limit", "offset"), "/os-migrations": ("limit",), "/os-simple-tenant-usage": ("limit",)}
_OLD_LISTS = {"/os-security-groups": ("limit", "offset"), "/os-volumes": ("limit", "offset"),
              "/images": ("limit", "offset", "page_size", "minDisk", "minRam", "changes-since", "marker", "server")}


@pytest.mark.parametrize("number", [*NUMBERS, "9" * 5000])
def test_numbers_in_queries_cause_no_server_error(admin, server, number):
    for version, lists in (("2.96", _LISTS), ("2.1", _OLD_LISTS)):
        for path, names in lists.items():
            for name in names:
                answer = raw(admin, "GET", f"{path}?{name}={number}", version=version)
                assert answer.status_code < 500, (path, name, answer.text)
    for path in ("/os-aggregates/{}", "/os-hypervisors/{}", "/os-services/{}", f"/servers/{server}/migrations/{{}}",
                 "/flavors/{}", f"/servers/{server}/tags/{{}}"):
        answer = raw(admin, "GET", path.format(number))
        assert answer.status_code < 500, (path, answer.text)


@pytest.mark.parametrize("number", ["9" * 19, "9" * 5000, "\u0663", "-1"])
def test_numbers_in_paths_cause_no_server_error(admin, server, number):
    """Send numbers in every path parameter. Python refuses to parse an integer of more than 4300 digits."""
    statuses = set()
    for route in routes.table():
        if "{" in route.path and "baremetal" not in route.path:  # always 501
            for named in ({}, {"server_id": server}):
                path = re.sub(r"{(\w+)}", lambda found: named.get(found[1], number), route.path)  # noqa: B023
                answer = admin.session.request(
                    route.method, f"{admin.url}/v2.1{path}", json={route.action or "x": {}}, timeout=60,
                    headers={"X-OpenStack-Nova-API-Version": f"2.{max(route.since, microversion.MIN)}"})
                statuses.add((answer.status_code, route.method, route.path))
    assert len(statuses) > 100
    assert not [each for each in statuses if each[0] >= 500]


@pytest.mark.parametrize("name", ["tags", "tags-any", "not-tags", "not-tags-any"])
def test_too_many_tags_in_a_filter_are_refused(admin, server, name):
    refused(admin, "GET", "/servers", 400, f"Invalid input for query parameters {name}.",
            **{name: ",".join(f"t{number}" for number in range(1001))})
    refused(admin, "GET", "/servers", 400, f"Invalid input for query parameters {name}.",
            **{name: [f"a{number},b{number}" for number in range(60)]})
    admin.get("/servers", **{name: ",".join(f"t{number}" for number in range(100)) + ",t1" * 100})


@pytest.mark.parametrize(("path", "pair", "version"), [
    ("/servers", "status=REBUILD", "2.96"), ("/servers", "name=a", "2.96"), ("/servers", "vm_state=a", "2.96"),
    ("/servers", "uuid=a", "2.96"), ("/images", "status=ACTIVE", "2.1"), ("/images", "property-a=b", "2.1"),
    ("/flavors", "name=a", "2.102"), ("/os-migrations", "status=a", "2.1"), ("/os-services", "host=a", "2.1")])
def test_many_query_values_cause_no_server_error(admin, path, pair, version):
    answer = raw(admin, "GET", f"{path}?{'&'.join([pair] * 1900)}", version=version)
    assert answer.status_code in (200, 400), answer.text
