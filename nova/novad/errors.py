"""Errors of novad, with messages for the caller."""

from __future__ import annotations


class NovadError(Exception):
    """Base class of the errors of novad. ``message`` is shown to the user."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class Invalid(NovadError):
    """A platform file, an option or a request is invalid. The message names the field."""


class NotKnown(NovadError):
    """The component, deployment, backup or secret does not exist."""


class Busy(NovadError):
    """A deployment is already in progress."""


class Refused(NovadError):
    """The request cannot be done now (no space for a backup, nothing to roll back to); nothing was changed."""


class Nothing(Refused):
    """The component has no earlier state to roll back to."""


class RuntimeFault(NovadError):
    """The container runtime, or the registry behind it, refused or did not answer."""


class ImageFault(RuntimeFault):
    """An image could not be fetched, or is not the one that was expected."""


class Failed(NovadError):
    """A deployment failed, and the platform is as it was before."""


class Cancelled(NovadError):
    """The daemon ends; the deployment is put back when it starts again."""


def os_error_text(error: OSError) -> str:
    """Return the message of a system error, with its file."""
    return f"{error.strerror or type(error).__name__}{f': {error.filename}' if error.filename else ''}"
