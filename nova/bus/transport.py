"""The connection to the broker, its serializer, and counters of what was sent."""

from __future__ import annotations

import collections
import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from oslo_config import cfg
from oslo_service import backend

from nova import context, metrics, tracing


@contextlib.contextmanager
def _without_eventlet() -> Iterator[None]:
    """futurist loads eventlet wherever it is installed; with its DNS it is a fifth of a service's memory."""
    if "eventlet" in sys.modules:
        yield
        return
    sys.modules["eventlet"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["eventlet"]


with _without_eventlet():
    # oslo.messaging asks oslo.service for its timers: they shall be native threads.
    backend.init_backend(backend.BackendType.THREADING)
    import oslo_messaging as messaging
    from oslo_messaging import opts


class ContextSerializer(messaging.NoOpSerializer):  # type: ignore[misc]
    """Turns a request context into the few fields that travel, and back. Payloads are opaque text."""

    def serialize_context(self, ctxt: context.RequestContext) -> dict[str, Any]:
        wire = ctxt.to_wire()
        if metrics.on:
            wire["sent_at"] = time.time()
        return wire

    def deserialize_context(self, ctxt: dict[str, Any]) -> context.RequestContext:
        found = context.RequestContext.from_wire(ctxt)
        if metrics.on:
            found.sent_at = ctxt.get("sent_at")
        if tracing.on:
            found.trace = tracing.current()
        return found


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

# Our defaults of oslo.messaging's options.
_DEFAULTS = {
    # Messages that a server works on at the same time: more threads than that wait for one another, and cost memory.
    "executor_thread_pool_size": 24,
    # Connections that messages are sent by, made as needed: as many as there are threads that may send at the same
    # time, since oslo.messaging makes more than that, too, but warns of each.
    "rpc_conn_pool_size": 48,
    # The most seconds between two attempts to reach a lost broker: everybody is back soon after it is.
    "rabbit_interval_max": 5,
}


def connect(conf: cfg.ConfigOpts) -> messaging.RPCTransport:
    """A transport for this process.

    Never connect before a fork: children that share a connection read each other's answers.
    """
    # The driver registers them as it is made, and looks at them at once.
    for group, options in opts.list_opts():
        for option in options:
            if option.name in _DEFAULTS:
                conf.register_opt(option, group=group)
                conf.set_default(option.name, _DEFAULTS[option.name], group=group)
    return messaging.get_rpc_transport(conf)
