"""Comparison of every implemented operation with the reference, in every microversion.

``tests/data/api_reference.json`` lists the operations of the Compute API with their JSON schemas per range of
microversions; ``{"$": n}`` stands for entry n of its ``schemas``.
"""

import json
from collections import defaultdict

import pytest

from nova.api import microversion, routes
from nova.api.legacy import routes as legacy_routes
from nova.api.validation import fields
from tests.paths import DATA

DATA = json.loads((DATA / "api_reference.json").read_text())
# Bounds that Nova adds (see test_bounds.py) where the reference has no bound.
_OURS = {"maxItems": (100, 255, 1000)}
# Errors of the reference that do not apply: all drivers implement these operations, and a 500 is a bug.
_NEVER = frozenset({500, 501})
# The reference has the default status; the upstream action returns 202, which the schemas of tempest require.
_SAYS_202 = ("addFloatingIp", "removeFloatingIp")
_UNORDERED = frozenset({"enum", "required", "oneOf", "anyOf", "allOf"})


def _minor(version, default):
    return default if version is None else int(version.split(".")[1])


def _expand(schema):
    if isinstance(schema, dict):
        if set(schema) == {"$"}:
            return _expand(DATA["schemas"][schema["$"]])
        return {key: _expand(value) for key, value in schema.items()}
    if isinstance(schema, list):
        return [_expand(item) for item in schema]
    return schema


def _key(value):
    return json.dumps(value, sort_keys=True)


def _normal(schema):
    """Return a normal form, which is equal for equivalent schemas."""
    if not isinstance(schema, dict):
        return schema
    made = {}
    for key, value in schema.items():
        if key in _OURS and value in _OURS[key]:
            continue
        if key in ("properties", "patternProperties"):
            made[key] = {name: _normal(item) for name, item in value.items()}
        elif key == "type":
            made[key] = sorted(value) if isinstance(value, list) and len(value) > 1 else _one(value)
        elif key in _UNORDERED:
            made[key] = sorted((_normal(item) for item in value), key=_key)
        else:
            made[key] = _normal(value)
    if made.get("additionalProperties") is True:
        del made["additionalProperties"]
    for key in ("properties", "minLength"):
        if made.get(key) in ({}, 0):
            del made[key]
    return made


def _one(value):
    return value[0] if isinstance(value, list) else value


def _shape(path):
    """Return the path without the names of its parameters."""
    return "/".join("{}" if part.startswith("{") else part for part in path.split("/"))


def _reference():
    found = defaultdict(list)
    for operation in DATA["operations"]:
        found[operation["method"], _shape(operation["path"]), operation.get("action")].append(operation)
    return found


REFERENCE = _reference()
ROUTES = [pytest.param(route, id=f"{route.method} {route.path} {route.action or ''}".strip())
          for route in routes.ROUTES if route.handler is not legacy_routes.no_longer_available]


def _operation(route):
    found = REFERENCE[route.method, _shape(route.path), route.action]
    return found[0] if found else None


def _schema_at(ranges, version):
    for low, high, schema in ranges or []:
        if _minor(low, 0) <= version <= _minor(high, microversion.MAX):
            return _normal(_expand(schema))
    return None


@pytest.mark.parametrize("route", ROUTES)
def test_request_schemas_equal_the_api_reference(route):
    operation = _operation(route)
    if operation is None or operation.get("gone"):
        pytest.skip("not an operation with a schema")
    for version in range(max(route.since, 1) if route.since > 1 else 0, route.until + 1):
        expected = _schema_at(operation.get("request"), version)
        if expected is None:
            continue
        declared = route.spec.body
        assert declared is not None or not expected, "no body declared"
        if declared is not None:
            assert _normal(declared.schema(version)) == expected, f"2.{version}"


@pytest.mark.parametrize("route", ROUTES)
def test_query_schemas_equal_the_api_reference(route):
    operation = _operation(route)
    if operation is None or operation.get("gone"):
        pytest.skip("not an operation with a schema")
    for version in range(route.since, route.until + 1):
        expected = _schema_at(operation.get("query"), version)
        if expected is None:
            continue
        declared = route.query or fields.Query(strict=None)
        assert _normal(declared.schema(version)) == _normal({"type": "object", **expected}), f"2.{version}"


@pytest.mark.parametrize("route", ROUTES)
def test_microversions_and_status_codes_equal_the_api_reference(route):
    operation = _operation(route)
    if operation is None or operation.get("gone"):
        pytest.skip("not an operation of the reference")
    assert route.since == max(_minor(operation.get("min"), 1), 1)
    assert route.until == _minor(operation.get("max"), microversion.MAX)
    for version in range(route.since, route.until + 1):
        codes = {code for code, low, high in operation["success"]
                 if _minor(low, 0) <= version <= _minor(high, microversion.MAX)}
        assert route.status(version) in ({202} if route.action in _SAYS_202 else codes), f"2.{version}"


@pytest.mark.parametrize("route", ROUTES)
def test_errors_of_the_api_reference_are_documented(route):
    operation = _operation(route)
    if operation is None or operation.get("gone"):
        pytest.skip("not an operation of the reference")
    documented = {400, 401, 403, 404, *route.spec.errors}
    assert set(operation.get("errors", ())) - documented <= _NEVER


def test_route_table_has_no_duplicate_operation_per_microversion():
    seen = set()
    for route in routes.ROUTES:
        for version in range(route.since, route.until + 1):
            key = (route.method, _shape(route.path), route.action, version)
            assert key not in seen, f"two routes for {key}"
            seen.add(key)
