"""The connection to the broker, its serializer, and counters of sent messages."""

from __future__ import annotations

import collections
import dataclasses
import random
import threading
from collections.abc import Callable
from typing import Any

import oslo_messaging as messaging
from oslo_config import cfg

from nova import context, exception
from nova.bus import deadlines, message_signing, oslo
from nova.bus.driver import options as driver_options
from nova.bus.driver.requests import ARRIVAL
from nova.telemetry import metrics, tracing


@dataclasses.dataclass(frozen=True)
class Outgoing:
    """The context of a message, and the seconds after which the message expires (None: never). With ``token`` the
    caller's token is sent, too. ``sign`` returns the signature for the serialized context."""

    ctx: context.RequestContext
    seconds: float | None = None
    token: bool = False
    sign: Callable[[dict[str, Any]], dict[str, Any] | None] = lambda _wire: None


class ContextSerializer(messaging.NoOpSerializer):  # type: ignore[misc]
    """A serializer of request contexts; payloads are opaque text. ``measured`` is True if the driver computes the
    deadline of a message on arrival."""

    def __init__(self, measured: bool = True) -> None:
        self._measured = measured
        self._clocks = deadlines.Clocks()

    def serialize_context(self, ctxt: Outgoing) -> dict[str, Any]:
        wire = {**ctxt.ctx.to_wire(ctxt.token), **deadlines.stamp(ctxt.seconds)}
        signature = ctxt.sign(wire)
        return wire if signature is None else {**wire, message_signing.FIELD: signature}

    def deserialize_context(self, ctxt: dict[str, Any]) -> context.RequestContext:
        ctx = context.RequestContext.from_wire(ctxt)
        ctx.wire = ctxt
        arrival = ctxt.pop(ARRIVAL, deadlines.Arrival()) if self._measured else self._clocks.arrival(
            ctxt, message_signing.claimed_sender(ctxt))
        ctx.until, ctx.learn_clock = arrival.until, arrival.learn
        if metrics.on:
            ctx.sent_at = ctxt.get("sent_at")
        if tracing.on:
            ctx.trace = tracing.current()
        return ctx


class Counter:
    """Counters of the messages sent by this process, by "namespace.method". A call counts as two, with its reply."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sent: collections.Counter[str] = collections.Counter()

    def add(self, name: str, messages: int) -> None:
        with self._lock:
            self._sent[name] += messages

    def take(self) -> dict[str, int]:
        """Return the counters and reset them."""
        with self._lock:
            taken, self._sent = dict(self._sent), collections.Counter()
        return taken


SENT = Counter()

# Nova's defaults of oslo.messaging's options.
_DEFAULTS = {
    # Timeout of a call in seconds. The request of a user occupies a thread meanwhile.
    "rpc_response_timeout": 20,
    # Messages that the broker sends to a server in advance. A frozen server withholds them from the other servers of
    # the topic. More than four do not speed up the handling.
    "rabbit_qos_prefetch_count": 4,
    # Seconds that a reply is kept for a caller whose queue is missing (the caller declares it again after a lost
    # connection), counted from the broker's first refusal.
    "kombu_missing_consumer_retry_timeout": 10,
    # Seconds after which the broker deletes the fanout and reply queues of a process that has died.
    "rabbit_transient_queues_ttl": 300,
    # Messages that a server handles at the same time. More threads only wait for each other and use memory.
    "executor_thread_pool_size": 24,
    # Maximum number of connections for publishing, made on demand: the number of threads that may publish at once.
    "rpc_conn_pool_size": 48,
    # Maximum seconds between two attempts to reconnect, so that services return soon after the broker.
    "rabbit_interval_max": 5,
}
# Range of an additional delay in seconds before each attempt to reconnect. Each process draws its own delay, so that
# 10,000 hosts do not reconnect at the same moment.
_RECONNECT = (0.25, 1.75)


def call_timeout(conf: cfg.ConfigOpts) -> float:
    """Return the timeout in seconds of calls whose declaration has none."""
    # oslo.messaging registers the option when it connects.
    return float(getattr(conf, "rpc_response_timeout", _DEFAULTS["rpc_response_timeout"]))


def transport_url(conf: cfg.ConfigOpts, url: str | None = None) -> messaging.TransportURL:
    """Return the transport URL with the driver that serves it. Nova's driver also serves ``rabbit://``, unless
    [rpc]rabbit_driver selects the other driver, and ``kombu+memory://``."""
    parsed = messaging.TransportURL.parse(conf, url)
    nova = "rpc" not in conf or conf.rpc.rabbit_driver == "nova"
    if parsed.transport == "kombu+memory":
        parsed.transport = "nova-memory"
    elif parsed.transport in ("rabbit", "kombu") and nova:
        parsed.transport = "nova-rabbit"
    return parsed


def connect(conf: cfg.ConfigOpts, host: str = "", url: str | None = None) -> messaging.RPCTransport:
    """Return a transport for this process, with the key of its configuration, or the key of ``host`` derived from it.
    Never connect before a fork: children that share a connection read each other's replies. Raises InvalidInput for a
    bad key file, or an option that the driver does not support."""
    defaults = {**_DEFAULTS, "kombu_reconnect_delay": random.uniform(*_RECONNECT)}  # noqa: S311
    for group, options in driver_options.of_library():  # the driver registers and reads them in one call
        for option in options:
            if option.name in defaults:
                conf.register_opt(option, group=group)
                conf.set_default(option.name, defaults[option.name], group=group)
    keys = message_signing.configured(conf)
    if host:
        keys = keys.of_host(host)
    bus = messaging.get_rpc_transport(conf, url=transport_url(conf, url))
    message_signing.set_keys(bus, keys)
    if keys.host:
        restrict = getattr(oslo.driver_of(bus), "restrict_to_host", None)
        if restrict is None:
            raise exception.InvalidInput(reason="[rpc]rabbit_driver = oslo needs more permissions than the broker "
                                                "account of a compute host has: use the driver nova on compute hosts")
        restrict(keys.host)
    return bus
