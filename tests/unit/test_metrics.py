"""Metrics: declarations, exporters, documentation and dashboard.

``python -m tests.unit.test_metrics`` writes the table of doc/observability.md.
"""

import json
import re
import socket
import subprocess
import sys
import textwrap

import pytest
import requests

from nova import bus, conf, context, exception
from nova.bus.transport import ContextSerializer, Outgoing
from nova.conf import CONF
from nova.telemetry import exporters, metrics
from tests.paths import ROOT

DOC = ROOT / "doc/observability.md"
DASHBOARD = ROOT / "etc/grafana/nova.json"

# Suffixes that Prometheus appends to the name of a metric.
SAMPLES = {"counter": ("",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}
# Labels that every target has or Prometheus adds.
GIVEN = {"instance", "job", "le"}


def python(script, *arguments):
    return subprocess.run([sys.executable, "-W", "ignore", "-c", textwrap.dedent(script), *arguments], cwd=ROOT,
                          capture_output=True, text=True, timeout=120, check=False)


def samples():
    """Return {name of a sample: its metric}."""
    return {metric.name + suffix: metric for metric in metrics.DECLARED.values() for suffix in SAMPLES[metric.kind]}


@pytest.fixture
def port():
    """Reserve two consecutive free ports and return the first."""
    conf.register()
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            number = first.getsockname()[1]
            try:
                second.bind(("127.0.0.1", number + 1))
            except (OSError, OverflowError):
                continue
        CONF.set_override("conductor_port", number, group="prometheus")
        yield number
        exporters.stop_metrics()
        CONF.clear_override("conductor_port", group="prometheus")
        return


def page(port):
    return requests.get(f"http://127.0.0.1:{port}/metrics", timeout=5).text


# --- off -------------------------------------------------------------------------------------------------
def test_disabled_metrics_import_no_exporter():
    """Load every service with the default configuration and check that no exporter was imported."""
    done = python("""
        import sys
        from nova.cmd import allinone, api, compute, conductor, metadata, scheduler
        from nova import conf
        from nova.telemetry import exporters, metrics, tracing
        conf.load([], default_files=[])
        for service in ("api", "conductor", "scheduler", "compute", "metadata"):
            exporters.start_metrics(f"nova-{service}")
            tracing.check(f"nova-{service}")
            exporters.start_tracing(f"nova-{service}")
        print(metrics.on, tracing.on,
              [name for name in sys.modules if name.startswith((
                  "prometheus_client", "opentelemetry", "nova.telemetry.metrics_", "nova.telemetry.tracing_"))])
        """)
    assert done.stdout.split("\n")[-2] == "False False []", done.stderr


def test_disabled_metrics_hooks_have_no_effect():
    for metric in metrics.DECLARED.values():
        values = ["x"] * len(metric.labels)
        match metric.kind:
            case "counter":
                metric.inc(*values)
            case "histogram":
                metric.observe(1, *values)
            case "gauge":
                metric.set(1, *values)
                metric.add(1, *values)
                metric.replace({tuple(values): 1})
    with metrics.timed(metrics.DB_SECONDS, "read"), metrics.step("build", "start", undo=False):
        pass
    assert metrics.timed(metrics.DB_SECONDS, "read") is metrics.step("build", "start", undo=False)


# --- on --------------------------------------------------------------------------------------------------
def test_worker_exports_metrics_on_the_port_plus_its_number(port):
    exporters.start_metrics("nova-conductor", 1)
    assert 'nova_build_info{service="nova-conductor"' in page(port + 1)
    with pytest.raises(requests.ConnectionError):
        page(port)


def test_worker_without_a_number_exports_metrics_on_the_first_free_port(port):
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", port))
        taken.listen()
        exporters.start_metrics("nova-conductor", None)
        assert "nova_build_info" in page(port + 1)


def test_metrics_port_in_use_does_not_stop_the_service(port, caplog):
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", port))
        taken.listen()
        exporters.start_metrics("nova-conductor")
    assert not metrics.on
    assert f"cannot listen on 127.0.0.1 port {port}" in caplog.text


def test_every_declared_metric_is_exported(port):
    exporters.start_metrics("nova-conductor")
    served = dict(re.findall(r"^# TYPE (nova_\w+) (\w+)$", page(port), re.MULTILINE))
    assert served == {metric.name: metric.kind for metric in metrics.DECLARED.values()}


def test_send_time_is_transferred_with_a_single_message_only(port):
    exporters.start_metrics("nova-conductor")
    wire = ContextSerializer().serialize_context(Outgoing(context.RequestContext(user_id="u", overwrite=False)))
    received = ContextSerializer().deserialize_context(wire)
    assert received.sent_at == wire["sent_at"]
    assert "sent_at" not in received.to_wire()


def test_service_without_metrics_ignores_the_send_time():
    received = ContextSerializer().deserialize_context({"user_id": "u", "sent_at": 1.5, "traceparent": "00-1-2-01"})
    assert (received.user_id, received.sent_at, received.trace) == ("u", None, None)


@pytest.mark.parametrize(("error", "outcome"), [
    (None, "success"), (exception.StaleReport(action="a", step="s", attempt=1), "stale"),
    (exception.ServiceUnavailable(), "unavailable"), (exception.NoValidHost(reason=""), "failed"),
    (RuntimeError(), "failed")])
def test_step_metric_has_the_outcome_of_the_step(port, error, outcome):
    exporters.start_metrics("nova-conductor")

    def run():
        with metrics.step("build", "place", undo=False):
            if error is not None:
                raise error

    if error is None:
        run()
    else:
        with pytest.raises(type(error)):
            run()
    assert f'nova_steps_total{{direction="do",operation="build",outcome="{outcome}",step="place"}} 1.0' in page(port)


@pytest.mark.parametrize(("answer", "outcome"), [
    (None, "success"), ({"r": ""}, "success"), ({"e": ["Conflict", "", {}]}, "refused"),
    ({"e": ["InternalError", "", {}]}, "failed")])
def test_message_metric_has_the_outcome_of_the_call(port, answer, outcome):
    exporters.start_metrics("nova-conductor")
    assert metrics.handled("a.b", None, lambda: answer) is answer
    assert f'nova_bus_handled_total{{method="a.b",outcome="{outcome}"}} 1.0' in page(port)


# --- declarations ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("metric", metrics.DECLARED.values(), ids=lambda metric: metric.name)
def test_metric_names_and_labels_follow_prometheus_conventions(metric):
    assert re.fullmatch(r"nova_[a-z]+(_[a-z]+)*", metric.name)
    assert metric.name.endswith("_total") == (metric.kind == "counter")
    assert metric.kind != "histogram" or list(metric.buckets) == sorted(metric.buckets) != []
    assert metric.text.endswith(".") or metric is metrics.BUILD_INFO
    unbounded = {"uuid", "id", "project", "project_id", "user", "user_id", "path", "url", "host", "node", "name"}
    assert not unbounded & set(metric.labels)


def test_interfaces_bound_the_number_of_method_label_values():
    from nova.rpcapi import servers

    assert issubclass(servers.Servers, bus.Interface)
    assert len(servers.Servers.methods()) < 100


# --- document and dashboard --------------------------------------------------------------------------------
def table():
    """Return the table of the document."""
    lines = ["| metric | kind | labels | description |", "| --- | --- | --- | --- |"]
    lines += [f"| `{metric.name}` | {metric.kind} | {', '.join(metric.labels)} | {metric.text} |"
              for metric in metrics.DECLARED.values()]
    return "\n".join(lines) + "\n"


def test_observability_document_lists_every_metric():
    assert table() in DOC.read_text(), "run python -m tests.unit.test_metrics"


def queries():
    return [(panel["title"], target["expr"]) for panel in json.loads(DASHBOARD.read_text())["panels"]
            for target in panel.get("targets", [])]


@pytest.mark.parametrize(("title", "query"), queries())
def test_dashboard_queries_use_existing_metrics_and_labels(title, query):
    known = samples()
    names = re.findall(r"\bnova_\w+", query)
    assert names
    assert set(names) <= known.keys()
    labels = set(GIVEN).union(*(known[name].labels for name in names))
    asked = {label.strip() for group in re.findall(r"\bby \(([^)]*)\)", query) for label in group.split(",")}
    asked |= set(re.findall(r"(\w+)(?:=~|!=|!~|=)\"", query))
    assert asked <= labels
    assert query.count("(") == query.count(")")


def test_dashboard_legends_use_labels_of_the_query_result():
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel.get("targets", []):
            shown = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            grouped = re.findall(r"\bby \(([^)]*)\)", target["expr"])
            kept = {label.strip() for label in grouped[0].split(",")} if grouped else GIVEN
            assert shown <= kept, (panel["title"], target)


def test_dashboard_shows_every_metric():
    known = samples()
    drawn = {known[name].name for _title, query in queries() for name in re.findall(r"\bnova_\w+", query)}
    assert drawn == metrics.DECLARED.keys()


def test_dashboard_panels_do_not_overlap():
    panels = json.loads(DASHBOARD.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [(x, y) for panel in panels for place in [panel["gridPos"]]
             for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _y in cells) < 24


if __name__ == "__main__":
    text = DOC.read_text()
    before, _header, rest = text.partition("| metric | kind |")
    rows = rest.partition("\n\n")[2]
    DOC.write_text(f"{before}{table()}\n{rows}")
