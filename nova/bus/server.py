"""RPC servers: implementation objects that serve declared interfaces."""

from __future__ import annotations

import concurrent.futures
import contextlib
import logging
import time
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import oslo_messaging as messaging

from nova import context, exception
from nova.bus import interface, message_signing, oslo, transport
from nova.bus.circuit import Ping
from nova.bus.driver.driver import Driver, Server
from nova.bus.driver.requests import DROPPED
from nova.telemetry import metrics, worker_stats

LOG = logging.getLogger(__name__)


def serve(bus: messaging.RPCTransport, topic: str, host: str,
          implementations: Iterable[tuple[type[interface.Interface], Any]],
          threads: int | None = None) -> messaging.RPCServer:
    """Start an RPC server for ``host`` on ``topic``; each implementation has the methods of its interface. At most
    ``threads`` messages are taken from the broker and handled at the same time (None:
    [DEFAULT]executor_thread_pool_size). Expired messages are dropped. To stop the server, call :func:`stop_taking`,
    then ``server.wait()`` until all calls are answered."""
    keys = message_signing.keys_of(bus)
    endpoints = [Ping(), *(endpoint(declared, implementation, host, keys) for declared, implementation in
                           implementations)]
    driver = oslo.driver_of(bus)
    server = messaging.get_rpc_server(bus, Server(topic, host, threads), endpoints, executor="threading",
                                      serializer=transport.ContextSerializer(measured=isinstance(driver, Driver)))
    server.start(override_pool_size=threads)
    return server


def stop_taking(*servers: messaging.RPCServer) -> None:
    """Stop receiving messages and let running calls continue. The broker gives messages that were delivered but not
    started to the other servers of the topic immediately."""
    with concurrent.futures.ThreadPoolExecutor(len(servers) or 1) as pool:
        list(pool.map(lambda server: server.stop(), servers))


def endpoint(declared: type[interface.Interface], implementation: Any, host: str = "",
             keys: message_signing.Keys | None = None) -> Any:
    """Return an oslo.messaging endpoint with one method for each method of the interface."""
    handlers: dict[str, Any] = {}
    for name, method in declared.methods().items():
        address = message_signing.Address(f"{declared.namespace}.{name}", host if declared.on_hosts else "")
        authorizer = Authorizer(address, method, keys or message_signing.Keys())
        handlers[name] = staticmethod(_handler(authorizer, method, getattr(implementation, name)))
    handlers["target"] = messaging.Target(namespace=declared.namespace, version="1.0")
    return type(f"{declared.__name__}Endpoint", (), handlers)()


class Authorizer:
    """Authorization of the calls of a method: which callers may call it, and with which arguments."""

    def __init__(self, address: message_signing.Address, method: interface.Method, keys: message_signing.Keys) -> None:
        self.label = address.method
        self._address, self._method, self._keys = address, method, keys

    def verify(self, ctx: context.RequestContext, payload: str) -> str:
        """Verify the signature and return the sending host ("": the control plane). Raises CallerRefused."""
        host = self._keys.verified_sender(self._address, ctx.wire, payload)
        ctx.learn_clock()
        return host

    def authorize(self, ctx: context.RequestContext, payload: str) -> Any:
        """Verify the signature, set ``ctx.calling_host`` and return the arguments of the message. A host may not name
        another host in the argument ``host``. Raises CallerRefused, DecodeError."""
        host = self.verify(ctx, payload)
        if host and not self._method.by_hosts:
            raise exception.CallerRefused(f"{self.label} is not for hosts: host {host} may not call it.")
        args = self._method.decode_args(payload, from_host=bool(host))
        named = getattr(args, interface.HOST_PARAMETER, host)
        if host and named != host:
            raise exception.CallerRefused(f"{self.label} is refused: host {host} must not act for host {named}.")
        ctx.calling_host, ctx.wire = host, {}
        if host:
            # A host has no rights of a user, whatever its message claims.
            ctx.roles, ctx.service_roles, ctx.is_admin, ctx.auth_token = [], [], False, None
        return args


def _handler(authorizer: Authorizer, method: interface.Method,
             function: Callable[..., Any]) -> Callable[[context.RequestContext, str], dict[str, Any] | None]:
    label = authorizer.label

    # A plain function without functools.wraps, since the dispatcher inspects its signature.
    def handle(ctx: context.RequestContext, p: str) -> dict[str, Any] | None:
        if ctx.until is not None and time.monotonic() > ctx.until:
            LOG.warning("Dropped an expired %s message: the sender no longer waits for it", label)
            metrics.BUS_DROPPED.inc(label)
            with contextlib.suppress(exception.CallerRefused):
                authorizer.verify(ctx, p)  # corrects the estimated clock of the sender, which may have been changed
            return DROPPED
        with context.deadline(ctx.until), worker_stats.METER.work():
            return metrics.handled(label, ctx.sent_at, lambda: answer(ctx, p)) if metrics.on else answer(ctx, p)

    def answer(ctx: context.RequestContext, p: str) -> dict[str, Any] | None:
        try:
            args = authorizer.authorize(ctx, p)
            if context.too_late():  # expired while it waited for the interpreter or was decoded
                metrics.BUS_DROPPED.inc(label)
                raise exception.ServiceUnavailable(f"The call of {label} expired before it started.")
            result = function(ctx, **{name: getattr(args, name) for name in method.parameters})
            if method.kind != "call":
                return None
            return {"r": method.encode(result)}
        except exception.CallerRefused as error:
            LOG.warning("Refused a message: %s", error)
            return {"e": [error.wire_name, error.message, error.kwargs]}
        except exception.NovaException as error:
            if method.kind != "call":
                LOG.warning("Cannot process a %s message: %s", label, error)
            return {"e": [error.wire_name, error.message, error.kwargs]}
        except msgspec.DecodeError as error:
            LOG.error("Refused a malformed message for %s: %s", method.name, error)
            return {"e": ["InvalidInput", f"Malformed message for {method.name}: {error}", {}]}
        except Exception:
            LOG.exception("Unexpected error in %s", method.name)
            return {"e": ["InternalError", f"Unexpected error in {method.name}.", {}]}

    return handle
