"""Random requests that nearly match their JSON schemas, to every route of the API: no response is a 5xx."""

import contextlib
import json
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nova.api import routes
from nova.api.legacy import routes as legacy_routes
from tests.functional.client import Client, Failed
from tests.functional.refusals import KEY, NIL, SHARED

_LIMITS = {"max_examples": 600, "deadline": None, "derandomize": True,
           "suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]}

_JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=12),
    st.sampled_from(["", "-1", "9" * 30, 2**63, -2**70, 1e300, "a\n", "é", "😀", "(", "%s", "{}", "../..", "x" * 300,
                     "10.0.0.0/8", "::1", "2026-01-01", [], {}, [None], {"a": {"b": []}}]))
_FORMATS = {
    "uuid": st.sampled_from([NIL, "{server}", "{image}", "{group}", "{security_group}"]),
    "name": st.sampled_from(["a", "fuzz", "ü n", "{flavor}"]), "az_name": st.sampled_from(["nova", "fuzz"]),
    "ipv4": st.just("10.0.0.9"), "ipv6": st.just("fe80::1"), "base64": st.just("YQ=="),
    "date-time": st.sampled_from(["2026-01-01T00:00:00Z", "0001-01-01", "9999-12-31T23:59:59Z"]),
    "regex": st.sampled_from([".", "^a$", "[", "a|b"]),
}
_WORDS = st.sampled_from(["a", "fuzz", "1", "nova", "{flavor}", "{image}", "{server}", "tcp", "10.0.0.0/24", KEY])


def fitting(schema):
    """Return a strategy for values of a JSON schema, occasionally with an invalid part."""
    good = _fitting(schema)
    return st.sampled_from(range(25)).flatmap(lambda number: good if number else _JUNK)


def _fitting(schema):
    for keyword in ("oneOf", "anyOf", "allOf"):
        if keyword in schema:
            return st.one_of([_fitting(part) for part in schema[keyword]])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    kinds = schema.get("type", "string")
    return st.one_of([_of_kind(kind, schema) for kind in ([kinds] if isinstance(kinds, str) else kinds)])


def _of_kind(kind, schema):
    if kind == "object":
        return _object(schema)
    if kind == "array":
        return st.lists(fitting(schema.get("items") or schema.get("prefixItems", [{}])[0]), max_size=3)
    if kind in ("integer", "number"):
        least, most = schema.get("minimum", 0), schema.get("maximum", 2**40)
        return st.sampled_from([least, least + 1, most]) if kind == "integer" else st.floats(0, 1e6)
    if kind == "string":
        return _FORMATS.get(schema.get("format"), st.one_of(_WORDS, st.text(max_size=8)))
    return st.booleans() if kind == "boolean" else st.none()


def _object(schema):
    properties, required = schema.get("properties", {}), schema.get("required", ())
    patterns = list(schema.get("patternProperties", {}).values())
    if patterns and not properties:
        return st.dictionaries(_WORDS, fitting(patterns[0]), max_size=3)
    return st.fixed_dictionaries(
        {name: fitting(properties[name]) for name in required if name in properties},
        optional={name: fitting(value) for name, value in properties.items() if name not in required})


_ROUTES = [route for route in routes.ROUTES if route.action != "forceDelete"
           and (route.method, route.path) not in SHARED and route.handler is not legacy_routes.no_longer_available]


@st.composite
def requests(draw):
    """Return a request: method, path (with placeholders for existing resources), query, body and microversion."""
    route = draw(st.sampled_from(_ROUTES))
    version = draw(st.sampled_from(sorted({route.since, route.until, draw(st.integers(route.since, route.until))})))
    path = "/".join(_segment(draw, segment, route) for segment in route.path.split("/"))
    pairs = {}
    if route.query is not None and draw(st.booleans()):
        asked = draw(_object({"properties": {name: value.get("items", {}) for name, value in route.query.schema(
            version)["properties"].items()}}))
        pairs = {name: str(value) for name, value in asked.items()}
    declared = route.spec.body
    body = draw(fitting(declared.schema(version))) if declared is not None else None
    return route.method, path, pairs, body, f"2.{version}"


