"""Measurements of a host, and their way into the reports of its nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from nova import conf, exception
from nova.compute.inventory import NodeReports
from nova.compute.monitors.base import Monitor
from nova.compute.monitors.chosen import Monitors
from nova.conf import CONF
from nova.objects.base import utcnow
from nova.objects.hosts.metric import Metric
from nova.objects.hosts.node import ComputeNode
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
    """Measures what a test says."""

    metrics: Sequence[Metric] = ()

    def measure(self) -> Sequence[Metric]:
        if not self.metrics:
            raise OSError("the sensor is broken")
        return self.metrics


class Guests:
    """The conductor's end."""

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


def test_the_cpu_of_a_host_is_measured_in_ten_values() -> None:
    before = utcnow()
    measured = cpu_of(FakeDriver("h")).measure() or []
    assert values(measured) == {
        "cpu.frequency": 800, "cpu.user.time": 26728850000000, "cpu.kernel.time": 5664160000000,
        "cpu.idle.time": 1592705190000000, "cpu.iowait.time": 6121490000000, "cpu.user.percent": 1,
        "cpu.kernel.percent": 0, "cpu.idle.percent": 97, "cpu.iowait.percent": 0, "cpu.percent": 2}
    assert {each.source for each in measured} == {"fake"}
    assert all(before <= each.timestamp <= utcnow() for each in measured)


def test_percents_are_of_the_time_since_the_measurement_before() -> None:
    driver = Busy()
    monitors = cpu_of(driver)
    driver.cpu = HostCpu(user=100, kernel=0, idle=900, iowait=0)
    assert values(monitors.measure())["cpu.percent"] == 10
    driver.cpu = HostCpu(user=160, kernel=20, idle=910, iowait=10)
    found = values(monitors.measure())
    assert {name: value for name, value in found.items() if name.endswith("percent")} == {
        "cpu.user.percent": 60, "cpu.kernel.percent": 20, "cpu.idle.percent": 10, "cpu.iowait.percent": 10,
        "cpu.percent": 90}


def test_counters_that_began_anew_are_of_the_time_since_then() -> None:
    driver = Busy()
    monitors = cpu_of(driver)
    driver.cpu = HostCpu(user=1000, idle=1000)
    monitors.measure()
    driver.cpu = HostCpu(user=30, idle=70)
    assert values(monitors.measure())["cpu.user.percent"] == 30


def test_in_no_time_percents_stay_as_they_were_and_before_any_there_are_none() -> None:
    driver = Busy()
    monitors = cpu_of(driver)
    assert values(monitors.measure()).keys() == {
        "cpu.frequency", "cpu.user.time", "cpu.kernel.time", "cpu.idle.time", "cpu.iowait.time"}
    driver.cpu = HostCpu(user=25, idle=75)
    first = values(monitors.measure())
    assert values(monitors.measure()) == first
    assert first["cpu.user.percent"] == 25


def test_a_name_without_a_kind_is_of_the_cpu() -> None:
    assert "cpu.percent" in values(Monitors.named(["virt_driver"], FakeDriver("h")).measure())


@pytest.mark.parametrize(("names", "reason"), [
    (["cpu.nothing"], "no nova.compute.monitors.cpu plugin 'nothing'"),
    (["rack.temperature"], "no nova.compute.monitors.rack plugin 'temperature'"),
    (["cpu.virt_driver", "virt_driver"], "two monitors of cpu")])
def test_a_wrong_name_is_the_operators_mistake(names: list[str], reason: str) -> None:
    with pytest.raises(exception.InvalidInput, match=reason):
        Monitors.named(names, FakeDriver("h"))


def test_a_monitor_that_fails_costs_its_own_values_only(caplog: pytest.LogCaptureFixture) -> None:
    driver = FakeDriver("h")
    broken, working = Listed(driver), Listed(driver)
    working.metrics = [metric("rack.inlet")]
    assert values(Monitors({"fans": broken, "rack": working}).measure()) == {"rack.inlet": 1}
    assert "Monitor fans failed, its metrics are not reported: the sensor is broken" in caplog.text
    assert Monitors({"fans": broken}).measure() is None


def test_what_conductors_would_refuse_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    """Else the host could not report its nodes at all."""
    monitor = Listed(FakeDriver("h"))
    monitor.metrics = [metric("a b"), metric("ok"), metric("load.percent", 101)]
    assert values(Monitors({"rack": monitor}).measure()) == {"ok": 1}
    assert caplog.text.count("invalid metric") == 2


def test_of_two_values_of_a_name_the_first_counts() -> None:
    driver = FakeDriver("h")
    one, two = Listed(driver), Listed(driver)
    one.metrics, two.metrics = [metric("inlet", 1)], [metric("inlet", 2)]
    assert values(Monitors({"a": one, "b": two}).measure()) == {"inlet": 1}


# --- reports -----------------------------------------------------------------------------------------
def test_without_monitors_nothing_is_measured_and_nothing_is_told_twice() -> None:
    guests = Guests()
    reports = NodeReports("h", FakeDriver("h"), guests, Monitors.named([], FakeDriver("h")))  # type: ignore[arg-type]
    for _report in range(3):
        reports.report()
    [[told]] = guests.told
    assert told.metrics is None


def test_each_report_has_what_was_measured_of_the_host_on_each_of_its_nodes() -> None:
    driver, guests = Busy(nodes=3), Guests()
    reports = NodeReports("h", driver, guests, cpu_of(driver))  # type: ignore[arg-type]
    for user in (10, 30):
        driver.cpu = HostCpu(user=user, idle=100)
        reports.report()
    assert [[values(node.metrics)["cpu.user.time"] for node in nodes] for nodes in guests.told] == [[10] * 3, [30] * 3]


def test_a_report_is_told_though_nothing_could_be_measured() -> None:
    guests = Guests()
    reports = NodeReports("h", FakeDriver("h"), guests, Monitors({"a": Listed(FakeDriver("h"))}))  # type: ignore[arg-type]
    reports.report()
    [[told]] = guests.told
    assert told.metrics is None
