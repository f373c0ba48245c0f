"""Errors of the EC2 API, and their translation from errors of the REST API."""

from __future__ import annotations

import re
from collections.abc import Mapping


class Ec2Error(Exception):
    """An error response: ``code`` is the name that clients compare, ``status`` the HTTP status."""

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.code, self.message, self.status = code, message, status


def missing_parameter(name: str) -> Ec2Error:
    return Ec2Error("MissingParameter", f"The request must contain the parameter {name}.")


def bad_value(name: str, reason: str) -> Ec2Error:
    return Ec2Error("InvalidParameterValue", f"Invalid value for the parameter {name}: {reason}")


def unsupported(message: str) -> Ec2Error:
    return Ec2Error("UnsupportedOperation", message)


def unavailable(message: str) -> Ec2Error:
    return Ec2Error("Unavailable", message, 503)


class RestError(Exception):
    """An error response of the REST API."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status} {message}")
        self.status, self.message = status, message


# Status of the REST API -> default code of the error, and HTTP status of the response.
_BY_STATUS = {
    400: ("InvalidParameterValue", 400), 401: ("AuthFailure", 401), 403: ("UnauthorizedOperation", 403),
    404: ("InvalidParameterValue", 400), 409: ("IncorrectState", 400), 410: ("UnsupportedOperation", 400),
    413: ("RequestLimitExceeded", 503), 429: ("RequestLimitExceeded", 503), 501: ("UnsupportedOperation", 400),
    503: ("Unavailable", 503), 504: ("Unavailable", 503)}
# REST status, pattern of the REST message, code of the error: for statuses that stand for several errors.
_BY_MESSAGE = (
    (403, re.compile(r"Quota exceeded|Maximum number of|quota", re.IGNORECASE), "ResourceLimitExceeded"),
    (413, re.compile(r"Quota exceeded", re.IGNORECASE), "ResourceLimitExceeded"),
    (400, re.compile(r"Key ?pair .*(not found|could not be found)|Invalid key_name"), "InvalidKeyPair.NotFound"),
    (400, re.compile(r"Security group .*not found"), "InvalidGroup.NotFound"),
    (400, re.compile(r"Image .*could not be found"), "InvalidAMIID.NotFound"),
    (400, re.compile(r"Image .*is not active"), "InvalidAMIID.Unavailable"),
    (400, re.compile(r"Volume .*could not be found"), "InvalidVolume.NotFound"),
    (400, re.compile(r"(No valid host|availability zone .*not available)", re.IGNORECASE), "InvalidParameterValue"),
    (409, re.compile(r"Idempotency-Key"), "IdempotentParameterMismatch"),
    (409, re.compile(r"is locked"), "OperationNotPermitted"),
    (400, re.compile(r"embedded back end have no snapshots"), "UnsupportedOperation"),
)
_POLICY = "Policy doesn't allow"  # begins the message of a request that a policy does not allow


def translated(error: RestError, codes: Mapping[int, str]) -> Ec2Error:
    """Return the EC2 error for an error of the REST API. ``codes``: by REST status, the EC2 codes of this request; the
    code at 413 is that of an exceeded quota."""
    named = next((code for status, pattern, code in _BY_MESSAGE
                  if status == error.status and pattern.search(error.message)), None)
    if named == "ResourceLimitExceeded":
        return Ec2Error(codes.get(413, named), error.message)
    if named is not None:
        return Ec2Error(named, error.message)
    code, status = _BY_STATUS.get(error.status, ("InternalError", 500))
    if error.status in codes and error.status != 413 and not error.message.startswith(_POLICY):
        return Ec2Error(codes[error.status], error.message)
    return Ec2Error(code, error.message if code != "InternalError" else "An internal error has occurred.", status)
