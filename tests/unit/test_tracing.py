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
    """The names of the spans that ``act`` (given a tracer) makes, sampled at ``ratio``."""
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


# --- who decides -------------------------------------------------------------------------------------------
def test_a_request_begins_a_trace_and_what_it_brings_about_follows():
    assert spans(1.0, request) == ["send", "request"]


def test_of_a_request_that_is_not_traced_nothing_is():
    assert spans(0.0, request) == []


def test_what_no_request_asked_for_is_in_no_trace():
    def beat(tracer):
        with tracer.start_as_current_span("beat", kind=SpanKind.PRODUCER):
            pass
        with tracer.start_as_current_span("beat receive", kind=SpanKind.CONSUMER):
            pass

    assert spans(1.0, beat) == []


@pytest.mark.parametrize("flags", ["00", "01"])
def test_the_ratio_decides_and_not_the_client(flags):
    assert spans(0.0, lambda tracer: request(tracer, THEIRS.format(flags))) == []
    assert spans(1.0, lambda tracer: request(tracer, THEIRS.format(flags))) == ["send", "request"]


@pytest.mark.parametrize(("flags", "expected"), [("00", []), ("01", ["receive"])])
def test_a_service_follows_the_one_before_it(flags, expected):
    def receive(tracer):
        above = TraceContextTextMapPropagator().extract({"traceparent": THEIRS.format(flags)})
        with tracer.start_as_current_span("receive", context=above, kind=SpanKind.CONSUMER):
            pass

    assert spans(0.5, receive) == expected


def test_the_ratio_is_kept():
    assert 350 < len(spans(0.25, lambda tracer: [request(tracer) for _ in range(1000)])) < 650  # of two each


# --- the collector -------------------------------------------------------------------------------------------
def test_a_collector_that_is_away_is_reported_once_and_so_is_its_return(caplog):
    class Collector(InMemorySpanExporter):
        def export(self, spans):
            return answers.pop(0)

    ok, away = SpanExportResult.SUCCESS, SpanExportResult.FAILURE
    answers = [ok, away, away, away, ok, ok]
    exporter = LoggingExporter(Collector(), "http://collector")
    assert [exporter.export([]) for _answer in list(answers)] == [ok, away, away, away, ok, ok]
    assert [record.getMessage() for record in caplog.records] == [
        "http://collector does not accept trace spans; they are dropped", "http://collector accepts trace spans again"]


# --- off -----------------------------------------------------------------------------------------------------
def test_off_every_hook_does_nothing():
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


def test_a_row_of_a_conductor_that_traced_is_read_by_one_that_does_not():
    traced = action({"data": {}, "trace": THEIRS.format("01")})
    assert journal(traced).trace == THEIRS.format("01")
    assert context_of(traced).trace is None
    assert journal(action({"data": {}})).trace == ""


# --- what is missing -----------------------------------------------------------------------------------------
@pytest.mark.parametrize(("service", "missing"), [
    *((service, "opentelemetry") for service in SERVICES),
    ("conductor", "opentelemetry.exporter"), ("conductor", "oslo_messaging._tracing")])
def test_a_service_that_cannot_trace_says_so_and_ends(service, missing, tmp_path):
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
