"""Metrics and traces of the whole suite. Both are enabled here, also for the budgets of test_costs."""

import datetime
import socket
import time

import pytest
import requests
import sqlalchemy as sa
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client.parser import text_string_to_metric_families

from nova import context
from nova.compute.service import watch_gauges
from nova.conductor.service import update_gauges
from nova.db import tables
from nova.db.hosts import allocations
from nova.db.servers import actions, servers
from nova.db.sql.engine import count_statements
from nova.objects.base import new_uuid, utcnow
from nova.objects.hosts.scheduling import Selection
from nova.operations import REGISTRY
from nova.operations.framework.base import NoRequest
from nova.telemetry import exporters, metrics, metrics_export, tracing_export
from tests.functional.client import wait_for
from tests.functional.services.test_costs import network, test_boot_stop_and_delete_stay_within_their_budgets  # noqa: F401


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="module")
def port(suite):
    """Return the port of the metrics, which are enabled in this module only."""
    number = free_port()
    metrics_export.serve("nova-api", "127.0.0.1", number, 0)
    count_statements(suite.conductor.core.db.engine)
    running = watch_gauges([(suite.compute.runner, suite.compute.machine.driver)])
    for thread in running:
        thread.start()
    yield number
    for thread in running:
        thread.stop()
    exporters.stop_metrics()
    with pytest.raises(requests.ConnectionError):
        requests.get(f"http://127.0.0.1:{number}/metrics", timeout=5)


EXPORTER = InMemorySpanExporter()


@pytest.fixture(scope="module", autouse=True)
def observed(port):
    tracing_export.start("nova-allinone", EXPORTER)
    yield
    exporters.stop_tracing()


@pytest.fixture
def scrape(port):
    def scrape():
        """Return {(sample, label=value...): value} as scraped by Prometheus."""
        answer = requests.get(f"http://127.0.0.1:{port}/metrics", timeout=5)
        assert answer.status_code == 200
        return {(sample.name, *sorted(f"{name}={value}" for name, value in sample.labels.items())): sample.value
                for family in text_string_to_metric_families(answer.text) for sample in family.samples}

    return scrape


def spans_of(name):
    """Return all spans of the newest trace whose root is ``name``. A parent may end, and be exported, after its child.
    """
    def complete():
        tracing_export._provider.force_flush()
        exported = EXPORTER.get_finished_spans()
        roots = [span for span in exported if span.name == name and span.parent is None]
        spans = [span for span in exported if roots and span.context.trace_id == roots[-1].context.trace_id]
        ids = {span.context.span_id for span in spans}
        return spans if all(span.parent is None or span.parent.span_id in ids for span in spans) else None

    return wait_for(complete, reason=f"all spans of {name} are exported")


def path_to(spans, last):
    """Return the span names from the root down to the span ``last``."""
    by_id = {span.context.span_id: span for span in spans}
    at = next(span for span in spans if span.name == last)
    names = [at.name]
    while at.parent is not None:
        at = by_id[at.parent.span_id]
        names.append(at.name)
    return names[::-1]


# --- metrics ----------------------------------------------------------------------------------------------
def test_boot_increments_the_counters_of_all_services(suite, admin, flavor, image_id, scrape):
    before = scrape()
    admin.wait(admin.boot(flavor, image_id), "ACTIVE")
    time.sleep(0.3)  # The last reply is counted after it is sent.
    after = scrape()

    def grown(*sample):
        return after[sample] - before.get(sample, 0)

    assert grown("nova_api_requests_total", "method=POST", "route=/servers", "status=202") == 1
    assert grown("nova_api_request_seconds_count", "method=POST", "route=/servers") == 1
    assert grown("nova_bus_sent_total", "kind=call", "method=servers.create", "outcome=success") == 1
    assert grown("nova_bus_call_seconds_count", "method=servers.create") == 1
    assert grown("nova_bus_handled_total", "method=servers.create", "outcome=success") == 1
    assert grown("nova_bus_handled_seconds_count", "method=compute.run") == 1
    assert grown("nova_bus_queue_seconds_count", "method=compute.run") == 1
    for step in ("place", "network", "disks", "start"):
        assert grown("nova_steps_total", "direction=do", "operation=build", "outcome=success", f"step={step}") == 1
        assert grown("nova_step_seconds_count", "direction=do", "operation=build", f"step={step}") == 1
    assert grown("nova_operations_total", "operation=build", "outcome=success") == 1
    assert 0 < grown("nova_operation_seconds_sum", "operation=build", "outcome=success") < 20
    assert grown("nova_claims_total", "outcome=made") == 1
    assert grown("nova_scheduler_select_seconds_count", "outcome=success") == 1
    assert grown("nova_scheduler_candidates_sum") == 1
    assert grown("nova_db_statements_total", "verb=insert") >= 2
    assert grown("nova_db_transaction_seconds_count", "mode=write") >= 3
    assert after["nova_scheduler_nodes",] == len(suite.scheduler.fleet) > 0
    assert after["nova_compute_orders",] == 0
    assert after["nova_api_requests_in_flight",] == 0
    assert after["nova_build_info", "service=nova-api", f"version={metrics_export.nova.__version__}"] == 1


