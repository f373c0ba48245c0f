"""The client side: calling another service through its declared interface."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

import msgspec
import oslo_messaging as messaging

from nova import context, exception
from nova.bus import broker, interface, seals, transport
from nova.bus.circuit import circuit
from nova.bus.driver.broker import BrokerBlocked
from nova.bus.driver.driver import Delivery
from nova.telemetry import metrics

LOG = logging.getLogger(__name__)

# How often a broker that cannot be reached is tried again before the sender is told: a few seconds, not for ever.
_RETRIES = 2
# Seconds that an answer may take to come back.
_ANSWER = 1.0
# Seconds of which a fanout may take a share until the broker has it.
_FANOUT_SECONDS = 10.0
# Seconds for which a cast is of use, if its declaration does not say: rows decide, and have been asked by then.
_CAST_SECONDS = 300.0
# The most seconds between two questions of those who wait for a service to start.
_LONGEST_PAUSE = 10.0
_UNREACHABLE = (messaging.MessagingTimeout, messaging.MessageDeliveryFailure, messaging.MessageUndeliverable, OSError)
# Characters of an error that a host tells, and of what is logged of an answer that cannot be read.
_MESSAGE, _LISTED = 2000, 200
# What a server of another release answers to a method that it has never heard of.
_UNKNOWN = frozenset({"NoSuchMethod", "UnsupportedVersion"})

R = TypeVar("R")
I = TypeVar("I", bound=interface.Interface)  # noqa: E741


def client(bus: messaging.RPCTransport, declared: type[I]) -> I:
    """A proxy that has the declared methods: ``proxy.method(ctx, ...)`` asks any server of the topic.

    Raises what the other side raised (:class:`~nova.exception.NovaException`), and
    ServiceUnavailable when no answer came in time or the broker could not be reached.
    """
    return cast(I, _Proxy(bus, declared, None))


def retry_until_available(ask: Callable[[], R], what: str) -> R:
    """Ask until somebody answers: for a service that starts before its neighbours do.

    More and more seldom, up to every ten seconds or so: thousands that wait for the same do not ask at the same time.
    """
    pause = 0.5
    while True:
        try:
            return ask()
        except exception.ServiceUnavailable as error:
            LOG.warning("Waiting for %s: %s", what, error)
            time.sleep(random.uniform(pause / 2, pause))  # noqa: S311
            pause = min(pause * 1.5, _LONGEST_PAUSE)


def ask_again(ask: Callable[[], R]) -> R:
    """Ask, and once more at once if nobody answers: whoever had the question may be frozen, and others are there.

    For what may be asked twice. Raises ServiceUnavailable.
    """
    try:
        return ask()
    except exception.ServiceUnavailable as error:
        LOG.info("Asking again: %s", error)
        return ask()


def at(proxy: I, host: str) -> I:
    """The same proxy, addressed to the server on ``host``."""
    plain = cast(_Proxy[I], proxy)
    return cast(I, _Proxy(plain.bus, plain.declared, host, plain.seconds))


def within(proxy: I, seconds: float) -> I:
    """The same proxy, whose calls are answered within ``seconds`` or fail, and whose casts are for nothing later."""
    plain = cast(_Proxy[I], proxy)
    return cast(I, _Proxy(plain.bus, plain.declared, plain.host, seconds))


class _Proxy(Generic[I]):
    def __init__(self, bus: messaging.RPCTransport, declared: type[I], host: str | None,
                 seconds: float | None = None) -> None:
        self.bus = bus
        self.declared = declared
        self.host = host
        self.seconds = seconds
        target = messaging.Target(topic=declared.topic, namespace=declared.namespace, version="1.0", server=host)
        self._keys = seals.keys_of(bus)
        self._client = messaging.get_rpc_client(bus, target, serializer=transport.ContextSerializer())

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
            broker.check(self.bus)
            if method.kind == "call":
                return answered(method, self._call(method, ctx, payload), self.declared.on_hosts)
            if method.kind == "fanout":
                # One that is lost shows as a gap and is made up for; waiting would hold up its sender.
                outgoing = transport.Outgoing(ctx, seal=self._seal(method, payload))
                self._client.prepare(fanout=True, retry=1, transport_options=Delivery(
                    seconds=_FANOUT_SECONDS, mandatory=False)).cast(outgoing, method.name, p=payload)
            else:
                self._cast(method, ctx, payload)
        except messaging.RemoteError as error:
            if error.exc_type not in _UNKNOWN:
                raise
            raise exception.ServiceUnavailable(
                f"{self.declared.topic} is of a release without {method.name}.") from error
        except BrokerBlocked as error:
            raise exception.ServiceUnavailable(str(error)) from error
        except _UNREACHABLE as error:
            raise exception.ServiceUnavailable(
                f"No answer from {self.declared.topic} to {method.name}: {type(error).__name__}.") from error

    def _call(self, method: interface.Method, ctx: context.RequestContext, payload: str) -> Any:
        seconds: float = self.seconds or method.timeout or self.bus.conf.rpc_response_timeout
        left = context.seconds_left()
        if left is not None:  # what is asked on behalf of a caller is of no use after that caller has given up
            if left <= 0:
                raise exception.ServiceUnavailable("Nobody waits for this any more: nothing was asked.")
            seconds = min(seconds, left)
        # What is written in the last moment would be answered too late.
        wanted = seconds - min(_ANSWER, seconds / 10)
        outgoing = transport.Outgoing(ctx, wanted, method.token, self._seal(method, payload))
        asked = self._client.prepare(timeout=seconds, retry=_RETRIES,
                                     transport_options=Delivery(expires=wanted, seconds=seconds))
        if self.host is None:
            with circuit(self.bus, self.declared.topic).call():
                return asked.call(outgoing, method.name, p=payload)
        if broker.listeners(self.bus, f"{self.declared.topic}.{self.host}") == 0:
            raise exception.NobodyListens(f"Nobody answers at {self.declared.topic} of {self.host}.")
        return asked.call(outgoing, method.name, p=payload)

    def _cast(self, method: interface.Method, ctx: context.RequestContext, payload: str) -> None:
        seconds = self.seconds or method.timeout or _CAST_SECONDS
        self._client.prepare(retry=_RETRIES, transport_options=Delivery(
            expires=seconds, seconds=self.bus.conf.rpc_response_timeout)).cast(
                transport.Outgoing(ctx, seconds, seal=self._seal(method, payload)), method.name, p=payload)

    def _seal(self, method: interface.Method, payload: str) -> Callable[[dict[str, Any]], dict[str, Any] | None]:
        address = seals.Address(f"{self.declared.namespace}.{method.name}",
                                self.host or "" if self.declared.on_hosts else "")
        return lambda wire: self._keys.seal(address, wire, payload)


class _Reply(msgspec.Struct):
    """``r``: the result; else the error's class, message and arguments."""

    r: str | None = None
    e: tuple[str, str, dict[str, Any]] | None = None


def answered(method: interface.Method, reply: Any, from_host: bool) -> Any:
    """What the other side has answered. Raises what it raised, and ServiceUnavailable for what is no answer."""
    try:
        known = msgspec.convert(reply, _Reply)
        if known.e is None:
            return method.decode_result(known.r or "", from_host)
        error = _rebuilt(*known.e, from_host)
    except (msgspec.MsgspecError, TypeError) as unreadable:
        LOG.warning("What was answered to %s cannot be read: %s", method.name, str(unreadable)[:_LISTED])
        raise exception.ServiceUnavailable(f"The answer to {method.name} cannot be read.") from unreadable
    raise error


def _rebuilt(name: str, message: str, kwargs: dict[str, Any], from_host: bool) -> exception.NovaException:
    """Raises TypeError."""
    if from_host:  # users read it, and whoever answers them holds it in memory
        message = message[:_MESSAGE]
        kwargs = {key: value[:_MESSAGE] if isinstance(value, str) else value for key, value in kwargs.items()
                  if value is None or isinstance(value, str | int | float)}
    return exception.NovaException.rebuild(name, message, kwargs)
