"""What goes wrong in novad, in words for whoever asked."""

from __future__ import annotations


class NovadError(Exception):
    """``message`` is for the user."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class Invalid(NovadError):
    """What was given cannot be: a platform file, an option, a request. The message names the field."""


class NotKnown(NovadError):
    """There is no such component, deployment, backup or secret."""


class Busy(NovadError):
    """Another deployment is under way."""


class Refused(NovadError):
    """It cannot be done now (no room for a backup, nothing to go back to); nothing was changed."""


class Nothing(Refused):
    """There is nothing to go back to."""


class RuntimeFault(NovadError):
    """The container runtime, or the registry behind it, refused or did not answer."""


class ImageFault(RuntimeFault):
    """An image could not be fetched, or is not the one that was expected."""


class Failed(NovadError):
    """A deployment failed, and the platform is as it was before."""


class Cancelled(NovadError):
    """The daemon ends; the deployment is put back when it starts again."""


def told(error: OSError) -> str:
    """What the system refused, and of which file."""
    return f"{error.strerror or type(error).__name__}{f': {error.filename}' if error.filename else ''}"
