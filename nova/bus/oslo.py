"""The only module that uses private API of oslo.messaging. tests/unit/bus/test_oslo.py names and tests each use.

A driver for oslo.messaging must derive from classes that oslo.messaging keeps in a private module, and a transport
gives no public access to its driver."""

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

from oslo_service import backend


@contextlib.contextmanager
def _without_eventlet() -> Iterator[None]:
    """Hide eventlet from futurist, which imports it wherever it is installed (a fifth of a service's memory)."""
    if "eventlet" in sys.modules:
        yield
        return
    sys.modules["eventlet"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["eventlet"]


with _without_eventlet():
    # oslo.messaging takes its timers from oslo.service: select native threads first.
    backend.init_backend(backend.BackendType.THREADING)
    import oslo_messaging as messaging
    from oslo_messaging._drivers import base

BaseDriver = base.BaseDriver
BaseListener = base.Listener
BaseIncomingMessage = base.RpcIncomingMessage


def driver_of(transport: messaging.Transport) -> Any:
    """Return the driver of a transport."""
    return transport._driver
