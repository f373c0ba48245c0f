"""The way of a request through all services, as OpenTelemetry spans.

oslo.messaging makes the spans of calls and casts and carries the trace from service to service; here are those of
requests, steps and choices, and what binds an operation that goes on without its request to the trace it began in.
Off (the default), nothing of OpenTelemetry is imported and a hook costs one comparison.
"""

from __future__ import annotations

import contextlib
import importlib.util
from typing import Any

from nova.conf import CONF
from nova.context import RequestContext

# Whether this process traces. Read it as tracing.on; the exporter sets it.
on = False
# What makes the spans while it is on: nova.telemetry.tracing_export, which puts itself here.
exporter: Any = None

_NEEDED = ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http", "oslo_messaging._tracing")
_NOTHING = contextlib.nullcontext()


def check(service: str) -> None:
    """End the program with a clear message if tracing is enabled and what it needs is not installed."""
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
    except ImportError:  # of a parent
        return False


# --- hooks ----------------------------------------------------------------------------------------------
def current() -> Any:
    """What :attr:`nova.context.RequestContext.trace` holds: the span that is open in this thread."""
    if not on:
        return None
    return exporter.current()


def traceparent() -> str:
    """The open span in the form of the W3C header, for a row; "" where there is none."""
    if not on:
        return ""
    return str(exporter.traceparent())


def restored(header: str | None) -> Any:
    """What :func:`traceparent` returned once, as :attr:`nova.context.RequestContext.trace`."""
    if not on or not header:
        return None
    return exporter.parent({"traceparent": header})


def span(name: str, ctx: RequestContext | None = None, **attributes: Any) -> contextlib.AbstractContextManager[Any]:
    """A span around the block: below the open one, or else below that of ``ctx``. ``attributes`` are nova.*."""
    if not on:
        return _NOTHING
    made: contextlib.AbstractContextManager[Any] = exporter.span(name, ctx, attributes)
    return made


def failed(message: str) -> None:
    """The open span is of something that failed."""
    if on:
        exporter.failed(message)
