"""Metrics and traces of service processes on a real broker and database."""

from __future__ import annotations

import http.server
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import requests
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (  # type: ignore[import-untyped]
    ExportTraceServiceRequest,
)
from prometheus_client.parser import text_string_to_metric_families

from tests.integration.cluster import Cluster
from tests.integration.databases import Server
from tests.integration.processes import eventually, free_port
from tests.integration.rabbit import Rabbit

WORKERS = {"api": 2, "conductor": 2, "scheduler": 2, "compute": 1, "metadata": 1}


class Collector:
    """A collector of spans by OTLP over HTTP."""

    def __init__(self) -> None:
        self.spans: list[dict[str, Any]] = []
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.path == "/v1/traces":
                    collector.take(ExportTraceServiceRequest.FromString(body))
                self.send_response(200 if self.path == "/v1/traces" else 404)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def take(self, request: ExportTraceServiceRequest) -> None:
        for group in request.resource_spans:
            resource = _values(group.resource.attributes)
            for scope in group.scope_spans:
                for span in scope.spans:
                    self.spans.append({
                        "name": span.name, "trace": span.trace_id, "id": span.span_id, "parent": span.parent_span_id,
                        "service": resource["service.name"], "process": resource["service.instance.id"],
                        "attributes": _values(span.attributes)})

    def of(self, request_id: str) -> list[dict[str, Any]]:
        """Return the spans of a request's trace."""
        spans = list(self.spans)
        traces = {span["trace"] for span in spans
                  if not span["parent"] and span["attributes"].get("openstack.request_id") == request_id}
        return [span for span in spans if span["trace"] in traces]


def _values(attributes: Any) -> dict[str, Any]:
    return {item.key: getattr(item.value, item.value.WhichOneof("value")) for item in attributes}


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.fixture(scope="module")
def ports() -> dict[str, int]:
    """Return the first port of each service, with as many consecutive free ports as the service has workers."""
    first = free_port(10 * index + worker for index, workers in enumerate(WORKERS.values())
                      for worker in range(workers))
    return {service: first + 10 * index for index, service in enumerate(WORKERS)}


@pytest.fixture(scope="module")
def nova(rabbitmq: Rabbit, postgresql: Server, collector: Collector,
         ports: dict[str, int]) -> Iterator[Cluster]:
    options = {
        "prometheus": {"interval": 1, **{f"{service}_port": port for service, port in ports.items()}},
        "tracing": {"enabled": True, "endpoint": collector.url},
        "api": {"workers": 2}, "conductor": {"workers": 2}, "scheduler": {"workers": 2},
        "metadata": {"port": free_port(), "namespaces": False, "metadata_proxy_shared_secret": "secret"},
        "fake": {"latency": "spawn:1"},
    }
    with Cluster(rabbitmq.new_vhost(), postgresql.new_database(), conductors=1, schedulers=1,
                 options=options) as made:
        made._add("metadata", "metadata")
        made.start("metadata")
        yield made
        made.delete_all()
        made.audit()


