"""Upper bounds of lists in request schemas."""

import pytest

from nova.api import routes
from nova.api.legacy import routes as legacy_routes
from nova.api.microversion import MAX
from tests.unit.api.declared import steps


def _lists(schema, path="body"):
    """Yield (path, schema) of all lists in a schema."""
    if not isinstance(schema, dict):
        return
    if "array" in (schema.get("type") or []):
        yield path, schema
    for key in ("properties", "patternProperties"):
        for name, one in schema.get(key, {}).items():
            yield from _lists(one, f"{path}.{name}")
    for key in ("oneOf", "anyOf", "allOf"):
        for one in schema.get(key, []):
            yield from _lists(one, path)
    for key in ("items", "additionalProperties"):
        yield from _lists(schema.get(key), f"{path}[]")


def _versions(declared, route):
    return sorted({route.since, *(step for step in steps(declared) if route.since <= step <= min(route.until, MAX))})


@pytest.mark.parametrize("route", [*routes.ROUTES, *legacy_routes.SERVED],
                         ids=lambda route: f"{route.method} {route.path} {route.action}")
def test_every_list_in_request_schemas_has_max_items(route):
    for declared in filter(None, (route.spec.body, route.query)):
        for version in _versions(declared, route):
            unbound = {path for path, schema in _lists(declared.schema(version)) if "maxItems" not in schema}
            assert not unbound, f"2.{version}"
