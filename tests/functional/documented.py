"""Whether an answer is one of those that the OpenAPI document of its version names."""

import functools

import jsonschema

from nova.api import openapi, routes

# What any request may be answered: who asks wrongly, too much, or while something is away.
_ALWAYS = frozenset({401, 406, 413, 415, 429, 503})


@functools.cache
def _document(version):
    return openapi.document(routes.ROUTES, version, "http://nova")


@functools.cache
def _validator(version, path, method, action, status):
    """Of the answer's body; None: it has none."""
    document = _document(version)
    operation = document["paths"][path][method]
    content = operation["responses"][status].get("content", {}).get("application/json", {}).get("schema")
    if action is not None and status < "300":
        actions = operation["requestBody"]["content"]["application/json"]["schema"]["oneOf"]
        content = next(one for one in actions if one["title"] == action).get("x-answer")
    if content is None:
        return None
    return jsonschema.Draft202012Validator({**content, "components": document["components"]})


def undocumented(version, method, path, answer, action=None):
    """What is wrong with an answer, or "". ``path`` is the route's."""
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
