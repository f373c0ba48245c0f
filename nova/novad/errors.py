"""Errors of novad, with messages for the caller."""

from __future__ import annotations

from nova.common.errors import Refused, ReportedError


class Busy(ReportedError):
    """A deployment is already in progress."""


class Nothing(Refused):
    """The component has no earlier state to roll back to."""


class RuntimeFault(ReportedError):
    """The container runtime or the registry behind it refused a request or did not respond."""


class ImageFault(RuntimeFault):
    """An image cannot be pulled or is not the expected one."""


class Failed(ReportedError):
    """A deployment failed, and the previous state was restored."""


class Cancelled(ReportedError):
    """novad is stopping; the deployment is rolled back at the next start."""
