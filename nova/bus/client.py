"""The client side: calling another service through its declared interface."""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

import amqp
import kombu.exceptions
import oslo_messaging as messaging

from nova import context, exception, metrics
from nova.bus import interface, transport

LOG = logging.getLogger(__name__)

# How often a broker that cannot be reached is tried again before the sender is told: a few seconds, not for ever.
_RETRIES = 2
_UNREACHABLE = (messaging.MessagingTimeout, messaging.MessageDeliveryFailure, messaging.MessageUndeliverable,
                kombu.exceptions.KombuError, amqp.AMQPError, OSError)

R = TypeVar("R")
I = TypeVar("I", bound=interface.Interface)  # noqa: E741


def client(bus: messaging.RPCTransport, declared: type[I]) -> I:
    """A proxy that has the declared methods: ``proxy.method(ctx, ...)`` asks any server of the topic.

    Raises what the other side raised (:class:`~nova.exception.NovaException`), and
    ServiceUnavailable when no answer came in time or the broker could not be reached.
    """
    return cast(I, _Proxy(bus, declared, None))


def patiently(ask: Callable[[], R], what: str) -> R:
    """Ask until somebody answers: for a service that starts before its neighbours do."""
    while True:
        try:
            return ask()
        except exception.ServiceUnavailable as error:
            LOG.warning("Waiting for %s: %s", what, error)
            time.sleep(0.5)


def at(proxy: I, host: str) -> I:
    """The same proxy, addressed to the server on ``host``."""
    plain = cast(_Proxy[I], proxy)
    return cast(I, _Proxy(plain.bus, plain.declared, host))


class _Proxy(Generic[I]):
    def __init__(self, bus: messaging.RPCTransport, declared: type[I], host: str | None) -> None:
        self.bus = bus
        self.declared = declared
        target = messaging.Target(topic=declared.topic, namespace=declared.namespace, version="1.0", server=host)
        self._client = messaging.get_rpc_client(bus, target, serializer=transport.ContextSerializer())
        # Nobody listening is told at once, not by a timeout.
        self._certain = self._client.prepare(
            retry=_RETRIES, transport_options=messaging.TransportOptions(at_least_once=True))

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = self.declared.methods().get(name)
        if method is None:
            raise AttributeError(f"{self.declared.__name__} declares no {name!r}")

        label = f"{self.declared.namespace}.{name}"

        def send(ctx: context.RequestContext, *args: Any, **kwargs: Any) -> Any:
            kwargs.update(zip(method.parameters, args, strict=False))
            if metrics.on:
                return metrics.sent(label, method.kind, lambda: self._send(method, ctx, kwargs))
            return self._send(method, ctx, kwargs)

        setattr(self, name, send)  # so that __getattr__ runs once per method
        return send

    def _send(self, method: interface.Method, ctx: context.RequestContext, kwargs: dict[str, Any]) -> Any:
        payload = method.encode(method.args_type(**kwargs))
        transport.SENT.add(f"{self.declared.namespace}.{method.name}", 2 if method.kind == "call" else 1)
        try:
            if method.kind == "call":
                _reach(self.bus)
                asked = self._certain.prepare(timeout=method.timeout) if method.timeout else self._certain
                return _answer(method, asked.call(ctx, method.name, p=payload))
            if method.kind == "fanout":
                # One that is lost shows as a gap and is made up for; waiting would hold up its sender.
                self._client.prepare(fanout=True, retry=1).cast(ctx, method.name, p=payload)
            else:
                self._certain.cast(ctx, method.name, p=payload)
        except _UNREACHABLE as error:
            raise exception.ServiceUnavailable(
                f"No answer from {self.declared.topic} to {method.name}: {type(error).__name__}.") from error


_REACHED: weakref.WeakSet[messaging.RPCTransport] = weakref.WeakSet()


def _reach(bus: messaging.RPCTransport) -> None:
    """Fail if there is no broker: the first call makes the queue for answers, and would wait for one without end."""
    if bus not in _REACHED:
        nobody = messaging.get_rpc_client(bus, messaging.Target(topic="nobody"))
        nobody.prepare(retry=_RETRIES).cast({}, "nothing")
        _REACHED.add(bus)


def _answer(method: interface.Method, reply: dict[str, Any]) -> Any:
    if "e" in reply:
        name, message, kwargs = reply["e"]
        raise exception.NovaException.rebuild(name, message, kwargs)
    return method.decode_result(reply["r"])
