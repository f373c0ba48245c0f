"""The OpenAPI 3.1 document of a microversion: GET /openapi.json with the microversion header, no token.

It comes from the same declarations as validation and rendering, so it cannot disagree with them.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Any

from nova.api import errors, microversion
from nova.api.router import Route

_NAMES = re.compile(r"{(\w+)}")
_GENERAL_ERRORS = (400, 401, 403, 404)


def document(routes: Sequence[Route], version: int, base: str) -> dict[str, Any]:
    """Every operation that exists in ``version``, as served below ``base``."""
    return {**_document(tuple(routes), version), "servers": [{"url": f"{base}/v2.1"}]}


@functools.lru_cache(maxsize=8)
def _document(routes: tuple[Route, ...], version: int) -> dict[str, Any]:
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        if not route.since <= version <= route.until or getattr(route.handler, "removed", False):
            continue
        item = paths.setdefault(route.path, {})
        method = route.method.lower()
        if route.action is not None and method in item:
            _add_action(item[method], route, version)
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
            "schemas": {"error": {
                "type": "object", "description": "One key, by status.",
                "additionalProperties": {"type": "object", "required": ["code", "message"], "properties": {
                    "code": {"type": "integer"}, "message": {"type": "string"}}}}},
        },
        "security": [{"keystone": []}],
    }


def _operation(route: Route, version: int) -> dict[str, Any]:
    made: dict[str, Any] = {
        "operationId": _identifier(route),
        "summary": (route.handler.__doc__ or "").strip().partition("\n")[0],
        "parameters": [_header()] + [
            {"name": name, "in": "header", "schema": {"type": "string"}} for name in route.spec.headers] + [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in _NAMES.findall(route.path)] + _query(route, version),
        "responses": _responses(route, version),
    }
    if route.spec.body is not None:
        made["requestBody"] = {"required": True, "content": {"application/json": {
            "schema": route.spec.body.schema(version)}}}
        if route.action is not None:
            content = made["requestBody"]["content"]["application/json"]
            content["schema"] = {"oneOf": [content["schema"]]}
    if route.policy:
        made["x-policy"] = route.policy
    return made


def _add_action(operation: dict[str, Any], route: Route, version: int) -> None:
    """A further action of the same URL: one more body, perhaps one more answer."""
    if route.spec.body is not None:
        body = operation.setdefault("requestBody", {"required": True, "content": {"application/json": {
            "schema": {"oneOf": []}}}})
        body["content"]["application/json"]["schema"]["oneOf"].append(route.spec.body.schema(version))
    for code, answer in _responses(route, version).items():
        operation["responses"].setdefault(code, answer)


def _identifier(route: Route) -> str:
    words = _NAMES.sub(r"\1", route.path).strip("/").replace("/", "_").replace("-", "_")
    return f"{route.method.lower()}_{words}" if route.action is None else f"action_{words}"


def _header() -> dict[str, Any]:
    return {"name": microversion.HEADER, "in": "header", "schema": {"type": "string"},
            "description": f"{microversion.SERVICE} 2.N or {microversion.SERVICE} latest"}


def _query(route: Route, version: int) -> list[dict[str, Any]]:
    if route.query is None:
        return []
    return [{"name": name, "in": "query", "schema": shape}
            for name, shape in route.query.schema(version)["properties"].items()]


def _responses(route: Route, version: int) -> dict[str, Any]:
    success: dict[str, Any] = {"description": "Success"}
    if route.spec.answer is not None:
        success["content"] = {"application/json": {"schema": route.spec.answer.schema(version)}}
    made = {str(route.status(version)): success}
    for code in sorted({*_GENERAL_ERRORS, *route.spec.errors}):
        made[str(code)] = {"description": errors.KEYS.get(code, "computeFault"), "content": {"application/json": {
            "schema": {"$ref": "#/components/schemas/error"}}}}
    return made
