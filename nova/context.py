"""The context of a request: caller, rights and request id, passed from the API to all other services."""

from __future__ import annotations

import contextlib
import contextvars
import time
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from oslo_context import context


class RequestContext(context.RequestContext):
    """An oslo.context with the fields that are sent over the message bus.

    The token is sent to conductors only, with the calls that declare it (:func:`nova.bus.with_token`), and is never
    stored. It authorizes requests to external services in the name of the caller. All other requests use the
    credentials of Nova, so that an operation can be resumed after the token has expired."""

    # roles and is_admin are for policies; the other fields identify the caller in logs, rows and actions.
    FIELDS = ("request_id", "global_request_id", "user_id", "project_id", "roles", "is_admin",
              "user_name", "project_name", "user_domain_id", "project_domain_id", "service_roles")
    # Fields that are sent only with calls that declare with_token.
    TOKEN = ("auth_token",)

    # Time of sending of the received message (seconds since the epoch), and the parent span. Set only if metrics and
    # tracing are enabled.
    sent_at: Any = None
    trace: Any = None
    # Received fields of the message until its signature is verified, and the host that sent the message according to
    # the signature ("": the control plane, or an unsigned message). Handlers must use calling_host for authorization.
    wire: Mapping[str, Any] = MappingProxyType({})
    calling_host: str = ""
    # Time of the monotonic clock until which the sender of the received message waits; None: no limit.
    until: float | None = None
    # Corrects the estimated clock of the sender; called when the signature of the message is verified.
    learn_clock: Callable[[], None] = staticmethod(lambda: None)

    def to_wire(self, token: bool = False) -> dict[str, Any]:
        """Return the fields to send, without unset ones, and with the token only if ``token`` is set."""
        values = {name: getattr(self, name) for name in (*self.FIELDS, *(self.TOKEN if token else ()))}
        return {name: value for name, value in values.items() if value}

    @classmethod
    def from_wire(cls, values: dict[str, Any]) -> RequestContext:
        """Return the context of the caller, and make it the current context of this thread for log lines."""
        fields = {name: values[name] for name in (*cls.FIELDS, *cls.TOKEN) if name in values}
        return cls(overwrite=True, **fields)


def admin() -> RequestContext:
    """Return a context for work that no user requested (heartbeats, recovery, periodic tasks)."""
    return RequestContext(overwrite=False, is_admin=True, roles=["admin"])


# Time of the monotonic clock at which the caller of this thread's work stops waiting; None: no caller waits.
_DEADLINE: contextvars.ContextVar[float | None] = contextvars.ContextVar("deadline", default=None)


@contextlib.contextmanager
def deadline(moment: float | None) -> Iterator[None]:
    """Set the deadline of the block, by the monotonic clock. It does not apply to other threads."""
    token = _DEADLINE.set(moment)
    try:
        yield
    finally:
        _DEADLINE.reset(token)


def too_late() -> bool:
    """Return True if the deadline of this thread's work has passed, so that its caller has given up."""
    moment = _DEADLINE.get()
    return moment is not None and time.monotonic() > moment


def seconds_left() -> float | None:
    """Return the seconds until the deadline of this thread's work, or None if there is no deadline."""
    moment = _DEADLINE.get()
    return None if moment is None else moment - time.monotonic()


def begun() -> None:
    """Remove the deadline after the first write: the work must now be completed even if its caller gave up."""
    _DEADLINE.set(None)
