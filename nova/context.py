"""Who asks for something, and under which request id: travels from the API to the last compute."""

from __future__ import annotations

import contextlib
import contextvars
import time
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from oslo_context import context


class RequestContext(context.RequestContext):
    """The oslo.context of a request, cut down to what the bus carries.

    The token goes to conductors only, with the calls that declare it (:func:`nova.bus.with_token`), and is never
    stored: outside services are asked by it what the caller may see and make. Everything else is done with the
    service's own credentials, so an operation can be resumed after the token has expired.
    """

    # roles and is_admin decide policy; the rest names the caller in logs, rows and actions.
    FIELDS = ("request_id", "global_request_id", "user_id", "project_id", "roles", "is_admin",
              "user_name", "project_name", "user_domain_id", "project_domain_id", "service_roles")
    # What travels beside them where it is wanted.
    TOKEN = ("auth_token",)

    # Of the message that brought it, where counting and tracing are on: when it was sent (seconds since the epoch),
    # and the span to go on below.
    sent_at: Any = None
    trace: Any = None
    # All that its message said beside the payload, and the host that has proved to be its sender ("": the control
    # plane, or nobody who has to prove it). Whoever handles a message believes this, not what the fields say.
    wire: Mapping[str, Any] = MappingProxyType({})
    asking_host: str = ""
    # Of the message that brought it: the monotonic time until which its sender waits; None: no limit.
    until: float | None = None

    def to_wire(self, token: bool = False) -> dict[str, Any]:
        """The fields that the bus carries, without those that are unset; the ``token`` only if it is wanted there."""
        values = {name: getattr(self, name) for name in (*self.FIELDS, *(self.TOKEN if token else ()))}
        return {name: value for name, value in values.items() if value}

    @classmethod
    def from_wire(cls, values: dict[str, Any]) -> RequestContext:
        """The context of the caller; becomes the current one of this thread (for the log lines)."""
        known = {name: values[name] for name in (*cls.FIELDS, *cls.TOKEN) if name in values}
        return cls(overwrite=True, **known)


def admin() -> RequestContext:
    """A context for work that Nova does on its own account (heartbeats, recovery, periodic tasks)."""
    return RequestContext(overwrite=False, is_admin=True, roles=["admin"])


# When (by the monotonic clock) nobody waits any more for what this thread does; None: it is for nobody.
_WANTED_UNTIL: contextvars.ContextVar[float | None] = contextvars.ContextVar("wanted_until", default=None)


@contextlib.contextmanager
def wanted_until(moment: float | None) -> Iterator[None]:
    """The block answers somebody who waits until then, by the monotonic clock. It does not count in other threads."""
    token = _WANTED_UNTIL.set(moment)
    try:
        yield
    finally:
        _WANTED_UNTIL.reset(token)


def too_late() -> bool:
    """Whether whoever asked for this has been told by now that it failed."""
    moment = _WANTED_UNTIL.get()
    return moment is not None and time.monotonic() > moment


def seconds_left() -> float | None:
    """Return for how many seconds somebody waits for what this thread does; None if nobody does, or for ever."""
    moment = _WANTED_UNTIL.get()
    return None if moment is None else moment - time.monotonic()


def begun() -> None:
    """Something was written: from now on this is done to its end, whether anybody waits or not."""
    _WANTED_UNTIL.set(None)
