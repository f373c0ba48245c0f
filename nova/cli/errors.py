"""What a command ends with when it cannot be done: a line for the user, and an exit code."""

from __future__ import annotations

import re
from typing import Any


class CommandError(Exception):
    """The command failed: exit code 1."""

    exit_code = 1


class UsageError(CommandError):
    """The arguments do not go together: exit code 2."""

    exit_code = 2


class NotFound(CommandError):
    """Nothing, or more than one thing, has this name or id: exit code 3."""

    exit_code = 3


class LoginFailed(CommandError):
    """Nobody is logged in, or the service cannot be reached: exit code 4."""

    exit_code = 4


# What helps, by the status and by what the message says; the first that fits.
_HINTS: tuple[tuple[int, str, str], ...] = (
    (401, "", "Log in again: source your openrc file, or choose a cloud with --os-cloud."),
    (403, "quota", "nova limits shows what is used; delete something, or ask an administrator for a larger quota "
                   "(nova quota-update)."),
    (403, "policy", "Your roles do not allow it; an administrator may."),
    (406, "", "Choose a version that the server knows with --os-compute-api-version; nova version-list shows them."),
    (409, "locked", "nova unlock SERVER, or ask who locked it (nova show tells the reason)."),
    (409, "task_state", "Something else is done with the server: nova watch SERVER shows it."),
    (409, "vm_state", "nova show SERVER tells its state, nova instance-action-list SERVER what was done to it."),
    (413, "", "Wait, and try again."),
    (429, "", "Wait, and try again."),
    (503, "", "The service is overloaded or starting: wait, and try again."),
)


class Refused(CommandError):
    """The service answered with an error; ``status`` is HTTP's."""

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
    """What a user may do about such an answer, if there is something."""
    for known, pattern, hint in _HINTS:
        if known == status and re.search(pattern, message, re.IGNORECASE):
            return hint
    return None


def refused(response: Any) -> Refused:
    """What the body of an answer with an error status says, whichever service it is of."""
    try:
        body = response.json()
    except ValueError:
        body = None
    message = _message_in(body) or response.text.strip() or response.reason
    return Refused(response.status_code, message, response.headers.get("x-openstack-request-id"))


def _message_in(body: Any) -> str | None:
    """{"itemNotFound": {"message": …}} of Nova and its like, {"message": …} or {"error": …} of others."""
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
