"""Validation of responses against the OpenAPI document of their microversion."""

import functools

import jsonschema

from nova.api import openapi, routes

# Statuses of any request: wrong credentials or headers, limits exceeded, or a service unavailable.
_ALWAYS = frozenset({401, 406, 413, 415, 429, 503})


@functools.cache
def _document(version):
    return openapi.document(routes.ROUTES, version, "http://nova")


@functools.cache
def _validator(version, path, method, action, status):
    """Return the validator of the response body, or None if the response has no body."""
    document = _document(version)
    operation = document["paths"][path][method]
    content = operation["responses"][status].get("content", {}).get("application/json", {}).get("schema")
    if action is not None and status < "300":
        actions = operation["requestBody"]["content"]["application/json"]["schema"]["oneOf"]
        content = next(schema for schema in actions if schema["title"] == action).get("x-answer")
    if content is None:
        return None
    return jsonschema.Draft202012Validator({**content, "components": document["components"]})


def undocumented(version, method, path, answer, action=None):
    """Return how a response violates the document, or "". ``path``: the path of the route."""
    operation = _document(version)["paths"][path][method.lower()]
    status = str(answer.status_code)
    if status not in operation["responses"]:
        return "" if answer.status_code in _ALWAYS else f"status {status}"
    if answer.ok and "Location" in answer.headers and "Location" not in operation["responses"][status]["headers"]:
        return "Location"
    validator = _validator(version, path, method.lower(), action, status)
    if validator is None or not answer.content:
        return "" if validator is None and not answer.content else f"{status}: {answer.text[:100] or 'no body'}"
    error = jsonschema.exceptions.best_match(validator.iter_errors(answer.json()))
    return f"{status}: {error.json_path} {error.message[:300]}" if error else ""
