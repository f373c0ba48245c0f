"""The base class of all errors, one class for each HTTP status, and errors of requests: bad input, missing rights and
exceeded quotas."""

from __future__ import annotations

from typing import Any, ClassVar


class NovaException(Exception):
    """The base class of errors, with the HTTP status ``code`` and the message ``template`` with named arguments.
    Tenants can read the message. Details for operators only, such as host names, are in ``inside_template``. Services
    send errors to each other by ``wire_name``, which is the name of the class unless the class defines another one. A
    subclass sets these attributes by keywords: ``class NotFound(NovaException, code=404, template="..."): ...``"""

    code: ClassVar[int] = 500
    template: ClassVar[str] = "An unknown exception occurred."
    inside_template: ClassVar[str] = ""
    wire_name: ClassVar[str] = "NovaException"
    registry: ClassVar[dict[str, type[NovaException]]] = {}

    def __init__(self, message: str | None = None, **kwargs: Any) -> None:
        self.kwargs = kwargs
        self.message = message if message is not None else self.template.format(**kwargs)
        super().__init__(self.message)

    @property
    def inside(self) -> str:
        """Return the message for operators, used in logs and in answers to administrators."""
        try:
            return self.inside_template.format(**self.kwargs) or self.message
        except KeyError:  # the error has its own message, or comes from another release
            return self.message

    def __init_subclass__(cls, wire_name: str = "", **attributes: int | str) -> None:
        super().__init_subclass__()
        for name, value in attributes.items():
            setattr(cls, name, value)
        cls.wire_name = wire_name or cls.__name__
        NovaException.registry[cls.wire_name] = cls

    @staticmethod
    def rebuild(name: str, message: str, kwargs: dict[str, Any]) -> NovaException:
        """Return the error that another service raised, or InternalError if ``name`` is unknown."""
        cls = NovaException.registry.get(name, InternalError)
        return cls(message, **kwargs)


class InternalError(NovaException, template="Unexpected error in {where}."):
    """An unexpected error in another service, whose log has the traceback under the same request id."""


class Invalid(NovaException, code=400, template="Bad request."): ...
class NotSupported(Invalid, template="This is not supported."): ...
class Forbidden(NovaException, code=403, template="Forbidden."): ...
class NotFound(NovaException, code=404, template="Resource could not be found."): ...
class Conflict(NovaException, code=409, template="Conflict."): ...
class NotImplementedHere(NovaException, code=501, template="Unable to {what}: not supported by the driver."): ...
class ServiceUnavailable(NovaException, code=503, template="Service is unavailable at this time."): ...


class NoListeners(ServiceUnavailable, wire_name="NobodyListens"):
    """A message that was not sent, since no server listens at its topic."""


class DatabaseUnusable(ServiceUnavailable, template="The database {url} cannot be used: {reason}"):
    """A configured database that is unreachable, refuses the login or lacks tables; shown to operators."""


# --- requests --------------------------------------------------------------------------------------------
class IdempotencyKeyReused(Conflict, template="Idempotency-Key was used before, for a request with another body."): ...
class InvalidInput(Invalid, template="Invalid input received: {reason}"): ...
class MarkerNotFound(Invalid, template="marker [{marker}] not found"): ...
class PolicyNotAuthorized(Forbidden, template="Policy doesn't allow {action} to be performed."): ...


class CallerRefused(Forbidden, template="{what} is refused."):
    """An RPC message whose sender is not authorized."""


class OverQuota(Forbidden, template=(
        "Quota exceeded for {overs}: Requested {req}, but already used {used} of {allowed} {overs}")): ...


class QuotaLimit(Forbidden, template="Quota exceeded."):
    """An exceeded limit of resources that are not summed over servers (key pairs, metadata items, ...)."""


class QuotaBelowUsage(Invalid, template=(
        "Quota limit {limit} for {key} must be greater than or equal to already used and reserved {minimum}.")): ...
class QuotaAboveProject(Invalid, template="Quota limit {limit} for {key} must be less than or equal to {maximum}."): ...
