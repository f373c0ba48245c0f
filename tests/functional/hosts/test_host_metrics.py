"""Host metrics, from the monitor to scheduling and notifications."""

import dataclasses

import pytest

from nova.compute.monitors.base import Monitors
from nova.conf import CONF
from nova.scheduler.options import SchedulerOptions
from nova.virt.driver import HostCpu
from tests.functional.client import wait_for
from tests.functional.listening import listen
from tests.functional.several_hosts import SECOND, newest_action


@pytest.fixture
def measure(suite, monkeypatch):
    """Return ``measure(service, idle)``, which sets the CPU idle percentage that the monitor of a host reports."""
    changed = []

    def measure(service, idle):
        driver = service.machine.driver
        if service not in changed:
            changed.append(service)
            monkeypatch.setattr(service._nodes, "_monitors", Monitors.named(["cpu.virt_driver"], driver))
            monkeypatch.setattr(driver, "host_cpu", HostCpu)
        before = driver.host_cpu()
        now = dataclasses.replace(before, frequency=800, user=before.user + 100 - idle, idle=before.idle + idle)
        monkeypatch.setattr(driver, "host_cpu", lambda: now)
        service.report_nodes()

    yield measure
    monkeypatch.undo()
    for service in changed:
        service.report_nodes()


@pytest.fixture
def monitored():
    """Configure a monitor for hosts that start from now on."""
    CONF.set_override("compute_monitors", ["cpu.virt_driver"])
    yield
    CONF.clear_override("compute_monitors")


@pytest.fixture
def by_metrics(suite, monkeypatch):
    """Configure the scheduler to prefer hosts with an idle CPU."""
    CONF.set_override("weight_setting", ["cpu.percent=-1.0"], group="metrics")
    monkeypatch.setattr(suite.scheduler.manager, "_settings", SchedulerOptions.from_conf(CONF))
    yield
    CONF.clear_override("weight_setting", group="metrics")


def known(suite):
    """Return host -> CPU usage stored by the scheduler."""
    with suite.scheduler.fleet.view() as view:
        states = [view.state(position) for position in range(len(view)) if view.alive[position]]
    return {state.host: state.metrics.get("cpu.percent") for state in states}


def test_metrics_weigher_selects_the_host_with_idle_cpu(suite, admin, second, flavor, image_id, measure, by_metrics):
    for idle in ((90, 10), (20, 80)):
        for service, part in zip((suite.compute, second), idle, strict=True):
            measure(service, part)
        busy = {suite.compute.host: 100 - idle[0], SECOND: 100 - idle[1]}
        wait_for(lambda: known(suite) == busy, reason="the scheduler has received the metrics")  # noqa: B023
        uuid = admin.boot(flavor, image_id)
        shown = admin.wait(uuid, "ACTIVE")
        assert shown["OS-EXT-SRV-ATTR:host"] == min(busy, key=busy.get)
        admin.delete(f"/servers/{uuid}")
        admin.wait_gone(uuid)


def test_host_reports_metrics_from_its_start_when_configured(suite, monitored, second):
    wait_for(lambda: known(suite) == {suite.compute.host: None, SECOND: 2},
             reason="the scheduler has received the metrics")


def test_scheduler_reload_preserves_host_metrics(suite, second, measure):
    measure(second, 30)
    wait_for(lambda: known(suite)[SECOND] == 70, reason="the scheduler has received the metrics")
    suite.scheduler._follower.read_all()
    assert known(suite) == {suite.compute.host: None, SECOND: 70}


def test_host_without_required_metrics_is_not_scheduled(
        suite, admin, second, flavor, image_id, measure, by_metrics):
    measure(second, 30)
    wait_for(lambda: known(suite)[SECOND] == 70, reason="the scheduler has received the metrics")
    uuid = admin.boot(flavor, image_id)
    admin.wait(uuid, "ERROR")
    assert newest_action(admin, uuid, "create")["message"] == "Error"


def test_metrics_update_notification_matches_the_sample(suite, monkeypatch):
    compute = suite.compute
    with monkeypatch.context() as patch, listen(suite, notification_format="both") as listener:
        patch.setattr(compute._nodes, "_monitors", Monitors.named(["virt_driver"], compute.machine.driver))
        for _report in range(2):
            compute.report_nodes()
        wait_for(lambda: len(listener.messages) == 4, reason="both updates are published in both notification formats")
    compute.report_nodes()
    [message, second] = [each for each in listener.messages if each["event_type"] == "metrics.update"]
    data = message["payload"]["nova_object.data"]
    assert (message["publisher_id"], message["priority"]) == (f"nova-compute:{compute.host}", "INFO")
    assert (data["host"], data["host_ip"], data["nodename"]) == (compute.host, CONF.my_ip, compute.host)
    # The metrics of the sample in the upstream documentation.
    values = {each["nova_object.data"]["name"]: each["nova_object.data"]["value"] for each in data["metrics"]}
    assert values == {
        "cpu.frequency": 800, "cpu.idle.percent": 97, "cpu.idle.time": 1592705190000000, "cpu.iowait.percent": 0,
        "cpu.iowait.time": 6121490000000, "cpu.kernel.percent": 0, "cpu.kernel.time": 5664160000000, "cpu.percent": 2,
        "cpu.user.percent": 1, "cpu.user.time": 26728850000000}
    assert {each["nova_object.data"]["source"] for each in data["metrics"]} == {"fake"}
    assert second["message_id"] != message["message_id"]
    [old, _second] = [each for each in listener.messages if each["event_type"] == "compute.metrics.update"]
    assert set(old["payload"]) == {"host", "host_ip", "nodename", "metrics"}
    percents = {each["name"]: each["value"] for each in old["payload"]["metrics"]}
    assert (percents["cpu.idle.percent"], percents["cpu.frequency"]) == (0.97, 800)
