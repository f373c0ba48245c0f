"""Conversion of errors to responses."""

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

from nova import exception

LOG = logging.getLogger(__name__)

KEYS = {
    400: "badRequest", 401: "unauthorized", 403: "forbidden", 404: "itemNotFound", 405: "badMethod",
    409: "conflictingRequest", 413: "overLimit", 415: "badMediaType", 429: "overLimit",
    501: "notImplemented", 503: "serviceUnavailable"}

# Statuses from 500 on whose error messages are shown to the client.
_DISCLOSED = frozenset({501, 503})

# Seconds after which a client may repeat a request that a service, the database or the broker could not serve.
RETRY_AFTER = 5

MISSING_RESOURCE = "The resource could not be found."
MALFORMED = "The server could not comply with the request since it is either malformed or otherwise incorrect."


class RouteNotFound(exception.NotFound, template=MISSING_RESOURCE):
    """The operation does not exist in the requested microversion."""


class NoLongerAvailable(exception.NovaException, code=410,
                        template="This resource is no longer available. No forwarding address is given."): ...
class UnsupportedContentType(exception.Invalid, code=415, template="Unsupported Content-Type"): ...
class MalformedBody(exception.Invalid, template="Malformed request body"): ...
class RequestMismatch(exception.Invalid, template="Request body and URI mismatch"): ...
class BodyTooLarge(exception.Invalid, code=413, template="Request is too large."): ...


class OverLimit(exception.NovaException, code=429,
                template="This request was rate-limited. Ask again in {retry_after} seconds."):
    """``retry_after``: seconds after which the request may be repeated."""


@contextlib.contextmanager
def as_invalid(*kinds: type[exception.NovaException]) -> Iterator[None]:
    """Raise Invalid (400) instead of errors of these kinds, with their messages."""
    try:
        yield
    except kinds as error:
        raise exception.Invalid(error.message) from error


def headers(error: Exception) -> dict[str, str]:
    """Return the headers of a response to this error: Retry-After for 429 and 503."""
    if isinstance(error, OverLimit):
        return {"Retry-After": str(error.kwargs["retry_after"])}
    return {"Retry-After": str(RETRY_AFTER)} if isinstance(error, exception.NovaException) and error.code == 503 else {}


def body(code: int, message: str, retry_after: int | None = None) -> dict[str, Any]:
    """Return the error body of the Compute API. ``retry_after``: the seconds in the header Retry-After."""
    fields: dict[str, Any] = {"code": code, "message": message}
    if retry_after is not None and code in (413, 429):
        fields["retryAfter"] = str(retry_after)
    return {KEYS.get(code, "computeFault"): fields}


def describe(error: Exception) -> tuple[int, dict[str, Any]]:
    """Return status and body of an error. Unexpected errors are logged and not disclosed."""
    if isinstance(error, exception.NovaException) and (error.code < 500 or error.code in _DISCLOSED):
        retry_after = error.kwargs["retry_after"] if isinstance(error, OverLimit) else None
        return error.code, body(error.code, error.message, retry_after)
    LOG.error("Unexpected error in the API", exc_info=error)
    kind = type(error)
    message = ("Unexpected API Error. The log of nova-api has the details under the request id of this answer.\n"
               f"<class '{kind.__module__}.{kind.__qualname__}'>")
    return 500, body(500, message)
