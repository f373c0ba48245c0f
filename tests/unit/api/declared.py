"""The request schemas of all routes in all microversions, and their subschemas."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from typing import Any

from nova.api import microversion, routes
from nova.api.legacy import routes as legacy_routes
from nova.api.validation.fields import Type

Schema = dict[str, Any]


@functools.cache
def steps(declared: Type) -> list[int]:
    """Return 0 and the microversions whose schema differs from the previous one."""
    schemas = [declared.schema(version) for version in range(microversion.MAX + 1)]
    return [version for version, schema in enumerate(schemas) if version == 0 or schema != schemas[version - 1]]


def every_schema() -> Iterator[tuple[str, Schema]]:
    """Yield (location, schema) of each body and query whose schema differs from all earlier microversions."""
    for route in (*routes.ROUTES, *legacy_routes.SERVED):
        for kind, declared in (("body", route.spec.body), ("query", route.query)):
            known: list[Schema] = []
            for version in sorted({0, route.since, *(steps(declared) if declared is not None else ())}):
                if declared is None or version > route.until:
                    continue
                schema = declared.schema(version)
                if schema not in known:
                    known.append(schema)
                    yield f"{route.method} {route.path} {route.action or ''} 2.{version} {kind}", schema


def _parts(schema: Schema) -> Iterator[Schema]:
    yield schema
    for name in ("properties", "patternProperties"):
        for inner in schema.get(name, {}).values():
            yield from _parts(inner)
    for name in ("oneOf", "anyOf", "allOf", "prefixItems"):
        for inner in schema.get(name, ()):
            yield from _parts(inner)
    if "items" in schema:
        yield from _parts(schema["items"])


@functools.cache
def every_part() -> dict[str, Schema]:
    """Return all distinct schemas and subschemas by their JSON text."""
    return {json.dumps(part, sort_keys=True): part for _where, schema in every_schema() for part in _parts(schema)}


# Values of all types, including boundary values of lengths, formats and patterns.
_STRINGS = (
    "", " ", "a", "a\n", "\n", "ab", "a-", "-a", "a b", " a", "a ", "A.b_c",
    "a,b", "a/b", "a:b", "/dev/vda", "/dev/xvda1",
    "/24", "é", "😀", "\u200b", "\u2028", "\xa0", "a\xa0b", "\x7f", "0", "7", "-1", "+1", "1.5", "1e3", "٣",
    "x" * 255,
    "x" * 256, "é" * 255, "1" * 400, "none", "auto", "true", "True", "ON", "affinity", "AUTO", "1.1.1.1", "1.1.1.1%a",
    "::1", "::1%eth0", "1:2", "YQ==", "YQ=", "Y Q\n==", "2026-01-01T00:00:00Z", "2026-01-01", "2026-13-01", "(",
    "a(b)c",
    "[a-", "6f70656e-7374-6163-6b20-342065766572",
    "6f70656e73746163 6b20342065766572", "6f70656e737461636b20342065766572")
VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 1.0, 1.5, 0.0, -0.5, 2**31 - 1, 2**31, 2**63 - 1, 1e300, *_STRINGS)


def example(schema: Schema) -> Any:
    """Return a valid value with all optional properties. The tests check that it is valid."""
    if "enum" in schema:
        return schema["enum"][0]
    for name in ("oneOf", "anyOf"):
        if name in schema and "properties" not in schema and "type" not in schema:
            return example(schema[name][0])
    if "allOf" in schema:
        return "a"
    kinds = schema.get("type", "string")
    kind = kinds if isinstance(kinds, str) else kinds[0]
    if kind == "object":
        return {**{name: example(inner) for name, inner in schema.get("properties", {}).items()},
                **{"property-a" if "property" in pattern else "_a": example(inner)
                   for pattern, inner in schema.get("patternProperties", {}).items() if "maxProperties" not in schema},
                **({"a": example(*schema["patternProperties"].values())} if "maxProperties" in schema else {})}
    if kind == "array":
        if "prefixItems" in schema:
            return [example(inner) for inner in schema["prefixItems"]]
        return [example(schema.get("items", {}))]
    if kind == "string":
        return _text(schema)
    return {"integer": 1, "number": 1, "boolean": True, "null": None}[kind]


_FORMATTED = {"uuid": "6f70656e-7374-6163-6b20-342065766572", "ipv4": "10.0.0.1", "ipv6": "fd00::1", "base64": "YQ==",
              "date-time": "2026-01-01T00:00:00Z"}


def _text(schema: Schema) -> str:
    if schema.get("format") in _FORMATTED:
        return _FORMATTED[schema["format"]]
    if "oneOf" in schema:
        return _text(schema["oneOf"][0])
    if "maxLength" in schema and schema["maxLength"] == 0:
        return ""
    pattern = schema.get("pattern", "")
    return "/dev/vda" if "dev" in pattern else "/24" if pattern.startswith("^/") else "11"
