"""The connection to the broker, its serializer, and counters of what was sent."""

from __future__ import annotations

import collections
import threading
from typing import Any

from oslo_config import cfg
from oslo_service import backend

from nova import context

# oslo.messaging asks oslo.service for its timers; without this it would load eventlet for them.
backend.init_backend(backend.BackendType.THREADING)

import oslo_messaging as messaging  # noqa: E402


class ContextSerializer(messaging.NoOpSerializer):  # type: ignore[misc]
    """Turns a request context into the few fields that travel, and back. Payloads are opaque text."""

    def serialize_context(self, ctxt: context.RequestContext) -> dict[str, Any]:
        return ctxt.to_wire()

    def deserialize_context(self, ctxt: dict[str, Any]) -> context.RequestContext:
        return context.RequestContext.from_wire(ctxt)


class Counter:
    """Messages sent by this process, by "namespace.method"; an answered call counts as two."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sent: collections.Counter[str] = collections.Counter()

    def add(self, name: str, messages: int) -> None:
        with self._lock:
            self._sent[name] += messages

    def take(self) -> dict[str, int]:
        """What was counted since the last time."""
        with self._lock:
            taken, self._sent = dict(self._sent), collections.Counter()
        return taken


SENT = Counter()

# The most seconds between two attempts to reach a lost broker again.
_RECONNECT = 5


def connect(conf: cfg.ConfigOpts) -> messaging.RPCTransport:
    """A transport for this process.

    Never connect before a fork: children that share a connection read each other's answers.
    """
    transport = messaging.get_rpc_transport(conf)
    if "oslo_messaging_rabbit" in conf:
        # Everybody is back soon after the broker is.
        conf.set_default("rabbit_interval_max", _RECONNECT, group="oslo_messaging_rabbit")
    return transport
