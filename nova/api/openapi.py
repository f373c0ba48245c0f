"""The OpenAPI 3.1 document of a microversion: GET /v2.1/openapi with the microversion header, no token.

It is generated from the declarations that validate requests and render responses. It contains all that a generated
client needs: every body, response and status, and the microversion as the default of the microversion header."""

import functools
import http
import re
import threading
import zlib
from collections.abc import Sequence
from typing import Any

import msgspec

from nova.api import errors, microversion
from nova.api.router import Route

_NAMES = re.compile(r"{(\w+)}")
# Paths of the document; the second one is that of earlier releases.
PATHS = frozenset({"/v2.1/openapi", "/openapi.json"})
# Headers of every response of a version.
_HEADERS = (microversion.HEADER, "x-openstack-request-id")
_BUILDING = threading.Lock()
_JSON_TYPES = {bool: "boolean", str: "string", int: "integer", float: "number", type(None): "null"}


def document(routes: Sequence[Route], version: int, base: str) -> dict[str, Any]:
    """Return the document with every operation that exists in ``version``, as served below ``base``."""
    decoded: dict[str, Any] = msgspec.json.decode(encoded(routes, version, base))
    return decoded


def encoded(routes: Sequence[Route], version: int, base: str) -> msgspec.Raw:
    """Return document() as JSON. Each version is built once per process, and one version at a time, because
    clients need no token and building a version takes as long as dozens of other requests."""
    with _BUILDING:
        packed = _packed(tuple(routes), version)
    servers = msgspec.json.encode([{"url": f"{base}/v2.1"}])
    return msgspec.Raw(b'{"servers":' + servers + b"," + zlib.decompress(packed)[1:])


@functools.lru_cache(maxsize=microversion.MAX)
def _packed(routes: tuple[Route, ...], version: int) -> bytes:
    """Return the compressed JSON of the document without its key ``servers``: 20 KB instead of 300 KB."""
    return zlib.compress(msgspec.json.encode(_document(routes, version)))


def _document(routes: tuple[Route, ...], version: int) -> dict[str, Any]:
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        if not route.since <= version <= route.until or getattr(route.handler, "removed", False):
            continue
        item = paths.setdefault(route.path, {})
        method = route.method.lower()
        if route.action is not None and method in item:
            # A further action of the same URL: add its body, and its response if it differs.
            operation = item[method]
            operation["requestBody"]["content"]["application/json"]["schema"]["oneOf"].append(
                _action_body(route, version))
            for code, answer in _responses(route, version).items():
                merged = operation["responses"].setdefault(code, answer)
                if merged is not answer and code < "400":
                    _merge(merged, answer)
        else:
            item[method] = _operation(route, version)
    return {
        "openapi": "3.1.0",
        "jsonSchemaDialect": "https://json-schema.org/draft/2020-12/schema",
        "info": {"title": "OpenStack Compute API", "version": microversion.text(version),
                 "description": f"Microversion {microversion.text(version)}: send it in the header "
                                f"{microversion.HEADER}. Paths may also begin with /{{project_id}}."},
        "paths": paths,
        "components": {
            "securitySchemes": {"keystone": {"type": "apiKey", "in": "header", "name": "X-Auth-Token"}},
            "headers": {name: {"schema": {"type": "string"}} for name in _HEADERS},
            "schemas": {"error": {
                "type": "object", "description": "One key, by status.",
                "additionalProperties": {"type": "object", "required": ["code", "message"], "properties": {
                    "code": {"type": "integer"}, "message": {"type": "string"}}}}}},
        "security": [{"keystone": []}]}


def _operation(route: Route, version: int) -> dict[str, Any]:
    words = _NAMES.sub(r"\1", route.path).strip("/").replace("/", "_").replace("-", "_")
    made: dict[str, Any] = {
        "operationId": f"{route.method.lower() if route.action is None else 'action'}_{words}",
        "tags": [route.path.split("/")[1]],
        "summary": _summary(route),
        "parameters": [_header(version)] + [
            {"name": name, "in": "header", "schema": {"type": "string"}} for name in route.spec.headers] + [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in _NAMES.findall(route.path)] + _query(route, version),
        "responses": _responses(route, version)}
    if route.action is not None:
        made["summary"] = f"Run an action on one of {route.path.split('/')[1]}: the key of the body is its name."
        made["requestBody"] = _json({"oneOf": [_action_body(route, version)]})
    elif route.spec.body is not None:
        made["requestBody"] = _json(_plain(route.spec.body.schema(version)))
    if "requestBody" in made:
        made["requestBody"]["required"] = True
    if route.policy and route.action is None:
        made["x-policy"] = route.policy
    return made


