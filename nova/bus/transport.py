"""The connection to the broker, its serializer, and counters of what was sent."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import random
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any

from oslo_config import cfg
from oslo_service import backend

from nova import context
from nova.bus import deadlines, seals
from nova.telemetry import metrics, tracing


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
    from kombu.transport import TRANSPORT_ALIASES
    from oslo_messaging import opts
    from oslo_messaging._drivers import impl_rabbit

    from nova.bus import host_connection

# Imported where it is used; kombu remembers the first that it has found.
TRANSPORT_ALIASES.update({"memory": "nova.bus.memory:Transport", "amqp": "nova.bus.verified:Transport"})


@dataclasses.dataclass(frozen=True)
class Outgoing:
    """The context of a message, and for how many seconds it is wanted (None: however late it comes).

    ``token``: the caller's token goes along. ``seal``: makes the seal of what travels.
    """

    ctx: context.RequestContext
    seconds: float | None = None
    token: bool = False
    seal: Callable[[dict[str, Any]], dict[str, Any] | None] = lambda _wire: None


class ContextSerializer(messaging.NoOpSerializer):  # type: ignore[misc]
    """Turns a request context into the few fields that travel, and back. Payloads are opaque text."""

    def serialize_context(self, ctxt: Outgoing) -> dict[str, Any]:
        wire = {**ctxt.ctx.to_wire(ctxt.token), **deadlines.stamp(ctxt.seconds)}
        seal = ctxt.seal(wire)
        return wire if seal is None else {**wire, seals.SEAL: seal}

    def deserialize_context(self, ctxt: dict[str, Any]) -> context.RequestContext:
        found = context.RequestContext.from_wire(ctxt)
        found.wire = ctxt
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
    # Seconds that a caller waits; the request of a user holds a thread meanwhile.
    "rpc_response_timeout": 20,
    # Messages on their way to a server that has not taken them: what a frozen one keeps from the others. Above four
    # none is handled sooner.
    "rabbit_qos_prefetch_count": 4,
    # Seconds that an answer is kept for somebody whose queue is not there (it is made again after a lost connection),
    # since the broker said so.
    "kombu_missing_consumer_retry_timeout": 10,
    # Seconds after which the broker forgets the queues of a process that has died, with the news and answers in them.
    "rabbit_transient_queues_ttl": 300,
    # Messages that a server works on at the same time: more threads than that wait for one another, and cost memory.
    "executor_thread_pool_size": 24,
    # Connections that messages are sent by, made as needed: as many as there are threads that may send at the same
    # time, since oslo.messaging makes more than that, too, but warns of each.
    "rpc_conn_pool_size": 48,
    # The most seconds between two attempts to reach a lost broker: everybody is back soon after it is.
    "rabbit_interval_max": 5,
}
# Seconds that a process lets pass, beside those, before each attempt to make a lost connection anew: each process its
# own, so that those of ten thousand hosts do not all come at the same moment (kombu_reconnect_splay only changes what
# oslo.messaging logs).
_RECONNECT = (0.25, 1.75)


def patience(conf: cfg.ConfigOpts) -> float:
    """For how many seconds a call may be carried out, unless its declaration says otherwise."""
    # The option is oslo.messaging's, and known when there is a connection.
    return float(getattr(conf, "rpc_response_timeout", _DEFAULTS["rpc_response_timeout"]))


def connect(conf: cfg.ConfigOpts, host: str = "") -> messaging.RPCTransport:
    """A transport for this process, with the key of its configuration; where that is the master key, of ``host``.

    Raises InvalidInput for a bad key file.

    Never connect before a fork: children that share a connection read each other's answers.
    """
    defaults = {**_DEFAULTS, "kombu_reconnect_delay": random.uniform(*_RECONNECT)}  # noqa: S311
    # The driver registers them as it is made, and looks at them at once.
    for group, options in opts.list_opts():
        for option in options:
            if option.name in defaults:
                conf.register_opt(option, group=group)
                conf.set_default(option.name, defaults[option.name], group=group)
    keys = seals.configured(conf)
    if host:
        keys = keys.of_host(host)
    made = messaging.get_rpc_transport(conf)
    seals.use(made, keys)
    if keys.host:
        _as_host(made, keys.host)
    return made


def _as_host(made: messaging.RPCTransport, host: str) -> None:
    """So that the account of a host needs no more than :func:`nova.bus.host_connection.permissions`."""
    driver = made._driver
    if isinstance(driver, impl_rabbit.RabbitDriver):
        driver._connection_pool.connection_cls = host_connection.HostConnection
        driver._get_reply_queue_name = lambda: f"reply_{host}_{uuid.uuid4().hex}"
