"""CPU metrics of a host, from its hypervisor driver."""

import dataclasses
from collections.abc import Sequence

from nova.compute.monitors.base import Monitor
from nova.conf import CONF
from nova.objects.base import utcnow
from nova.objects.hosts.node import Metric
from nova.virt.driver import Driver, HostCpu

_KINDS = ("user", "kernel", "idle", "iowait")


class VirtDriverMonitor(Monitor):
    """CPU frequency and times since boot. Percentages refer to the time since the previous measurement."""

    def __init__(self, driver: Driver) -> None:
        super().__init__(driver)
        self._before = HostCpu()
        self._percents: dict[str, int] = {}

    def measure(self) -> Sequence[Metric]:
        cpu = self.driver.host_cpu()
        self._percents = _percents(self._before, cpu) or self._percents
        self._before = cpu
        times = {f"cpu.{kind}.time": getattr(cpu, kind) for kind in _KINDS}
        now = utcnow()
        return [Metric(name=name, value=value, source=CONF.compute_driver, timestamp=now)
                for name, value in ({"cpu.frequency": cpu.frequency} | times | self._percents).items()]


def _percents(before: HostCpu, now: HostCpu) -> dict[str, int]:
    """Return the percentages for the time between two measurements, rounded down; {} if no time has passed."""
    spent = {kind: getattr(now, kind) - getattr(before, kind) for kind in _KINDS}
    if min(spent.values()) < 0:  # counters were reset
        spent = {kind: value for kind, value in dataclasses.asdict(now).items() if kind in _KINDS}
    total = sum(spent.values())
    if not total:
        return {}
    return {f"cpu.{kind}.percent": 100 * time // total for kind, time in spent.items()} | {
        "cpu.percent": 100 * (total - spent["idle"]) // total}
