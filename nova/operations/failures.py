"""From an exception to what a user may read of it."""

from __future__ import annotations

import traceback

from nova import exception
from nova.objects.action import Failure

# What is wrong with the request is wrong on every host.
_FINAL = (exception.Invalid, exception.NotFound, exception.Forbidden, exception.NoValidHost,
          exception.MaxRetriesExceeded, exception.VirtualInterfaceCreateFailed)


def failure_of(error: BaseException, host: str | None = None) -> Failure:
    """An error that was raised on purpose keeps its message; of any other only the class shows."""
    meant = isinstance(error, exception.NovaException)
    inside = error.inside if isinstance(error, exception.NovaException) and error.inside != error.message else ""
    trace = "".join(traceback.format_exception(error))
    return Failure(
        code=error.code if isinstance(error, exception.NovaException) else 500,
        message=str(error) if meant else f"Unexpected error: {type(error).__name__}",
        inside=inside,
        kind=type(error).__name__,
        details=f"{inside}\n{trace}" if inside else trace,
        host=host,
        retry=not isinstance(error, _FINAL))
