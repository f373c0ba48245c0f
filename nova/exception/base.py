"""What all errors have in common, and their families by HTTP status."""

from __future__ import annotations

from typing import Any, ClassVar


class NovaException(Exception):
    """Base class: ``code`` is the HTTP status, ``template`` the message with ``{named}`` arguments.

    Tenants read the message. What is theirs not to know (hosts, how many there are) is in ``inside_template``.
    """

    code: ClassVar[int] = 500
    template: ClassVar[str] = "An unknown exception occurred."
    inside_template: ClassVar[str] = ""
    registry: ClassVar[dict[str, type[NovaException]]] = {}

    def __init__(self, message: str | None = None, **kwargs: Any) -> None:
        self.kwargs = kwargs
        self.message = message if message is not None else self.template.format(**kwargs)
        super().__init__(self.message)

    @property
    def inside(self) -> str:
        """The message for operators: of logs and of what administrators see."""
        try:
            return self.inside_template.format(**self.kwargs) or self.message
        except KeyError:  # raised with a message of its own, or by another release
            return self.message

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        NovaException.registry[cls.__name__] = cls

    @staticmethod
    def rebuild(name: str, message: str, kwargs: dict[str, Any]) -> NovaException:
        """The error of class ``name`` as the other side raised it (InternalError if unknown here)."""
        cls = NovaException.registry.get(name, InternalError)
        return cls(message, **kwargs)


class InternalError(NovaException):
    """A defect in the other service; its log has the traceback under the same request id."""

    template = "Unexpected error in {where}."


class Invalid(NovaException):
    code = 400
    template = "Bad request."


class NotSupported(Invalid):
    template = "This is not supported."


class Forbidden(NovaException):
    code = 403
    template = "Forbidden."


class NotFound(NovaException):
    code = 404
    template = "Resource could not be found."


class Conflict(NovaException):
    code = 409
    template = "Conflict."


class NotImplementedHere(NovaException):
    code = 501
    template = "Unable to {what}: not supported by the driver."


class ServiceUnavailable(NovaException):
    code = 503
    template = "Service is unavailable at this time."


class NobodyListens(ServiceUnavailable):
    """Nothing was sent: whoever should answer is not there."""


class DatabaseUnusable(ServiceUnavailable):
    """For operators: the database of the configuration is not there, does not let us in or lacks tables."""

    template = "The database {url} cannot be used: {reason}"