def page(port: int) -> dict[tuple[str, ...], float]:
    """Return {(sample, label=value...): value}, empty if no worker listens on the port."""
    try:
        text = requests.get(f"http://127.0.0.1:{port}/metrics", timeout=5).text
    except requests.ConnectionError:
        return {}
    return {(sample.name, *sorted(f"{name}={value}" for name, value in sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text) for sample in family.samples}


@pytest.fixture
def total(ports: dict[str, int]) -> Any:
    """Return a function that sums a sample over the workers of a service."""
    def total(service: str, *sample: str) -> float:
        return sum(page(ports[service] + worker).get(sample, 0) for worker in range(WORKERS[service]))

    return total


def boot(nova: Cluster, name: str) -> tuple[str, str]:
    """Boot a server and return its id and the request id."""
    response = nova.api.request("POST", "/servers", {"server": {
        "name": name, "flavorRef": "tiny", "imageRef": nova.api.image_id, "networks": "auto"}})
    assert response.status_code == 202, response.text
    return response.json()["server"]["id"], response.headers["x-openstack-request-id"]


def test_every_worker_exports_metrics(nova: Cluster, ports: dict[str, int], total: Any) -> None:
    def missing() -> list[str]:
        return [f"{service} {worker}" for service, workers in WORKERS.items() for worker in range(workers)
                if not any(sample[0] == "nova_build_info" and sample[1] == f"service=nova-{service}"
                           for sample in page(ports[service] + worker))]

    eventually(lambda: not missing(), 90, "every worker serves metrics on its port")
    server_id, _request_id = boot(nova, "counted")
    nova.api.wait(server_id, "ACTIVE")

    def counted() -> dict[str, bool]:
        return {
            "api": total("api", "nova_api_requests_total", "method=POST", "route=/servers", "status=202") == 1,
            "calls": total("api", "nova_bus_sent_total", "kind=call", "method=servers.create", "outcome=success") == 1,
            "handled": total("conductor", "nova_bus_handled_total", "method=servers.create", "outcome=success") == 1,
            "place": total("conductor", "nova_steps_total", "direction=do", "operation=build", "outcome=success",
                           "step=place") == 1,
            "operations": total("conductor", "nova_operations_total", "operation=build", "outcome=success") == 1,
            "claims": total("conductor", "nova_claims_total", "outcome=made") == 1,
            "select": total("scheduler", "nova_scheduler_select_seconds_count", "outcome=success") == 1,
            "nodes": total("scheduler", "nova_scheduler_nodes") == 2,  # one in each worker's table
            "start": total("compute", "nova_steps_total", "direction=do", "operation=build", "outcome=success",
                           "step=start") == 1,
            "queue": total("compute", "nova_bus_queue_seconds_count", "method=compute.run") == 1,
            "guests": total("compute", "nova_compute_guests", "power_state=running") == 1,
            "hosts": total("conductor", "nova_services", "binary=nova-compute", "state=up") == 2,  # one per worker
            "statements": total("conductor", "nova_db_statements_total", "verb=insert") > 3,
            "process": page(ports["compute"])["process_resident_memory_bytes",] > 10e6,
        }

    eventually(lambda: all(counted().values()), 60, "each service counts its share of the boot")
    requests.get(f"http://127.0.0.1:{_option(nova, 'metadata', 'port')}/latest/meta-data", timeout=5)
    assert total("metadata", "nova_metadata_request_seconds_count") == 1


def _option(nova: Cluster, section: str, name: str) -> str:
    inside = nova.config.read_text().partition(f"[{section}]\n")[2].partition("\n[")[0]
    return dict(line.split(" = ", 1) for line in inside.strip().splitlines())[name]


def path_to(spans: list[dict[str, Any]], last: str) -> list[str]:
    """Return the path from the root to the span ``last`` as "service: span"."""
    by_id = {span["id"]: span for span in spans}
    at = next(span for span in spans if span["name"] == last)
    names = [f"{at['service']}: {at['name']}"]
    while at["parent"]:
        at = by_id[at["parent"]]
        names.append(f"{at['service']}: {at['name']}")
    return names[::-1]


def test_trace_of_a_boot_spans_all_services(nova: Cluster, collector: Collector) -> None:
    server_id, request_id = boot(nova, "traced")
    nova.api.wait(server_id, "ACTIVE")

    def whole() -> list[dict[str, Any]]:
        found = collector.of(request_id)
        ids = {span["id"] for span in found}
        complete = all(not span["parent"] or span["parent"] in ids for span in found)
        return found if complete and "step_done receive" in {span["name"] for span in found} else []

    spans = eventually(whole, 15, "all spans have arrived")
    place = ["nova-api: POST /servers", "nova-api: conductor.create", "nova-conductor: create receive",
             "nova-conductor: conductor build.place"]
    host = [*place, "nova-conductor: compute.run", "nova-compute: run receive", "nova-compute: host build"]
    assert path_to(spans, "scheduler select") == [
        *place, "nova-conductor: scheduler.select", "nova-scheduler: select receive",
        "nova-scheduler: scheduler select"]
    assert path_to(spans, "host build.start") == [*host, "nova-compute: host build.start"]
    assert path_to(spans, "step_done receive") == [
        *host, "nova-compute: conductor-reports.step_done", "nova-conductor: step_done receive"]
    assert len([span for span in spans if not span["parent"]]) == 1


def test_resumed_build_of_a_killed_compute_continues_its_trace(nova: Cluster, collector: Collector, total: Any) -> None:
    server_id, request_id = boot(nova, "killed")
    eventually(lambda: nova.api.show(server_id)["OS-EXT-STS:task_state"] == "networking", 10,
               "the host has received the order",
               interval=0.02)
    nova.kill("compute-1")
    nova.start("compute-1")
    nova.api.wait(server_id, "ACTIVE", 60)

    def resumed() -> list[str]:
        return [span["process"] for span in collector.of(request_id) if span["name"] == "host build"]

    eventually(resumed, 15, "the resumed step is in the trace")
    assert sum(total("conductor", "nova_takeovers_total", "operation=build", f"reason={reason}")
               for reason in ("restart", "lease")) >= 1


@pytest.mark.parametrize("name", ["api", "conductor", "scheduler"])
def test_reloaded_workers_use_the_metrics_ports_of_the_old_ones(nova: Cluster, ports: dict[str, int],
                                                                name: str) -> None:
    def born() -> set[float]:
        pages = [page(ports[name] + worker) for worker in range(WORKERS[name])]
        return {numbers["process_start_time_seconds",] for numbers in pages if numbers}

    before = born()
    assert before
    os.kill(nova.processes[name if name in nova.processes else f"{name}-1"].pid, signal.SIGHUP)
    eventually(lambda: len(born() - before) == WORKERS[name], 90,
               "each new worker serves metrics on the port of its number")
    server_id, _request_id = boot(nova, f"reloaded-{name}")
    nova.api.wait(server_id, "ACTIVE")


def test_last_spans_are_sent_before_a_service_exits(nova: Cluster, collector: Collector) -> None:
    server_id, request_id = boot(nova, "last")
    nova.api.wait(server_id, "ACTIVE")
    nova.stop("compute-1")
    try:
        assert [span for span in collector.of(request_id) if span["name"] == "host build.start"]
    finally:
        nova.start("compute-1")
        nova.wait_ready()


def test_boot_succeeds_without_the_trace_collector(nova: Cluster, collector: Collector) -> None:
    collector.server.shutdown()
    collector.server.server_close()
    for name in ("blind-1", "blind-2"):
        server_id, _request_id = boot(nova, name)
        nova.api.wait(server_id, "ACTIVE")
    eventually(lambda: "does not accept trace spans" in nova.processes["api"].tail(), 20,
               "the log contains the warning")
