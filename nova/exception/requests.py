"""What may be wrong with any request: its input, its caller, its quota."""

from nova.exception.base import Conflict, Forbidden, Invalid


class IdempotencyKeyReused(Conflict):
    template = "Idempotency-Key was used before, for a request with another body."


class InvalidInput(Invalid):
    template = "Invalid input received: {reason}"


class MarkerNotFound(Invalid):
    template = "marker [{marker}] not found"


class PolicyNotAuthorized(Forbidden):
    template = "Policy doesn't allow {action} to be performed."


class CallerRefused(Forbidden):
    """Of a message: whoever sent it may not ask that."""

    template = "{what} is refused."


class OverQuota(Forbidden):
    template = "Quota exceeded for {overs}: Requested {req}, but already used {used} of {allowed} {overs}"


class QuotaLimit(Forbidden):
    """A limit that is not a sum over servers (key pairs, metadata items, ...)."""

    template = "Quota exceeded."


class QuotaBelowUsage(Invalid):
    template = "Quota limit {limit} for {key} must be greater than or equal to already used and reserved {minimum}."


class QuotaAboveProject(Invalid):
    template = "Quota limit {limit} for {key} must be less than or equal to {maximum}."
