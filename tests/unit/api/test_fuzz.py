"""Fuzz tests of requests: every response is a success or a 4xx error, never a 5xx."""

import json
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nova import image
from nova.api import routes
from nova.api.legacy import routes as legacy_routes
from tests.unit.api.conftest import Client
from tests.unit.api.servers.test_servers import IMAGE, MINE, NET, Conductor, Images

SETTINGS = settings(max_examples=150, deadline=None, derandomize=True,
                    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])

_LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=20),
    st.sampled_from(["", "0", "-1", "1", "9" * 30, "1e5", 1e300, 2**63, -2**70, 1.0, NET, "true", "\0", "a\n", ":::",
                     "2026-01-01", "10.0.0.1", "::1", "x" * 300, "é", "(", "%s", "{}", "../.."]))
VALUES = st.recursive(_LEAVES, lambda inner: st.one_of(
    st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)), max_leaves=6)
VERSIONS = st.sampled_from(["2.1", "2.19", "2.32", "2.37", "2.52", "2.67", "2.74", "2.94", "2.104"])

FULL = {
    "server": {
        "name": "n", "flavorRef": "1", "imageRef": IMAGE, "adminPass": "p", "metadata": {"a": "b"},
        "networks": [{"uuid": NET, "fixed_ip": "10.0.0.2"}], "OS-DCF:diskConfig": "AUTO", "accessIPv4": "1.1.1.1",
        "accessIPv6": "::1", "availability_zone": "z:h", "config_drive": True, "key_name": "k", "min_count": 1,
        "max_count": 1, "return_reservation_id": False, "security_groups": [{"name": "g"}], "user_data": "YQ==",
        "block_device_mapping_v2": [{"source_type": "blank", "boot_index": -1, "volume_size": 1}],
    },
    "os:scheduler_hints": {"group": NET},
}


def _places(value, path=()):
    yield path
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _places(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _places(item, (*path, index))


def _with(value, path, new):
    if not path:
        return new
    copied = dict(value) if isinstance(value, dict) else list(value)
    copied[path[0]] = _with(value[path[0]], path[1:], new)
    return copied


def _encoded(value):
    return json.dumps(value).encode()


@pytest.fixture
def cloud(monkeypatch):
    api = Client()
    api.headers["X-Project-Id"] = MINE
    api.behind.servers = Conductor()
    store = Images()
    monkeypatch.setattr(image, "store", lambda: store)
    return api


@SETTINGS
@given(place=st.sampled_from(list(_places(FULL))), value=VALUES, version=VERSIONS)
def test_create_server_with_a_random_value_never_returns_5xx(cloud, place, value, version):
    answer = cloud("POST", "/v2.1/servers", raw=_encoded(_with(FULL, place, value)), version=version)
    assert answer.status == 202 or 400 <= answer.status < 500, answer.text


@SETTINGS
@given(value=VALUES, legacy=st.booleans())
def test_random_json_bodies_never_return_5xx(cloud, value, legacy):
    for path in ("/servers", "/servers/uuid/action", "/servers/uuid/metadata", "/servers/uuid/tags"):
        method = "PUT" if path.endswith("tags") else "POST"
        answer = cloud(method, ("/v2" if legacy else "/v2.1") + path, raw=_encoded(value), version="2.104")
        assert answer.status < 500, answer.text


@SETTINGS
@given(raw=st.binary(max_size=60))
def test_random_bytes_as_a_body_never_return_5xx(cloud, raw):
    assert cloud("POST", "/v2.1/servers", raw=raw).status < 500


_ACTIONS = [route for route in routes.ROUTES
            if route.action and route.path.startswith("/servers")
            and route.handler is not legacy_routes.no_longer_available]


@SETTINGS
@given(route=st.sampled_from(_ACTIONS), value=VALUES, version=VERSIONS)
def test_random_action_arguments_never_return_5xx(cloud, route, value, version):
    answer = cloud("POST", "/v2.1/servers/uuid/action", raw=_encoded({route.action: value}), version=version)
    assert answer.status < 500, answer.text


_NAMES = st.sampled_from(["limit", "marker", "sort_key", "sort_dir", "status", "changes-since", "changes-before",
                          "tags", "all_tenants", "deleted", "locked", "name", "ip", "launch_index", "_x", "junk",
                          "flavor"])


@SETTINGS
@given(pairs=st.lists(st.tuples(_NAMES, st.text(max_size=12)), max_size=4), version=VERSIONS)
def test_random_query_parameters_never_return_5xx(cloud, pairs, version):
    query = "&".join(f"{name}={quote(value)}" for name, value in pairs)
    assert cloud("GET", f"/v2.1/servers/detail?{query}", version=version).status < 500


@SETTINGS
@given(query=st.text(alphabet="%&=;+abc0129ff", max_size=20))
def test_random_query_strings_never_return_5xx(cloud, query):
    assert cloud("GET", f"/v2.1/servers?{query}").status < 500


@SETTINGS
@given(method=st.sampled_from(["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS"]),
       segments=st.lists(st.one_of(st.text(max_size=8), st.sampled_from(
           ["servers", "detail", "uuid", "metadata", "tags", "action", "ips", "0123", "extensions", "\0", ".."])),
           max_size=5))
def test_random_paths_never_return_5xx(cloud, method, segments):
    assert cloud(method, "/v2.1/" + "/".join(segments).replace("?", ""), version="2.104").status < 500


@SETTINGS
@given(header=st.sampled_from(["OpenStack-API-Version", "X-OpenStack-Nova-API-Version", "Content-Type", "Accept",
                               "X-OpenStack-Request-ID"]), value=st.text(max_size=20))
def test_random_headers_never_return_5xx(cloud, header, value):
    assert cloud("GET", "/v2.1/servers", headers={header: value.encode().decode("latin-1")}).status < 500
