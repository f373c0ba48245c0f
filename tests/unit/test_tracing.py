"""Conditions and sampling of traces, and errors of their configuration."""

import subprocess
import sys
import textwrap

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from nova import context
from nova.objects.base import utcnow
from nova.objects.servers.action import Action
from nova.operations.framework.base import context_of, journal
from nova.telemetry import exporters, tracing
from nova.telemetry.tracing_export import LoggingExporter, RequestSampler
from tests.paths import ROOT

SERVICES = ("api", "conductor", "scheduler", "compute", "metadata", "allinone")
THEIRS = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-{}"


def spans(ratio, act):
    """Return the names of the spans that ``act(tracer)`` creates, sampled at ``ratio``."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(sampler=RequestSampler(ratio))
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    act(provider.get_tracer("test"))
    return [span.name for span in exporter.get_finished_spans()]


def request(tracer, traceparent=None):
    above = TraceContextTextMapPropagator().extract({"traceparent": traceparent} if traceparent else {})
    with tracer.start_as_current_span("request", context=above, kind=SpanKind.SERVER):
        with tracer.start_as_current_span("send", kind=SpanKind.PRODUCER):
            pass


# --- sampling ----------------------------------------------------------------------------------------------
def test_sampled_request_starts_a_trace_with_its_child_spans():
    assert spans(1.0, request) == ["send", "request"]


def test_unsampled_request_has_no_spans():
    assert spans(0.0, request) == []


def test_messages_outside_of_requests_have_no_spans():
    def beat(tracer):
        with tracer.start_as_current_span("beat", kind=SpanKind.PRODUCER):
            pass
        with tracer.start_as_current_span("beat receive", kind=SpanKind.CONSUMER):
            pass

    assert spans(1.0, beat) == []


@pytest.mark.parametrize("flags", ["00", "01"])
def test_sampling_ratio_overrides_the_client_sampling_flag(flags):
    assert spans(0.0, lambda tracer: request(tracer, THEIRS.format(flags))) == []
    assert spans(1.0, lambda tracer: request(tracer, THEIRS.format(flags))) == ["send", "request"]


@pytest.mark.parametrize(("flags", "expected"), [("00", []), ("01", ["receive"])])
def test_service_follows_the_sampling_flag_of_the_sender(flags, expected):
    def receive(tracer):
        above = TraceContextTextMapPropagator().extract({"traceparent": THEIRS.format(flags)})
        with tracer.start_as_current_span("receive", context=above, kind=SpanKind.CONSUMER):
            pass

    assert spans(0.5, receive) == expected


def test_sampled_share_of_requests_matches_the_ratio():
    assert 350 < len(spans(0.25, lambda tracer: [request(tracer) for _ in range(1000)])) < 650  # two spans per request


# --- the collector -------------------------------------------------------------------------------------------
def test_unavailable_trace_collector_is_logged_once_and_so_is_its_recovery(caplog):
    class Collector(InMemorySpanExporter):
        def export(self, spans):
            return answers.pop(0)

    ok, away = SpanExportResult.SUCCESS, SpanExportResult.FAILURE
    answers = [ok, away, away, away, ok, ok]
    exporter = LoggingExporter(Collector(), "http://collector")
    assert [exporter.export([]) for _answer in list(answers)] == [ok, away, away, away, ok, ok]
    assert [record.getMessage() for record in caplog.records] == [
        "http://collector does not accept trace spans; spans are dropped until it does",
        "http://collector accepts trace spans again"]


# --- off -----------------------------------------------------------------------------------------------------
def test_disabled_tracing_hooks_have_no_effect():
    assert tracing.current() is None
    assert tracing.traceparent() == ""
    assert tracing.restored(THEIRS.format("01")) is None
    tracing.failed("of no interest")
    exporters.stop_tracing()
    with tracing.span("x", context.RequestContext(overwrite=False), instance="u") as span:
        assert span is None


def action(payload):
    return Action(uuid="a", instance_uuid="i", action="stop", operation="stop", payload=payload, request_id="req-1",
                  start_time=utcnow())


def test_action_row_with_a_trace_is_readable_without_tracing():
    traced = action({"data": {}, "trace": THEIRS.format("01")})
    assert journal(traced).trace == THEIRS.format("01")
    assert context_of(traced).trace is None
    assert journal(action({"data": {}})).trace == ""


# --- missing library -----------------------------------------------------------------------------------------
@pytest.mark.parametrize(("service", "missing"), [
    *((service, "opentelemetry") for service in SERVICES),
    ("conductor", "opentelemetry.exporter"), ("conductor", "oslo_messaging._tracing")])
def test_service_without_the_tracing_library_exits_with_an_error(service, missing, tmp_path):
    config = tmp_path / "nova.conf"
    config.write_text("[tracing]\nenabled = true\n[database]\nconnection = sqlite:///nowhere\n")
    script = f"""
        import importlib.abc, sys

        class Missing(importlib.abc.MetaPathFinder):
            def find_spec(self, name, path=None, target=None):
                if name == {missing!r} and tracing.CONF.tracing.enabled:
                    raise ModuleNotFoundError(name)

        from nova import bus
        from nova.cmd import {service} as service
        from nova.telemetry import tracing
        from nova import conf
        conf.register()
        sys.meta_path.insert(0, Missing())
        sys.modules.pop({missing!r}, None)
        sys.argv[1:] = ["--config-file", {str(config)!r}]
        sys.exit(service.main())
        """
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", textwrap.dedent(script)], cwd=ROOT,
                          capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(f"nova-{service}: [tracing]enabled needs")
    assert missing in last
    assert "Traceback" not in done.stderr
