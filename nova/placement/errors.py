"""Errors of the Placement API: each response contains a list of one error with a code for programs."""

import http
import logging
from typing import Any

from nova import exception
from nova.placement import versions

LOG = logging.getLogger(__name__)

_UNDEFINED = "placement.undefined_code"
_SINCE_CODES = 23
RETRY_AFTER = 5  # seconds after which a client may repeat a request that the conductor could not serve


class BadValue(exception.Invalid, placement_code="placement.query.bad_value"): ...
class MissingValue(exception.Invalid, placement_code="placement.query.missing_value"): ...
class DuplicateKey(exception.Invalid, placement_code="placement.query.duplicate_key"): ...
class UrlNotFound(exception.NotFound, template="The resource could not be found."): ...
class UnsupportedType(
        exception.Invalid, code=415, template="The media type {kind!r} is not supported, use application/json."): ...


class MethodNotAllowed(
        exception.NovaException, code=405, template="The method {method} is not allowed for this resource."):
    """The URL does not support the method. ``allowed``: the methods that it supports."""


def describe(error: Exception, version: int, request_id: str) -> tuple[int, dict[str, Any], dict[str, str]]:
    """Return status, body and headers. Unexpected errors are logged and not disclosed."""
    headers: dict[str, str] = {}
    if isinstance(error, exception.NovaException) and (error.code < 500 or error.code in (501, 503)):
        status, detail = error.code, error.message
    else:
        LOG.error("Unexpected error in the Placement API", exc_info=error)
        status, detail = 500, "Unexpected error. The log of nova-api has the details under the request id."
    body: dict[str, Any] = {"status": status, "title": http.HTTPStatus(status).phrase, "detail": detail,
                            "request_id": request_id}
    if version >= _SINCE_CODES:
        body["code"] = getattr(error, "placement_code", _UNDEFINED)
    if isinstance(error, versions.VersionNotAcceptable):
        body.update(min_version=versions.text(versions.MIN), max_version=versions.text(versions.MAX))
    if isinstance(error, MethodNotAllowed):
        headers["allow"] = error.kwargs["allowed"]
    if status == 503:
        headers["retry-after"] = str(RETRY_AFTER)
    if status == 429:
        headers["retry-after"] = str(error.kwargs["retry_after"])  # type: ignore[attr-defined]
    return status, {"errors": [body]}, headers
