"""Errors of novad, with messages for the caller."""

from nova.common.errors import ReportedError

_MOST = 2400  # Maximum bytes of a message: gRPC encodes each byte in up to 3 and drops messages of more than 8 KiB.


def shortened(message: str) -> str:
    """Return an error message for clients and the journal, without its middle if it is long. Mask secrets before."""
    data = message.encode(errors="replace")
    if len(data) <= _MOST:
        return message
    half = _MOST // 2
    return f"{data[:half].decode(errors='ignore')} … {data[-half:].decode(errors='ignore')}"


class Busy(ReportedError):
    """A deployment is already in progress."""


class RuntimeFault(ReportedError):
    """The container runtime or the registry behind it refused a request or did not respond."""


class ImageFault(RuntimeFault):
    """An image cannot be pulled or is not the expected one."""


class Failed(ReportedError):
    """A deployment failed, and the previous state was restored."""


class Cancelled(ReportedError):
    """novad is stopping; the deployment is rolled back at the next start."""