def test_route_labels_are_templates_with_action_names(admin, flavor, image_id, scrape):
    uuid = admin.boot(flavor, image_id)
    admin.wait(uuid, "ACTIVE")
    admin.action(uuid, "os-stop")
    admin.wait(uuid, "SHUTOFF")
    admin.get("/nothing/of/the/sort", expect=404)
    routes = {label for name, *labels in scrape() for label in labels if label.startswith("route=")}
    assert {"route=/servers/{server_id}", "route=/servers/{server_id}/action os-stop", "route=none"} <= routes
    assert not [route for route in routes if uuid in route or "nothing" in route]


def test_metric_labels_contain_no_ids(admin, flavor, image_id, scrape):
    uuid = admin.boot(flavor, image_id)
    admin.wait(uuid, "ACTIVE")
    text = str(scrape())
    assert uuid not in text
    assert admin.project not in {label.partition("=")[2] for _name, *labels in scrape() for label in labels}


def test_failed_steps_and_operations_are_counted(suite, admin, flavor, image_id, driver, scrape):
    before = scrape()
    driver.behaviour.failure["spawn"] = 1.0
    uuid = admin.boot(flavor, image_id)
    admin.wait(uuid, "ERROR")
    after = scrape()
    failed = ("direction=do", "operation=build", "outcome=failed")
    start = ("nova_steps_total", *failed, "step=start")
    assert after[start] == before.get(start, 0) + 1
    for step in ("disks", "network", "place"):
        assert after["nova_steps_total", "direction=undo", "operation=build", "outcome=success", f"step={step}"] >= 1
    assert after["nova_operations_total", "operation=build", "outcome=error"] >= 1


def used(suite):
    with suite.scheduler.fleet.view() as view:
        return view.inventory("VCPU", "used")[view.alive].any()


def test_lost_claim_and_retry_are_counted(suite, admin, flavor, image_id, scrape):
    """Fill the host while the data of the scheduler are outdated."""
    db, usage = suite.conductor.core.db, suite.conductor.core.usage
    usage.flush()  # Publish earlier deletes now: a later update would also report the claim of this test.
    node = db.read(lambda connection: connection.scalar(sa.select(tables.compute_nodes.c.uuid)))
    consumers = []
    while left := db.read(lambda connection: {
            row.resource_class: min(free, row.max_unit) for row in connection.execute(
                sa.select(tables.inventories).where(tables.inventories.c.provider_uuid == node))
            if (free := int((row.total - row.reserved) * row.ratio) - row.used)}):
        consumers.append(new_uuid())
        db.write(lambda connection, left=left: allocations.claim(
            connection, consumers[-1], Selection(node_uuid=node, host="", node=""), left, "p", "u"))
    try:
        admin.wait(admin.boot(flavor, image_id), "ERROR")
    finally:
        for consumer in consumers:
            db.write(lambda connection, consumer=consumer: (allocations.release(connection, consumer),
                                                            allocations.finish_io(connection, node, None)))
        usage.touch([node])
        usage.flush()
        wait_for(lambda: not used(suite), reason="the scheduler counts the host as free again")
    found = scrape()
    assert found["nova_claims_total", "outcome=lost"] >= 1
    assert found["nova_operation_retries_total", "operation=build"] >= 1


def test_no_valid_host_is_a_separate_outcome(admin, image_id, scrape):
    uuid = admin.boot(admin.flavor(vcpus=10_000), image_id)
    admin.wait(uuid, "ERROR")
    assert scrape()["nova_scheduler_select_seconds_count", "outcome=no_valid_host"] >= 1
    assert scrape()["nova_bus_sent_total", "kind=call", "method=scheduler.select", "outcome=refused"] >= 1


def test_deployment_gauges_are_read_from_the_database(suite, admin, flavor, image_id, driver, scrape):
    driver.behaviour.latency["spawn"] = 5
    uuid = admin.boot(flavor, image_id)
    db = suite.conductor.core.db
    under_way = ("nova_actions_unfinished", "operation=build", "state=host")

    def both_count_the_build():
        update_gauges(db)
        values = scrape()
        return values.get(under_way) == values["nova_compute_orders",] == 1

    wait_for(both_count_the_build)
    admin.wait(uuid, "ACTIVE")
    update_gauges(db)
    assert under_way not in scrape()
    assert scrape()["nova_services", "binary=nova-compute", "state=up"] == 1
    assert scrape()["nova_services", "binary=nova-compute", "state=down"] == 0
    service = admin.get("/os-services", binary="nova-compute")["services"][0]["id"]
    admin.put(f"/os-services/{service}", {"status": "disabled", "forced_down": True})
    update_gauges(db)
    assert scrape()["nova_services", "binary=nova-compute", "state=down"] == 1
    assert scrape()["nova_services", "binary=nova-compute", "state=disabled"] == 1
    admin.put(f"/os-services/{service}", {"status": "enabled", "forced_down": False})


