"""The server side: an implementation object answers for a declared interface."""

from __future__ import annotations

import concurrent.futures
import logging
import time
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import oslo_messaging as messaging

from nova import context, exception
from nova.bus import interface, oslo, seals, transport
from nova.bus.circuit import Ping
from nova.bus.driver.driver import Driver, Server
from nova.bus.driver.requests import DROPPED
from nova.telemetry import metrics, worker_stats

LOG = logging.getLogger(__name__)


def serve(
    bus: messaging.RPCTransport,
    topic: str,
    host: str,
    implementations: Iterable[tuple[type[interface.Interface], Any]],
    threads: int | None = None,
) -> messaging.RPCServer:
    """Start listening as ``host`` on ``topic``; each implementation has its interface's methods.

    At most ``threads`` messages are handled at the same time (None: [DEFAULT]executor_thread_pool_size), and no more
    are taken from the broker. What comes later than its sender wants is dropped.

    The caller stops it: :func:`stop_taking`, then ``server.wait()`` until all is answered.
    """
    keys = seals.keys_of(bus)
    endpoints = [Ping(), *(endpoint(declared, implementation, host, keys) for declared, implementation in
                           implementations)]
    driver = oslo.driver_of(bus)
    server = messaging.get_rpc_server(
        bus,
        Server(topic, host, threads),
        endpoints,
        executor="threading",
        serializer=transport.ContextSerializer(measured=isinstance(driver, Driver)),
    )
    server.start(override_pool_size=threads)
    return server


def stop_taking(*servers: messaging.RPCServer) -> None:
    """Take no more messages; what was begun goes on.

    Messages that the broker has delivered and no thread has begun go to the other servers of the topic now, not when
    this process has drained.
    """
    with concurrent.futures.ThreadPoolExecutor(len(servers) or 1) as pool:
        list(pool.map(lambda server: server.stop(), servers))


def endpoint(declared: type[interface.Interface], implementation: Any, host: str = "",
             keys: seals.Keys | None = None) -> Any:
    """What oslo.messaging dispatches to: one wire method per declared method, for those who may ask it."""
    handlers: dict[str, Any] = {}
    for name, method in declared.methods().items():
        address = seals.Address(f"{declared.namespace}.{name}", host if declared.on_hosts else "")
        gate = Gate(address, method, keys or seals.Keys())
        handlers[name] = staticmethod(_handler(gate, method, getattr(implementation, name)))
    handlers["target"] = messaging.Target(namespace=declared.namespace, version="1.0")
    return type(f"{declared.__name__}Endpoint", (), handlers)()


class Gate:
    """Who may ask a method, and what a host may say there: nothing in the name of another."""

    def __init__(self, address: seals.Address, method: interface.Method, keys: seals.Keys) -> None:
        self.label = address.method
        self._address = address
        self._method = method
        self._keys = keys

    def admit(self, ctx: context.RequestContext, payload: str) -> Any:
        """The arguments of a message, whose context tells from now on which host has sent it.

        Raises CallerRefused, DecodeError.
        """
        host = self._keys.sender(self._address, ctx.wire, payload)
        if host and not self._method.by_hosts:
            raise exception.CallerRefused(f"{self.label} is not for hosts: host {host} may not ask it.")
        args = self._method.decode_args(payload, from_host=bool(host))
        said = getattr(args, interface.ASKING, host)
        if host and said != host:
            raise exception.CallerRefused(f"{self.label} is refused: host {host} may not speak for host {said}.")
        ctx.asking_host, ctx.wire = host, {}
        if host:
            # It is no user, whatever it says, and has no rights but its own.
            ctx.roles, ctx.service_roles, ctx.is_admin, ctx.auth_token = [], [], False, None
        return args


def _handler(
    gate: Gate, method: interface.Method, function: Callable[..., Any]
) -> Callable[[context.RequestContext, str], dict[str, Any] | None]:
    label = gate.label

    # A plain function (no wraps): the dispatcher looks at its signature only.
    def handle(ctx: context.RequestContext, p: str) -> dict[str, Any] | None:
        if ctx.until is not None and time.monotonic() > ctx.until:
            LOG.warning("Dropped %s: its sender no longer waits", label)
            metrics.BUS_DROPPED.inc(label)
            return DROPPED
        with context.wanted_until(ctx.until), worker_stats.METER.work():
            return metrics.handled(label, ctx.sent_at, lambda: answer(ctx, p)) if metrics.on else answer(ctx, p)

    def answer(ctx: context.RequestContext, p: str) -> dict[str, Any] | None:
        try:
            args = gate.admit(ctx, p)
            if context.too_late():  # it waited for a thread of the interpreter, or for its arguments to be decoded
                metrics.BUS_DROPPED.inc(label)
                raise exception.ServiceUnavailable(f"{label} came too late: nothing was done.")
            result = function(ctx, **{name: getattr(args, name) for name in method.parameters})
            if method.kind != "call":
                return None
            return {"r": method.encode(result)}
        except exception.CallerRefused as error:
            LOG.warning("Refused: %s", error)
            return {"e": [type(error).__name__, error.message, error.kwargs]}
        except exception.NovaException as error:
            if method.kind != "call":
                LOG.warning("%s failed: %s", method.name, error)
            return {"e": [type(error).__name__, error.message, error.kwargs]}
        except msgspec.DecodeError as error:
            LOG.error("Refused a malformed message for %s: %s", method.name, error)
            return {"e": ["InvalidInput", f"Malformed message for {method.name}: {error}", {}]}
        except Exception:
            LOG.exception("Unexpected error in %s", method.name)
            return {"e": ["InternalError", f"Unexpected error in {method.name}.", {}]}

    return handle
