"""Errors of commands: a message for the user and an exit code."""

import re
from typing import Any


class CommandError(Exception):
    """A failure of the command: exit code 1."""

    exit_code = 1


class UsageError(CommandError):
    """Wrong usage, for example a contradiction between arguments: exit code 2."""

    exit_code = 2


class NotFound(CommandError):
    """Resource not found, or ambiguous name: exit code 3."""

    exit_code = 3


class LoginFailed(CommandError):
    """Login failed, or service unreachable: exit code 4."""

    exit_code = 4


# Hints by HTTP status and a pattern in the message; the first match applies.
_HINTS: tuple[tuple[int, str, str], ...] = (
    (401, "", "Log in again: source your openrc file, or choose a cloud with --os-cloud."),
    (403, "quota", "nova limits shows the usage; delete resources, or ask an administrator for a larger quota "
                   "(nova quota-update)."),
    (403, "policy", "Your roles do not allow it: ask an administrator to send the request."),
    (406, "", "Choose a version that the server supports with --os-compute-api-version; nova version-list shows them."),
    (409, "locked", "Unlock the server: nova unlock SERVER (nova show SERVER prints the reason of the lock)."),
    (409, "task_state", "Another operation of the server is running: nova watch SERVER shows it."),
    (409, "vm_state", "nova show SERVER prints the state, nova instance-action-list SERVER the earlier operations."),
    (413, "", "Wait, and try again."), (429, "", "Wait, and try again."),
    (503, "", "The service is overloaded or starting: wait, and try again."))


class Refused(CommandError):
    """An error response of a service, with its HTTP status."""

    def __init__(self, status: int, message: str, request_id: str | None = None) -> None:
        self.status = status
        self.message = message
        self.request_id = request_id
        self.exit_code = {401: 4, 404: 3}.get(status, 1)
        super().__init__(message)

    def __str__(self) -> str:
        marks = [f"HTTP {self.status}", *([self.request_id] if self.request_id else [])]
        hint = hint_of(self.status, self.message)
        return f"{self.message.rstrip()} ({', '.join(marks)})" + (f"\n{hint}" if hint else "")


def hint_of(status: int, message: str) -> str | None:
    """Return a hint on how to resolve the error, or None."""
    for hint_status, pattern, hint in _HINTS:
        if hint_status == status and re.search(pattern, message, re.IGNORECASE):
            return hint
    return None


def refused(response: Any) -> Refused:
    """Return the error for a response with an error status of any OpenStack service."""
    try:
        body = response.json()
    except ValueError:
        body = None
    message = _message_in(body) or response.text.strip() or response.reason
    return Refused(response.status_code, message, response.headers.get("x-openstack-request-id"))


def _message_in(body: Any) -> str | None:
    """Return the message of {"itemNotFound": {"message": …}} (Nova), {"message": …} or {"error": …}, or None."""
    if not isinstance(body, dict):
        return None
    if isinstance(body.get("message"), str):
        return str(body["message"])
    for value in body.values():
        if isinstance(value, dict) and isinstance(value.get("message"), str):
            return str(value["message"])
        if isinstance(value, str):
            return value
    return None
