"""Every operation of the API reference over HTTP, at its first and last microversion and outside of them.

Without a conductor, a request that reaches its handler returns 503 or a response that needs no conductor.
"""

import functools
import json
import re

import pytest

from nova import exception
from nova.api import errors, microversion
from nova.api.clients import INTERFACES
from nova.api.legacy import routes as legacy_routes
from tests.paths import DATA
from tools import route_table

NIL = "00000000-0000-0000-0000-000000000000"
_DATA = json.loads((DATA / "api_reference.json").read_text())
_LINES = {(line["method"], line["path"], line.get("action")): line for line in _DATA["operations"]}
# Constraints that the schemas of the reference cannot express.
_FITTING = {"networks": "none", "cidr": "10.0.0.0/24", "data": "Li4u", "zone": "zone", "network_id": NIL,
            "name": "name", "meta": {NIL: "value"}}


class Nobody:
    """A fake service that is never available."""

    def __getattr__(self, name):
        def call(*_args, **_kwargs):
            raise exception.ServiceUnavailable()
        return call


@pytest.fixture(autouse=True)
def nobody(api, configuration):
    for name in INTERFACES:
        setattr(api.behind, name, Nobody())
    configuration.set_override("driver", "directory", group="image")


def _cases(state):
    return [pytest.param(one, id=one.name) for one in route_table.operations()
            if route_table.state_of(one) == state and one.path != "/"]


SERVED, AGAIN = _cases(route_table.SERVED), _cases(route_table.AGAIN)
GONE = _cases(route_table.GONE) + AGAIN
BODIES = [case for case in SERVED if _LINES[case.values[0].method, case.values[0].path, case.values[0].action]
          .get("request")]


def _expand(schema):
    if isinstance(schema, dict):
        return _expand(_DATA["schemas"][schema["$"]]) if set(schema) == {"$"} else {
            key: _expand(value) for key, value in schema.items()}
    return [_expand(item) for item in schema] if isinstance(schema, list) else schema


@functools.cache
def _schema(operation, version):
    """Return the schema of the body in the reference."""
    line = _LINES[operation.method, operation.path, operation.action]
    for low, high, schema in line.get("request", ()):
        if int((low or "2.0")[2:]) <= version <= int((high or microversion.text(microversion.MAX))[2:]):
            return _expand(schema)
    return None


def _smallest(schema, name=""):
    """Return a valid value with the required properties only."""
    if name in _FITTING and "enum" not in schema:
        return _FITTING[name]
    for keyword in ("oneOf", "anyOf"):
        if keyword in schema:
            rest = {key: value for key, value in schema.items() if key != keyword}
            return _smallest({**rest, **schema[keyword][0]}, name)
    if "enum" in schema:
        return schema["enum"][0]
    kinds = schema.get("type", "object")
    kind = kinds if isinstance(kinds, str) else kinds[0]
    if kind == "object":
        needed = schema.get("required") or list(schema.get("properties", ()))[:schema.get("minProperties", 0)]
        return {key: _smallest(schema["properties"][key], key) for key in needed}
    if kind == "array":
        items = schema.get("prefixItems") or [schema["items"]]
        return [_smallest(items[0])] * schema.get("minItems", 0)
    if kind == "string":
        return {"uuid": NIL, "ipv4": "10.0.0.9", "date-time": "2026-01-01T00:00:00Z", "uri": "http://example"}.get(
            schema.get("format"), _text(schema))
    return {"integer": schema.get("minimum", 1), "number": 1, "boolean": True, "null": None}[kind]


def _text(schema):
    """Return a valid string, for device patterns a device name."""
    return "/dev/vdb" if "/dev" in schema.get("pattern", "") else "1" * max(1, schema.get("minLength", 1))


def _body(operation, version):
    schema = _schema(operation, version)
    if schema is not None:
        body = _smallest(schema)
        return {operation.action: None} if operation.action and operation.action not in body else body
    return {operation.action: None} if operation.action else None


def _ask(api, operation, version, body=None):
    # Before 2.53, an action stands in place of the service id.
    known = {"/versions/{id}": "v2.1", "/extensions/{id}": "os-keypairs",
             "/os-services/{id}": "enable" if version < 53 and operation.method == "PUT" else NIL}
    path = re.sub(r"{\w+}", known.get(operation.path, NIL), operation.path)
    return api(operation.method, f"/v2.1{path}", body, version=f"2.{version}", roles="admin,member,reader,service")


def _is_reached(answer):
    """Return True if neither the router nor a schema refused the request."""
    if answer.status in (404, 410):
        return answer.error[2] not in (errors.MISSING_RESOURCE, errors.NoLongerAvailable().message)
    return answer.status != 400 or not any(
        text in answer.text for text in ("There is no such action", "Invalid input for", "required property",
                                         "Additional properties", "Malformed", "No body"))


@pytest.mark.parametrize("operation", SERVED)
def test_operation_is_served_at_its_first_and_last_microversion(api, operation):
    for version in (operation.since, operation.until):
        answer = _ask(api, operation, version, _body(operation, version))
        assert _is_reached(answer), (version, answer.status, answer.text)


@pytest.mark.parametrize("operation", SERVED)
def test_operation_returns_404_outside_its_microversions(api, operation):
    for version in (operation.since - 1, operation.until + 1):
        if microversion.MIN <= version <= microversion.MAX:
            nearest = min(max(version, operation.since), operation.until)
            answer = _ask(api, operation, version, _body(operation, nearest))
            assert answer.error == ("itemNotFound", 404, errors.MISSING_RESOURCE), version


@pytest.mark.parametrize("operation", BODIES)
def test_bodies_that_the_api_reference_refuses_return_400(api, operation):
    for version in (operation.since, operation.until):
        schema = _schema(operation, version)
        if schema is None:
            continue
        for wrong in _wrong(schema, _body(operation, version), operation.action):
            answer = _ask(api, operation, version, wrong)
            assert answer.status == 400, (version, wrong, answer.status, answer.text)


def _wrong(schema, fitting, action):
    """Yield bodies that lack a required key or have an unknown key, on the first two levels."""
    if schema.get("additionalProperties") is False and action is None:
        yield {**fitting, "unknown": 1}
    for key in schema.get("required", ()):
        if action is None:
            yield {name: value for name, value in fitting.items() if name != key}
        inner = schema["properties"].get(key, {})
        if inner.get("type") != "object":
            continue
        if inner.get("additionalProperties") is False and not inner.get("patternProperties"):
            yield {**fitting, key: {**fitting[key], "unknown": 1}}
        for needed in inner.get("required", ()):
            yield {**fitting, key: {name: value for name, value in fitting[key].items() if name != needed}}


@pytest.mark.parametrize("operation", GONE)
def test_operations_removed_upstream_return_410_in_every_microversion(api, operation):
    for version in range(microversion.MIN, microversion.MAX + 1):
        answer = _ask(api, operation, version, _body(operation, version))
        assert answer.error[:2] == ("computeFault", 410), version


def test_removed_operations_contain_no_operation_served_upstream():
    known = {one.shape for one in route_table.operations() if not one.gone}
    assert not [route for route in legacy_routes.REMOVED if (route.method, route.path, None) in known]
