"""RPC clients: proxies that call another service through its declared interface."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

import msgspec
import oslo_messaging as messaging

from nova import context, exception
from nova.bus import broker, interface, message_signing, transport
from nova.bus.circuit import circuit
from nova.bus.driver.broker import BrokerBlocked
from nova.bus.driver.driver import Delivery
from nova.telemetry import metrics

LOG = logging.getLogger(__name__)

_RETRIES = 2  # number of attempts to reach the broker again before a message fails
_SHORTEST = 0.1  # minimum timeout of a call in seconds, even if the checks before the call took longer
_REPLY_TIME = 1.0  # seconds of a call's timeout (but at most a tenth of it) that are reserved for the reply
_FANOUT_SECONDS = 10.0  # timeout of a fanout in seconds, of which a fraction is for the confirmation by the broker
# Seconds after which a cast without a declared timeout expires. Receivers poll the database at shorter intervals.
_CAST_SECONDS = 300.0
# Maximum seconds between two attempts of a service that waits for another service to start.
_MAX_PAUSE = 10.0
_UNREACHABLE = (messaging.MessagingTimeout, messaging.MessageDeliveryFailure, messaging.MessageUndeliverable, OSError)
# Maximum number of characters of an error from a host, and of a logged decoding error.
_MAX_MESSAGE, _MAX_LOGGED = 2000, 200
# Errors that a server raises if its release does not have the method.
_UNKNOWN_METHOD = frozenset({"NoSuchMethod", "UnsupportedVersion"})

R = TypeVar("R")
I = TypeVar("I", bound=interface.Interface)  # noqa: E741


def client(bus: messaging.RPCTransport, declared: type[I]) -> I:
    """Return a proxy with the methods of the interface: ``proxy.method(ctx, ...)`` calls any server of the topic. The
    methods raise the error of the server (:class:`~nova.exception.NovaException`), and ServiceUnavailable if no reply
    arrives before the timeout or the broker is unreachable."""
    return cast(I, _Proxy(bus, declared, None))


def retry_until_available(send: Callable[[], R], server: str) -> R:
    """Repeat a call until it does not raise ServiceUnavailable, for services that start before ``server`` does. Pauses
    are random and grow to ten seconds, so that thousands of hosts do not call at the same time."""
    pause = 0.5
    while True:
        try:
            return send()
        except exception.ServiceUnavailable as error:
            LOG.warning("No response from %s, retrying: %s", server, error.inside)
            time.sleep(random.uniform(pause / 2, pause))  # noqa: S311
            pause = min(pause * 1.5, _MAX_PAUSE)


def retry_once(send: Callable[[], R]) -> R:
    """Make an idempotent call, and repeat it once after ServiceUnavailable. If the first server is frozen, the second
    call reaches another server. Raises ServiceUnavailable."""
    try:
        return send()
    except exception.ServiceUnavailable as error:
        LOG.info("RPC call failed, sending it once more: %s", error)
        return send()


def at(proxy: I, host: str) -> I:
    """Return a copy of the proxy that calls the server on ``host``."""
    plain = cast(_Proxy[I], proxy)
    return cast(I, _Proxy(plain.bus, plain.declared, host, plain.seconds))


def within(proxy: I, seconds: float) -> I:
    """Return a copy of the proxy whose calls time out, and whose casts expire, after ``seconds``."""
    plain = cast(_Proxy[I], proxy)
    return cast(I, _Proxy(plain.bus, plain.declared, plain.host, seconds))


class _Proxy(Generic[I]):
    def __init__(self, bus: messaging.RPCTransport, declared: type[I], host: str | None,
                 seconds: float | None = None) -> None:
        self.bus, self.declared, self.host, self.seconds = bus, declared, host, seconds
        target = messaging.Target(topic=declared.topic, namespace=declared.namespace, version="1.0", server=host)
        self._keys = message_signing.keys_of(bus)
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
                return result_of(method, self._call(method, ctx, payload), self.declared.on_hosts)
            if method.kind == "fanout":
                # Do not wait long: receivers detect a lost message by a gap in the sequence numbers.
                outgoing = transport.Outgoing(ctx, sign=self._signer(method, payload))
                self._client.prepare(fanout=True, retry=1, transport_options=Delivery(
                    seconds=_FANOUT_SECONDS, mandatory=False)).cast(outgoing, method.name, p=payload)
            else:
                seconds = self.seconds or method.timeout or _CAST_SECONDS
                self._client.prepare(retry=_RETRIES, transport_options=Delivery(
                    expires=seconds, seconds=self.bus.conf.rpc_response_timeout)).cast(
                        transport.Outgoing(ctx, seconds, sign=self._signer(method, payload)), method.name, p=payload)
        except messaging.RemoteError as error:
            if error.exc_type not in _UNKNOWN_METHOD:
                raise
            raise exception.ServiceUnavailable(
                f"{self.declared.topic} runs a release without {method.name}.") from error
        except BrokerBlocked as error:
            raise exception.ServiceUnavailable(str(error)) from error
        except _UNREACHABLE as error:
            raise exception.ServiceUnavailable(
                f"No answer from {self.declared.topic} to {method.name}: {type(error).__name__}.") from error

    def _call(self, method: interface.Method, ctx: context.RequestContext, payload: str) -> Any:
        seconds: float = self.seconds or method.timeout or self.bus.conf.rpc_response_timeout
        left = context.seconds_left()
        if left is not None:  # the caller of this request waits only for the remaining time
            if left <= 0:
                raise exception.ServiceUnavailable("The request has expired: its client no longer waits for an answer.")
            seconds = min(seconds, left)
        until = time.monotonic() + seconds
        if self.host is None:
            with circuit(self.bus, self.declared.topic).call(seconds):
                return self._request(method, ctx, payload, until)
        if broker.listeners(self.bus, f"{self.declared.topic}.{self.host}", seconds) == 0:
            raise exception.NoListeners(f"{self.declared.topic} on {self.host} does not answer.")
        return self._request(method, ctx, payload, until)

    def _request(self, method: interface.Method, ctx: context.RequestContext, payload: str, until: float) -> Any:
        """Send a call and return its reply, which must arrive before ``until`` (monotonic time)."""
        seconds = max(_SHORTEST, until - time.monotonic())
        # Let the message expire early enough for the reply to arrive before the timeout.
        lifetime = seconds - min(_REPLY_TIME, seconds / 10)
        outgoing = transport.Outgoing(ctx, lifetime, method.token, self._signer(method, payload))
        return self._client.prepare(
            timeout=seconds, retry=_RETRIES, transport_options=Delivery(expires=lifetime, seconds=seconds)).call(
                outgoing, method.name, p=payload)

    def _signer(self, method: interface.Method, payload: str) -> Callable[[dict[str, Any]], dict[str, Any] | None]:
        address = message_signing.Address(f"{self.declared.namespace}.{method.name}",
                                          self.host or "" if self.declared.on_hosts else "")
        return lambda wire: self._keys.sign(address, wire, payload)


class _Reply(msgspec.Struct):
    """A reply: ``r`` is the result, ``e`` the class, message and arguments of an error."""

    r: str | None = None
    e: tuple[str, str, dict[str, Any]] | None = None


def result_of(method: interface.Method, reply: Any, from_host: bool) -> Any:
    """Return the result in a reply. Raises the error in it, and ServiceUnavailable for a malformed reply."""
    try:
        decoded = msgspec.convert(reply, _Reply)
        if decoded.e is None:
            return method.decode_result(decoded.r or "", from_host)
        error = _rebuilt(*decoded.e, from_host)
    except (msgspec.MsgspecError, TypeError) as malformed:
        LOG.warning("Cannot decode the reply to %s: %s", method.name, str(malformed)[:_MAX_LOGGED])
        raise exception.ServiceUnavailable(f"The reply to {method.name} cannot be decoded.") from malformed
    raise error


def _rebuilt(name: str, message: str, kwargs: dict[str, Any], from_host: bool) -> exception.NovaException:
    """Return the error in a reply. Raises TypeError for wrong arguments."""
    if from_host:  # limit texts of hosts, which are shown to users and stay in memory
        message = message[:_MAX_MESSAGE]
        kwargs = {key: value[:_MAX_MESSAGE] if isinstance(value, str) else value for key, value in kwargs.items()
                  if value is None or isinstance(value, str | int | float)}
    return exception.NovaException.rebuild(name, message, kwargs)
