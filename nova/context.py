"""Who asks for something, and under which request id: travels from the API to the last compute."""

from __future__ import annotations

from typing import Any

from oslo_context import context


class RequestContext(context.RequestContext):
    """The oslo.context of a request, cut down to what the bus carries.

    The token itself never leaves the API process: back ends that need Keystone use the
    service's own credentials, so an operation can be resumed after the token has expired.
    """

    # roles and is_admin decide policy; the rest names the caller in logs, rows and actions.
    FIELDS = ("request_id", "global_request_id", "user_id", "project_id", "roles", "is_admin",
              "user_name", "project_name", "user_domain_id", "project_domain_id", "service_roles")

    # Of the message that brought it, where counting and tracing are on: when it was sent (seconds since the epoch),
    # and the span to go on below.
    sent_at: Any = None
    trace: Any = None

    def to_wire(self) -> dict[str, Any]:
        """The fields that the bus carries, without those that are unset."""
        values = {name: getattr(self, name) for name in self.FIELDS}
        return {name: value for name, value in values.items() if value}

    @classmethod
    def from_wire(cls, values: dict[str, Any]) -> RequestContext:
        """The context of the caller; becomes the current one of this thread (for the log lines)."""
        known = {name: values[name] for name in cls.FIELDS if name in values}
        return cls(overwrite=True, **known)


def admin() -> RequestContext:
    """A context for work that Nova does on its own account (heartbeats, recovery, periodic tasks)."""
    return RequestContext(overwrite=False, is_admin=True, roles=["admin"])
