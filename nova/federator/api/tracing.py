"""OpenTelemetry spans of placements, from the decision of the scheduler to the copies that agents apply.

The environment variables of OpenTelemetry configure the spans. Without a collector the libraries are not imported.
"""

import contextlib
import os
from collections.abc import Callable
from typing import Any

from nova import __version__
from nova.common.errors import Invalid

_COLLECTOR = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_NOTHING = contextlib.nullcontext()
_tracer: Any = None
_propagator: Any = None


def start(service: str) -> Callable[[], None]:
    """Start sending spans to the collector that an environment variable names, if there is one. Return a function that
    sends the remaining spans before the process ends. Raises Invalid if the packages are missing."""
    global _tracer, _propagator
    if not any(os.environ.get(name) for name in _COLLECTOR):
        return lambda: None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
    except ImportError:
        raise Invalid(f"{' and '.join(_COLLECTOR)} need the packages of the extra otel: pip install 'nova[otel]'."
                      ) from None
    provider = TracerProvider(resource=Resource.create({
        "service.name": os.environ.get("OTEL_SERVICE_NAME") or service, "service.version": __version__}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    _tracer, _propagator = provider.get_tracer("nova.federator"), TraceContextTextMapPropagator()
    return provider.shutdown


def span(name: str, parent: str = "", **attributes: str) -> contextlib.AbstractContextManager[Any]:
    """Open a span for the block. ``parent``: the :func:`traceparent` of another process. ``attributes``: recorded with
    the prefix "nova."."""
    if _tracer is None:
        return _NOTHING
    context = _propagator.extract({"traceparent": parent}) if parent else None
    recorded = {f"nova.{key}": value for key, value in attributes.items()}
    return _tracer.start_as_current_span(name, context=context, attributes=recorded)  # type: ignore[no-any-return]


def traceparent() -> str:
    """Return the current span as a W3C traceparent, or an empty text if there is no span."""
    carrier: dict[str, str] = {}
    if _tracer is not None:
        _propagator.inject(carrier)
    return carrier.get("traceparent", "")