def _summary(route: Route) -> str:
    return (route.handler.__doc__ or "").strip().partition("\n")[0]


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"content": {"application/json": {"schema": schema}}}


def _action_body(route: Route, version: int) -> dict[str, Any]:
    """Return the schema of an action's body, with its name (title), its policy rule (``x-policy``, if it is a single
    one) and the schema of its response (``x-answer``)."""
    name = route.action or ""
    schema: dict[str, Any] = {"type": "object", "properties": {name: {}}, "required": [name]}
    if route.spec.body is not None:
        schema = _plain(route.spec.body.schema(version))
    content = _responses(route, version)[str(route.status(version))].get("content")
    return {"title": name, "description": _summary(route), **({"x-policy": route.policy} if route.policy else {}),
            **({"x-answer": content["application/json"]["schema"]} if content else {}), **schema}


def _merge(merged: dict[str, Any], answer: dict[str, Any]) -> None:
    """Merge responses of actions with the same status. OpenAPI has no optional content: if one response is empty, the
    merged response is empty, too, and the others are described only by ``x-answer`` of the bodies of their actions."""
    merged["headers"] = {**merged.get("headers", {}), **answer.get("headers", {})}
    if "content" not in answer or "content" not in merged:
        merged.pop("content", None)
        return
    media, other = merged["content"]["application/json"], answer["content"]["application/json"]["schema"]
    schemas = media["schema"].get("anyOf", [media["schema"]])
    if other not in schemas:
        media["schema"] = {"anyOf": [*schemas, other]}


def _header(version: int) -> dict[str, Any]:
    return {"name": microversion.HEADER, "in": "header",
            "schema": {"type": "string", "default": f"{microversion.SERVICE} {microversion.text(version)}"},
            "description": f"{microversion.SERVICE} 2.N or {microversion.SERVICE} latest"}


def _query(route: Route, version: int) -> list[dict[str, Any]]:
    if route.query is None:
        return []
    return [{"name": name, "in": "query", "schema": _plain(shape)}
            for name, shape in route.query.schema(version)["properties"].items()]


def _responses(route: Route, version: int) -> dict[str, Any]:
    headers: dict[str, Any] = {name: {"$ref": f"#/components/headers/{name}"} for name in _HEADERS}
    if version <= route.spec.located:
        headers["Location"] = {"schema": {"type": "string", "format": "uri-reference"}}
    answer = route.spec.answer.schema(version) if route.spec.answer is not None else {}
    if answer.get("additionalProperties") is False and not answer["properties"] and "patternProperties" not in answer:
        answer = {}  # the response has no body in this version
    made = {}
    for code in sorted(set(route.spec.statuses) or {route.status(version)}):
        made[str(code)] = {"description": http.HTTPStatus(code).phrase, "headers": headers,
                           **(_json(_plain(answer)) if answer and code != http.HTTPStatus.NO_CONTENT else {})}
    for code in sorted({400, 401, 403, 404, *route.spec.errors}):
        made[str(code)] = {"description": errors.KEYS.get(code, "computeFault"),
                           **_json({"$ref": "#/components/schemas/error"})}
    return made


def _plain(schema: Any) -> Any:
    """Return an equivalent schema for code generators, which require one type per enum and ignore patternProperties."""
    if isinstance(schema, list):
        return [_plain(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: value if key in ("enum", "default") else _plain(value) for key, value in schema.items()}
    named = made.get("patternProperties", {})
    if len(named) == 1 and not made.get("properties") and made.get("additionalProperties") is False:
        [(pattern, made["additionalProperties"])] = made.pop("patternProperties").items()
        made["propertyNames"] = {"pattern": pattern}
    kinds = {_JSON_TYPES[type(value)] for value in made.get("enum", ())}
    if len(kinds) > 1:
        values = made.pop("enum")
        made.pop("type", None)
        made["anyOf"] = [{"type": "boolean"} if kind == "boolean" else {
            "type": kind, "enum": [value for value in values if _JSON_TYPES[type(value)] == kind]}
            for kind in sorted(kinds)]
    return made
