"""The CPU of a host, as its hypervisor tells."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from nova.compute.monitors.base import Monitor
from nova.conf import CONF
from nova.objects.base import utcnow
from nova.objects.metric import Metric
from nova.virt.driver import Driver, HostCpu

_KINDS = ("user", "kernel", "idle", "iowait")


class VirtDriverMonitor(Monitor):
    """Frequency and times since the boot; percents are those of the time since it was asked before."""

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
    """Of the time in between, rounded down; {}: there was none."""
    spent = {kind: getattr(now, kind) - getattr(before, kind) for kind in _KINDS}
    if min(spent.values()) < 0:  # counters that began anew
        spent = {kind: value for kind, value in dataclasses.asdict(now).items() if kind in _KINDS}
    total = sum(spent.values())
    if not total:
        return {}
    busy = total - spent["idle"]
    return {f"cpu.{kind}.percent": 100 * part // total for kind, part in spent.items()} | {
        "cpu.percent": 100 * busy // total}
