"""The OpenTelemetry exporter of :mod:`nova.telemetry.tracing`, imported only if tracing is enabled."""

import contextlib
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from opentelemetry import context as otel_context
from opentelemetry import propagate, trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider, sampling
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

import nova
from nova.conf import CONF
from nova.context import RequestContext
from nova.telemetry import tracing

LOG = logging.getLogger(__name__)

current = otel_context.get_current  # the context with the current span of this thread
_TIMEOUT = 5  # timeout in seconds of sending a batch of spans, also of the remaining spans when the service stops

_tracer: trace.Tracer = trace.NoOpTracer()
_provider: TracerProvider | None = None


class RequestSampler(sampling.Sampler):
    """A sampler that starts traces at a fraction of the requests of clients, and not at periodic tasks. Nova's spans
    join the trace that a client sends, but the sampling decision of the client is ignored."""

    def __init__(self, ratio: float) -> None:
        self._ratio = sampling.TraceIdRatioBased(ratio)
        self._follow = sampling.ParentBased(root=sampling.ALWAYS_OFF, remote_parent_sampled=sampling.ALWAYS_ON)

    def should_sample(self, parent_context: Any, trace_id: int, name: str, kind: SpanKind | None = None,
                      attributes: Any = None, links: Sequence[trace.Link] | None = None,
                      trace_state: Any = None) -> sampling.SamplingResult:
        sampler = self._ratio if kind is SpanKind.SERVER else self._follow
        return sampler.should_sample(parent_context, trace_id, name, kind, attributes, links, trace_state)

    def get_description(self) -> str:
        return f"RequestSampler{{{self._ratio.rate}}}"


class LoggingExporter(SpanExporter):
    """An exporter that logs when the collector stops and starts accepting spans."""

    def __init__(self, inner: SpanExporter, where: str) -> None:
        self._inner = inner
        self._where = where
        self._failing = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._inner.export(spans)
        failing = result is not SpanExportResult.SUCCESS
        if failing != self._failing:
            self._failing = failing
            LOG.warning("%s does not accept trace spans; spans are dropped until it does" if failing else
                        "%s accepts trace spans again", self._where)
        return result

    def shutdown(self) -> None:
        self._inner.shutdown()

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        return self._inner.force_flush(timeout_millis)


def start(service: str, exporter: SpanExporter | None = None) -> None:
    """Start tracing and send the spans to ``exporter``, by default to [tracing]endpoint."""
    global _tracer, _provider
    if _provider is None:
        resource = Resource.create({
            "service.name": CONF.tracing.service_name or service, "service.version": nova.__version__,
            "service.instance.id": f"{CONF.host}:{os.getpid()}", "host.name": CONF.host})
        _provider = TracerProvider(resource=resource, sampler=RequestSampler(CONF.tracing.sample_ratio))
        if exporter is None:
            url = f"{CONF.tracing.endpoint.rstrip('/')}/v1/traces"
            logging.getLogger("opentelemetry.exporter").setLevel(logging.CRITICAL)  # it logs every failure
            exporter = LoggingExporter(OTLPSpanExporter(url, timeout=_TIMEOUT), url)
        _provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=1000))
        # oslo.messaging uses the global provider.
        trace.set_tracer_provider(_provider)
        propagate.set_global_textmap(TraceContextTextMapPropagator())
        _tracer = _provider.get_tracer("nova")
        LOG.info("Sending trace spans to %s", CONF.tracing.endpoint)
    CONF.set_override("tracing_enabled", True, group="oslo_messaging_tracing")
    tracing.exporter = sys.modules[__name__]
    tracing.on = True


def stop() -> None:
    """Stop creating spans and send the completed ones."""
    tracing.on = False
    CONF.clear_override("tracing_enabled", group="oslo_messaging_tracing")
    if _provider is not None:
        _provider.force_flush(_TIMEOUT * 1000)


def traceparent() -> str:
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return carrier.get("traceparent", "")


def parent(headers: Mapping[str, str]) -> otel_context.Context:
    """Return the context of the span in W3C headers; malformed headers are ignored."""
    return propagate.extract(headers)


def span(name: str, ctx: RequestContext | None,
         attributes: Mapping[str, Any]) -> contextlib.AbstractContextManager[trace.Span]:
    inside = trace.get_current_span().get_span_context().is_valid
    above = None if inside or ctx is None else ctx.trace
    shown = {f"nova.{key}": value for key, value in attributes.items() if value is not None}
    if ctx is not None and ctx.request_id:
        shown["openstack.request_id"] = ctx.request_id
    return _tracer.start_as_current_span(name, context=above, attributes=shown)


def request(method: str, headers: Mapping[str, str]) -> contextlib.AbstractContextManager[trace.Span]:
    """Open a span for a request of a client, whose ``headers`` (lower case) may name a parent span."""
    return _tracer.start_as_current_span(f"{method} ?", context=propagate.extract(headers), kind=SpanKind.SERVER,
                                         attributes={"http.request.method": method})


def answered(made: trace.Span, method: str, route: str, status: int, request_id: str | None) -> None:
    """Record the result of a request in the span of :func:`request`."""
    made.update_name(f"{method} {route}")
    made.set_attribute("http.route", route)
    made.set_attribute("http.response.status_code", status)
    if request_id:
        made.set_attribute("openstack.request_id", request_id)
    if status >= 500:
        made.set_status(Status(StatusCode.ERROR, f"HTTP {status}"))


def failed(message: str) -> None:
    trace.get_current_span().set_status(Status(StatusCode.ERROR, message))
