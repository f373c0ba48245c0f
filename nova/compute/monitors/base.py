"""The base class of monitors, and the monitors configured in [DEFAULT]compute_monitors."""

from __future__ import annotations

import abc
import logging
from collections.abc import Iterator, Sequence
from typing import Any

from stevedore import driver as stevedore_driver

from nova import exception
from nova.objects.hosts.node import Metric, possible
from nova.virt.driver import Driver

LOG = logging.getLogger(__name__)


def load(namespace: str, name: str) -> Any:
    """Return the class of an entry point. Raises InvalidInput if there is none."""
    try:
        return stevedore_driver.DriverManager(namespace, name, invoke_on_load=False).driver
    except Exception as error:
        raise exception.InvalidInput(reason=f"there is no {namespace} plugin {name!r}: {error}") from error


class Monitor(abc.ABC):
    """Measures a host. Entry point in nova.compute.monitors.KIND, configured in [DEFAULT]compute_monitors as KIND.NAME.
    A monitor is created once and called before each report of the host's nodes, so it must return quickly."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver

    @abc.abstractmethod
    def measure(self) -> Sequence[Metric]:
        """Return the current values. An exception is logged and the values are omitted from the report."""


class Monitors:
    """The monitors of one host, possibly none."""

    def __init__(self, monitors: dict[str, Monitor]) -> None:
        self._monitors = monitors

    @classmethod
    def named(cls, names: Sequence[str], driver: Driver) -> Monitors:
        """Load the monitors. Raises InvalidInput for an unknown name and for two monitors of the same kind."""
        monitors: dict[str, Monitor] = {}
        for name in names:
            kind, _, plugin = name.strip().rpartition(".")
            kind = kind or "cpu"
            if kind in monitors:
                raise exception.InvalidInput(reason=f"[DEFAULT]compute_monitors names two monitors of the kind {kind}")
            monitors[kind] = load(f"nova.compute.monitors.{kind}", plugin)(driver)
        return cls(monitors)

    def measure(self) -> list[Metric] | None:
        """Return all available metrics, or None if there are none."""
        metrics: dict[str, Metric] = {}
        for kind, monitor in self._monitors.items():
            for metric in self._of(kind, monitor):
                metrics.setdefault(metric.name, metric)
        return list(metrics.values()) or None

    def _of(self, kind: str, monitor: Monitor) -> Iterator[Metric]:
        try:
            measured = monitor.measure()
        except Exception as error:  # a broken monitor must not prevent the inventory report
            LOG.warning("Monitor %s failed, its metrics are not reported: %s", kind, error)
            return
        for metric in measured:
            if possible(metric):
                yield metric
            else:
                LOG.warning("Monitor %s returned an invalid metric, which is ignored: %.100r", kind, metric)
