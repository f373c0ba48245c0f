"""Errors of novad, with messages for the caller."""

from __future__ import annotations

from nova.common.errors import Refused, ReportedError


class Busy(ReportedError):
    """A deployment is already in progress."""


class Nothing(Refused):
    """The component has no earlier state to roll back to."""


class RuntimeFault(ReportedError):
    """The container runtime, or the registry behind it, refused or did not answer."""


class ImageFault(RuntimeFault):
    """An image could not be fetched, or is not the one that was expected."""


class Failed(ReportedError):
    """A deployment failed, and the platform is as it was before."""


class Cancelled(ReportedError):
    """The daemon ends; the deployment is put back when it starts again."""
