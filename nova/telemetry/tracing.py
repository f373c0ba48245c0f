"""OpenTelemetry spans of requests, steps of operations and host selections.

oslo.messaging creates the spans of calls and casts and passes the trace between services. Operations that continue
after their request store the span of the request (:func:`traceparent`). If tracing is disabled (the default),
OpenTelemetry is not imported, and each function of this module costs one comparison."""

import contextlib
import importlib.util
from typing import Any

from nova.conf import CONF
from nova.context import RequestContext

# True if this process traces. Read it as tracing.on; the exporter sets it.
on = False
exporter: Any = None  # the module nova.telemetry.tracing_export while tracing is enabled

_NEEDED = ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http", "oslo_messaging._tracing")
_NOTHING = contextlib.nullcontext()


def check(service: str) -> None:
    """Raise SystemExit with a message if tracing is enabled and its packages are not installed."""
    if not CONF.tracing.enabled:
        return
    missing = [name for name in _NEEDED if not _installed(name)]
    if missing:
        raise SystemExit(f"{service}: [tracing]enabled needs the packages of the extra otel (opentelemetry-sdk, "
                         "opentelemetry-exporter-otlp-proto-http, oslo.messaging>=18.3); missing: "
                         f"{', '.join(missing)}")


def _installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ImportError:  # the parent package is missing
        return False


# --- spans ----------------------------------------------------------------------------------------------
def current() -> Any:
    """Return the current span of this thread, for :attr:`nova.context.RequestContext.trace`."""
    return exporter.current() if on else None


def traceparent() -> str:
    """Return the current span as the W3C header traceparent, to be stored in a row, or "" if there is none."""
    return str(exporter.traceparent()) if on else ""


def restored(header: str | None) -> Any:
    """Return the span of a stored :func:`traceparent`, for :attr:`nova.context.RequestContext.trace`."""
    return exporter.parent({"traceparent": header}) if on and header else None


def span(name: str, ctx: RequestContext | None = None, **attributes: Any) -> contextlib.AbstractContextManager[Any]:
    """Open a span for the block, as a child of the current span or else of the span of ``ctx``. ``attributes`` are
    recorded with the prefix "nova."."""
    return exporter.span(name, ctx, attributes) if on else _NOTHING


def failed(message: str) -> None:
    """Mark the current span as failed."""
    if on:
        exporter.failed(message)
