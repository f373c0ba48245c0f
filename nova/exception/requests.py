"""Errors of requests: bad input, missing rights and exceeded quotas."""

from nova.exception.base import Conflict, Forbidden, Invalid


class IdempotencyKeyReused(Conflict, template="Idempotency-Key was used before, for a request with another body."): ...
class InvalidInput(Invalid, template="Invalid input received: {reason}"): ...
class MarkerNotFound(Invalid, template="marker [{marker}] not found"): ...
class PolicyNotAuthorized(Forbidden, template="Policy doesn't allow {action} to be performed."): ...


class CallerRefused(Forbidden, template="{what} is refused."):
    """An RPC message whose sender is not authorized."""


class OverQuota(
        Forbidden,
        template="Quota exceeded for {overs}: Requested {req}, but already used {used} of {allowed} {overs}"): ...


class QuotaLimit(Forbidden, template="Quota exceeded."):
    """A limit that is not a sum over servers (key pairs, metadata items, ...)."""


class QuotaBelowUsage(
        Invalid,
        template="Quota limit {limit} for {key} must be greater than or equal to already used and reserved {minimum}."):
    ...
class QuotaAboveProject(Invalid, template="Quota limit {limit} for {key} must be less than or equal to {maximum}."): ...