def test_message_queue_time_is_never_negative(suite, admin, scrape, monkeypatch):
    """Check a sender whose clock is ahead, and invalid timestamps."""
    for sent_at in (time.time() + 3600, "yesterday", None):
        assert metrics.handled("test.skewed", sent_at, lambda: None) is None
    found = scrape()
    assert found["nova_bus_queue_seconds_count", "method=test.skewed"] == 1
    assert found["nova_bus_queue_seconds_sum", "method=test.skewed"] == 0


# --- traces -----------------------------------------------------------------------------------------------
def test_boot_is_a_single_trace_across_services(admin, flavor, image_id):
    uuid = admin.boot(flavor, image_id)
    request_id = admin.request_id
    admin.wait(uuid, "ACTIVE")
    spans = spans_of("POST /servers")
    assert len([span for span in spans if span.parent is None]) == 1
    ids = {span.context.span_id for span in spans}
    assert all(span.parent is None or span.parent.span_id in ids for span in spans)
    place = ["POST /servers", "conductor.create", "create receive", "conductor build.place"]
    assert path_to(spans, "scheduler select") == [*place, "scheduler.select", "select receive", "scheduler select"]
    host = [*place, "compute.run", "run receive", "host build"]
    for step in ("network", "disks", "start"):
        assert path_to(spans, f"host build.{step}") == [*host, f"host build.{step}"]
    assert path_to(spans, "step_done receive") == [*host, "conductor-reports.step_done", "step_done receive"]
    root = next(span for span in spans if span.parent is None)
    assert root.attributes["http.response.status_code"] == 202
    assert root.attributes["http.route"] == "/servers"
    assert root.attributes["openstack.request_id"] == request_id
    steps = [span for span in spans if span.name in ("conductor build.place", "host build")]
    assert {span.attributes["nova.instance"] for span in steps} == {uuid}
    assert {span.attributes["openstack.request_id"] for span in steps} == {request_id}


def test_servers_placed_together_share_the_trace_of_their_request(admin, flavor, image_id):
    admin.wait(admin.boot(flavor, image_id, min_count=3), "ACTIVE")
    for server in admin.get("/servers")["servers"]:
        admin.wait(server["id"], "ACTIVE")
    spans = spans_of("POST /servers")
    assert path_to(spans, "scheduler select")[3:] == [
        "conductor place together", "scheduler.select", "select receive", "scheduler select"]
    assert len([span for span in spans if span.name == "host build.start"]) == 3


def test_failed_step_has_an_error_status_in_the_trace(admin, flavor, image_id, driver):
    driver.behaviour.failure["spawn"] = 1.0
    admin.wait(admin.boot(flavor, image_id), "ERROR")
    broken = [span for span in spans_of("POST /servers") if span.name == "host build.start"]
    assert broken
    assert not broken[0].status.is_ok


def test_operation_taken_over_by_another_conductor_stays_in_its_trace(suite, admin, flavor, image_id, scrape):
    """Check that another conductor continues the stop of a failed conductor in the same trace."""
    uuid = admin.boot(flavor, image_id)
    admin.wait(uuid, "ACTIVE")
    core, engine = suite.conductor.core, suite.conductor.engine
    instance = core.db.read(lambda connection: servers.get(connection, uuid))
    operation = REGISTRY["stop"]
    with tracing_export.request("POST", {}) as span:
        action = engine.new_action(context.admin(), operation, instance, operation.begin(instance, NoRequest()))
        tracing_export.answered(span, "POST", "/dies/right/after", 202, None)
    action.owner, action.lease_until = "nobody", utcnow() - datetime.timedelta(seconds=1)

    def write(connection):
        actions.insert(connection, [action])
        servers.update(connection, uuid, {"action_uuid": action.uuid, "task_state": "powering-off"})

    core.db.write(write)
    admin.wait(uuid, "SHUTOFF")
    assert scrape()["nova_takeovers_total", "operation=stop", "reason=lease"] == 1
    spans = spans_of("POST /dies/right/after")
    names = [span.name for span in spans]
    assert "host stop" in names, names
    assert "step_done receive" in names, names
    ids = {span.context.span_id for span in spans}
    assert all(span.parent is None or span.parent.span_id in ids for span in spans)


def test_traceparent_header_of_the_client_is_used(admin):
    theirs = "4bf92f3577b34da6a3ce929d0e0e4736"
    admin.session.headers["traceparent"] = f"00-{theirs}-00f067aa0ba902b7-01"
    admin.get("/flavors")
    admin.session.headers["traceparent"] = "nonsense"
    admin.get("/flavors")
    tracing_export._provider.force_flush()
    found = [span for span in EXPORTER.get_finished_spans() if span.name == "GET /flavors"]
    assert f"{found[-2].context.trace_id:032x}" == theirs
    assert f"{found[-2].parent.span_id:016x}" == "00f067aa0ba902b7"
    assert found[-1].parent is None


def test_heartbeats_are_not_traced(suite):
    time.sleep(1.5)
    tracing_export._provider.force_flush()
    assert not [span.name for span in EXPORTER.get_finished_spans() if "beat" in span.name]
