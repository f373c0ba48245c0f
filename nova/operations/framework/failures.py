"""Conversion of an exception to the failure that a user can read."""

import traceback

from nova import exception
from nova.objects.servers.action import Failure

# Errors of the request itself, which recur on every host.
_FINAL = (exception.Invalid, exception.NotFound, exception.Forbidden, exception.NoValidHost,
          exception.MaxRetriesExceeded, exception.VirtualInterfaceCreateFailed)


def failure_of(error: BaseException, host: str | None = None) -> Failure:
    """Return the failure for an error: with the message of a NovaException, else with the class only."""
    meant = isinstance(error, exception.NovaException)
    inside = error.inside if isinstance(error, exception.NovaException) and error.inside != error.message else ""
    trace = "".join(traceback.format_exception(error))
    return Failure(code=error.code if isinstance(error, exception.NovaException) else 500,
                   message=str(error) if meant else f"Unexpected error: {type(error).__name__}", inside=inside,
                   kind=type(error).__name__, details=f"{inside}\n{trace}" if inside else trace, host=host,
                   retry=not isinstance(error, _FINAL))
