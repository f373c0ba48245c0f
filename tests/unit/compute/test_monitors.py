"""Metrics of a host, and their reports for its nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from nova import conf, exception
from nova.compute.monitors.base import Monitor, Monitors
from nova.compute.reports import NodeReports
from nova.conf import CONF
from nova.objects.base import utcnow
from nova.objects.hosts.node import ComputeNode, Metric
from nova.virt.driver import HostCpu
from nova.virt.fake.driver import FakeDriver
from nova.virt.fake.scenario import Group


@pytest.fixture(autouse=True)
def options() -> Iterator[None]:
    conf.register()
    CONF.set_override("compute_driver", "fake")
    yield
    CONF.clear_override("compute_driver")


class Busy(FakeDriver):
    """A driver with the CPU usage and number of nodes that a test defines."""

    def __init__(self, nodes: int = 1) -> None:
        super().__init__("h", Group(name="h", nodes=nodes))
        self.cpu = HostCpu(frequency=1000)

    def host_cpu(self) -> HostCpu:
        return self.cpu


class Listed(Monitor):
    """A monitor that returns the metrics set by a test."""

    metrics: Sequence[Metric] = ()

    def measure(self) -> Sequence[Metric]:
        if not self.metrics:
            raise OSError("the sensor is broken")
        return self.metrics


class Guests:
    """A fake conductor that records the reported nodes."""

    def __init__(self) -> None:
        self.told: list[list[ComputeNode]] = []

    def report_nodes(self, _ctx: Any, _host: str, nodes: list[ComputeNode], _after: str, _upto: str | None) -> None:
        self.told.append(nodes)


def values(measured: Sequence[Metric] | None) -> dict[str, int]:
    return {metric.name: metric.value for metric in measured or ()}


def metric(name: str, value: int = 1) -> Metric:
    return Metric(name=name, value=value, source="test", timestamp=utcnow())


def cpu_of(driver: FakeDriver) -> Monitors:
    return Monitors.named(["cpu.virt_driver"], driver)


def test_cpu_monitor_measures_ten_metrics() -> None:
    before = utcnow()
    measured = cpu_of(FakeDriver("h")).measure() or []
    assert values(measured) == {
        "cpu.frequency": 800, "cpu.user.time": 26728850000000, "cpu.kernel.time": 5664160000000,
        "cpu.idle.time": 1592705190000000, "cpu.iowait.time": 6121490000000, "cpu.user.percent": 1,
        "cpu.kernel.percent": 0, "cpu.idle.percent": 97, "cpu.iowait.percent": 0, "cpu.percent": 2}
    assert {each.source for each in measured} == {"fake"}
    assert all(before <= each.timestamp <= utcnow() for each in measured)


def test_cpu_percentages_cover_the_time_since_the_previous_measurement() -> None:
    driver = Busy()
    monitors = cpu_of(driver)
    driver.cpu = HostCpu(user=100, kernel=0, idle=900, iowait=0)
    assert values(monitors.measure())["cpu.percent"] == 10
    driver.cpu = HostCpu(user=160, kernel=20, idle=910, iowait=10)
    found = values(monitors.measure())
    assert {name: value for name, value in found.items() if name.endswith("percent")} == {
        "cpu.user.percent": 60, "cpu.kernel.percent": 20, "cpu.idle.percent": 10, "cpu.iowait.percent": 10,
        "cpu.percent": 90}


def test_cpu_percentages_restart_after_a_counter_reset() -> None:
    driver = Busy()
    monitors = cpu_of(driver)
    driver.cpu = HostCpu(user=1000, idle=1000)
    monitors.measure()
    driver.cpu = HostCpu(user=30, idle=70)
    assert values(monitors.measure())["cpu.user.percent"] == 30


def test_cpu_percentages_without_elapsed_time_are_unchanged_or_absent() -> None:
    driver = Busy()
    monitors = cpu_of(driver)
    assert values(monitors.measure()).keys() == {
        "cpu.frequency", "cpu.user.time", "cpu.kernel.time", "cpu.idle.time", "cpu.iowait.time"}
    driver.cpu = HostCpu(user=25, idle=75)
    first = values(monitors.measure())
    assert values(monitors.measure()) == first
    assert first["cpu.user.percent"] == 25


def test_monitor_name_without_a_namespace_is_a_cpu_monitor() -> None:
    assert "cpu.percent" in values(Monitors.named(["virt_driver"], FakeDriver("h")).measure())


@pytest.mark.parametrize(("names", "reason"), [
    (["cpu.nothing"], "no nova.compute.monitors.cpu plugin 'nothing'"),
    (["rack.temperature"], "no nova.compute.monitors.rack plugin 'temperature'"),
    (["cpu.virt_driver", "virt_driver"], "two monitors of the kind cpu")])
def test_invalid_monitor_name_is_refused(names: list[str], reason: str) -> None:
    with pytest.raises(exception.InvalidInput, match=reason):
        Monitors.named(names, FakeDriver("h"))


def test_failed_monitor_does_not_affect_other_monitors(caplog: pytest.LogCaptureFixture) -> None:
    driver = FakeDriver("h")
    broken, working = Listed(driver), Listed(driver)
    working.metrics = [metric("rack.inlet")]
    assert values(Monitors({"fans": broken, "rack": working}).measure()) == {"rack.inlet": 1}
    assert "Monitor fans failed, its metrics are not reported: the sensor is broken" in caplog.text
    assert Monitors({"fans": broken}).measure() is None


def test_invalid_metrics_are_omitted(caplog: pytest.LogCaptureFixture) -> None:
    """Otherwise conductors would refuse the whole report of the host."""
    monitor = Listed(FakeDriver("h"))
    monitor.metrics = [metric("a b"), metric("ok"), metric("load.percent", 101)]
    assert values(Monitors({"rack": monitor}).measure()) == {"ok": 1}
    assert caplog.text.count("invalid metric") == 2


def test_first_value_of_a_duplicate_metric_is_used() -> None:
    driver = FakeDriver("h")
    one, two = Listed(driver), Listed(driver)
    one.metrics, two.metrics = [metric("inlet", 1)], [metric("inlet", 2)]
    assert values(Monitors({"a": one, "b": two}).measure()) == {"inlet": 1}


# --- reports -----------------------------------------------------------------------------------------
def test_without_monitors_an_unchanged_node_is_reported_once() -> None:
    guests = Guests()
    reports = NodeReports("h", FakeDriver("h"), guests, Monitors.named([], FakeDriver("h")))  # type: ignore[arg-type]
    for _report in range(3):
        reports.report()
    [[told]] = guests.told
    assert told.metrics is None


def test_report_contains_host_metrics_for_every_node() -> None:
    driver, guests = Busy(nodes=3), Guests()
    reports = NodeReports("h", driver, guests, cpu_of(driver))  # type: ignore[arg-type]
    for user in (10, 30):
        driver.cpu = HostCpu(user=user, idle=100)
        reports.report()
    assert [[values(node.metrics)["cpu.user.time"] for node in nodes] for nodes in guests.told] == [[10] * 3, [30] * 3]


def test_report_is_sent_without_metrics_if_monitors_fail() -> None:
    guests = Guests()
    reports = NodeReports("h", FakeDriver("h"), guests, Monitors({"a": Listed(FakeDriver("h"))}))  # type: ignore[arg-type]
    reports.report()
    [[told]] = guests.told
    assert told.metrics is None
