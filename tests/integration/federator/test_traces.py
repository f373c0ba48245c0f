"""Traces: a placement is one trace over the scheduler and the agent, sent to a collector by OTLP over HTTP."""

from __future__ import annotations

import http.server
import pathlib
import sys
import threading
from collections.abc import Iterator

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from nova.cmd import federator
from tests.integration.federator.clusters import Cluster, deployment, until
from tests.integration.federator.federation import Federation


class Collector(http.server.BaseHTTPRequestHandler):
    """Stores the spans that it receives: service, name, trace, and attributes."""

    spans: list[tuple[str, str, bytes, dict[str, str]]]

    def do_POST(self) -> None:
        request = ExportTraceServiceRequest.FromString(self.rfile.read(int(self.headers["Content-Length"])))
        for group in request.resource_spans:
            service = next(entry.value.string_value for entry in group.resource.attributes
                           if entry.key == "service.name")
            for span in (span for scope in group.scope_spans for span in scope.spans):
                self.spans.append((service, span.name, span.trace_id, {
                    entry.key: entry.value.string_value for entry in span.attributes}))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_arguments: object) -> None:
        pass


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Collector]]:
    Collector.spans = []
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "200")
    yield Collector
    server.shutdown()


def test_a_placement_is_a_trace_of_scheduler_and_agent(collector: type[Collector], control_plane: Cluster,
                                                       members: list[Cluster], tmp_path: pathlib.Path,
                                                       request: pytest.FixtureRequest) -> None:
    with Federation(control_plane, members[:1], tmp_path) as federation, federation.namespace(request) as namespace:
        pinned = {"nova.elotl.co/cluster": members[0].name}
        federation.nova.apply(deployment("traced", 1, namespace, annotations=pinned))
        group = f"Deployment.apps/{namespace}/traced"

        def spans(service: str, name: str) -> dict[bytes, dict[str, str]]:
            return {trace: attributes for sender, title, trace, attributes in list(collector.spans)
                    if (sender, title, attributes["nova.group"]) == (service, name, group)}
        applied = until(lambda: spans("nova-agent", "apply"))
        assert until(lambda: applied.keys() <= spans("nova-scheduler", "place").keys())
        assert {attributes["nova.cluster"] for attributes in applied.values()} == {members[0].name}


def test_traces_without_the_packages_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path,
                                                 capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    member = tmp_path / "member"
    member.write_text("")
    code = federator.main(["agent", "--cluster-name=a", f"--control-plane-kubeconfig={member}",
                           f"--kubeconfig={member}"])
    assert code == 1
    assert "pip install 'nova[otel]'" in capsys.readouterr().err