_IDS = st.sampled_from([NIL, "1", "0", "-1", "a", "fuzz", "9" * 25, "é", "%", "..", "x" * 260])
_KNOWN = {"flavors": "{flavor}", "servers": "{server}", "os-server-groups": "{group}",
          "os-security-groups": "{security_group}", "os-aggregates": "{aggregate}", "os-keypairs": "fuzz"}


def _segment(draw, segment, route):
    if not segment.startswith("{"):
        return segment
    # A deleted resource is missing for later requests.
    usual = route.method != "DELETE" and draw(st.sampled_from(range(4))) > 0
    return _KNOWN.get(route.path.split("/")[1], "a") if usual else draw(_IDS)


@pytest.fixture(scope="module")
def fuzzer(suite):
    """Return the client of an administrator in a separate project, and remove the created resources afterwards."""
    client = Client(suite.url, project="fuzz", user="fuzz")
    before = {flavor["id"] for flavor in client.get("/flavors", is_public="None")["flavors"]}
    yield client
    old = Client(suite.url, project="fuzz", user="fuzz", version="2.1")
    _remove(client, "/flavors", [found["id"] for found in client.get("/flavors", is_public="None")["flavors"]
                                 if found["id"] not in before])
    _remove(client, "/os-aggregates", [found["id"] for found in client.get("/os-aggregates")["aggregates"]])
    _remove(client, "/os-keypairs", [found["keypair"]["name"] for found in client.get("/os-keypairs")["keypairs"]])
    _remove(client, "/os-server-groups", [found["id"] for found in client.get("/os-server-groups")["server_groups"]])
    _remove(old, "/os-security-groups", [
        found["id"] for found in old.get("/os-security-groups")["security_groups"] if found["name"] != "default"])
    _remove(client, "/os-quota-sets", ["fuzz", "p", "a", "1"])


def _remove(client, path, idents):
    for ident in idents:
        with contextlib.suppress(Failed):
            client.delete(f"{path}/{quote(str(ident), safe='')}")


@pytest.fixture
def places(fuzzer, image_id):
    """Return the ids of existing resources by the placeholders of requests."""
    flavor = fuzzer.flavor()
    group = fuzzer.post("/os-server-groups", {"server_group": {"name": "fuzz", "policy": "soft-affinity"}})
    wall = fuzzer.post("/os-security-groups", {"security_group": {"name": flavor[:8], "description": ""}},
                       version="2.1")
    aggregate = fuzzer.post("/os-aggregates", {"aggregate": {"name": flavor}})["aggregate"]
    server = fuzzer.boot(flavor, image_id)
    fuzzer.wait(server, "ACTIVE")
    return {"flavor": flavor, "server": server, "group": group["server_group"]["id"],
            "security_group": wall["security_group"]["id"], "aggregate": str(aggregate["id"])}


@settings(**_LIMITS)
@given(request_=requests())
def test_random_requests_cause_no_server_error(fuzzer, places, image_id, request_):
    method, path, pairs, body, version = request_

    def put_in(text):
        for name, value in {**places, "image": image_id if not path.startswith("/images") else NIL}.items():
            text = text.replace("{" + name + "}", value)
        return text

    data = None if body is None else put_in(json.dumps(body)).encode()
    url = f"{fuzzer.url}/v2.1{quote(put_in(path))}"
    answer = fuzzer.session.request(method, url, data=data, params=pairs or None, timeout=60, headers={
        "OpenStack-API-Version": f"compute {version}", "Content-Type": "application/json"})
    assert answer.status_code < 500 or answer.status_code == 501, f"{method} {url} {version} {data}: {answer.text}"
