"""The server side: an implementation object answers for a declared interface."""

from __future__ import annotations

import base64
import logging
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import oslo_messaging as messaging

from nova import context, exception
from nova.bus import interface, transport

LOG = logging.getLogger(__name__)


def serve(
    bus: messaging.RPCTransport,
    topic: str,
    host: str,
    implementations: Iterable[tuple[type[interface.Interface], Any]],
) -> messaging.RPCServer:
    """Start listening as ``host`` on ``topic``; each implementation has its interface's methods.

    The caller stops it: ``server.stop()`` takes no new messages, ``server.wait()`` drains.
    """
    endpoints = [endpoint(declared, implementation) for declared, implementation in implementations]
    server = messaging.get_rpc_server(
        bus,
        messaging.Target(topic=topic, server=host),
        endpoints,
        executor="threading",
        serializer=transport.ContextSerializer(),
    )
    server.start()
    return server


def endpoint(declared: type[interface.Interface], implementation: Any) -> Any:
    """What oslo.messaging dispatches to: one wire method per declared method."""
    handlers: dict[str, Any] = {
        name: staticmethod(_handler(method, getattr(implementation, name)))
        for name, method in declared.methods().items()
    }
    handlers["target"] = messaging.Target(namespace=declared.namespace, version="1.0")
    return type(f"{declared.__name__}Endpoint", (), handlers)()


def _handler(
    method: interface.Method, function: Callable[..., Any]
) -> Callable[[context.RequestContext, str], dict[str, Any] | None]:
    # A plain function (no wraps): the dispatcher looks at its signature only.
    def handle(ctx: context.RequestContext, p: str) -> dict[str, Any] | None:
        try:
            args = method.decode_args(base64.b64decode(p))
            result = function(ctx, **{name: getattr(args, name) for name in method.parameters})
            if method.kind != "call":
                return None
            return {"r": base64.b64encode(method.encode(result)).decode()}
        except exception.NovaException as error:
            if method.kind != "call":
                LOG.warning("%s failed: %s", method.name, error)
            return {"e": [type(error).__name__, error.message, error.kwargs]}
        except msgspec.ValidationError as error:
            LOG.error("Refused a malformed message for %s: %s", method.name, error)
            return {"e": ["InvalidInput", f"Malformed message for {method.name}: {error}", {}]}
        except Exception:
            LOG.exception("Unexpected error in %s", method.name)
            return {"e": ["InternalError", f"Unexpected error in {method.name}.", {}]}

    return handle
