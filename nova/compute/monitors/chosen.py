"""The monitors that [DEFAULT]compute_monitors names."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

from nova import exception
from nova.compute import plugins
from nova.compute.monitors.base import Monitor
from nova.objects.metric import Metric, possible
from nova.virt.driver import Driver

LOG = logging.getLogger(__name__)

_NAMESPACE = "nova.compute.monitors"
# Of a name without one.
_KIND = "cpu"


class Monitors:
    """Those of one host; none: nothing is measured."""

    def __init__(self, monitors: dict[str, Monitor]) -> None:
        self._monitors = monitors

    @classmethod
    def named(cls, names: Sequence[str], driver: Driver) -> Monitors:
        """Raises InvalidInput for a name of no monitor, and for two of a kind: they would measure the same."""
        found: dict[str, Monitor] = {}
        for name in names:
            kind, _, plugin = name.strip().rpartition(".")
            kind = kind or _KIND
            if kind in found:
                raise exception.InvalidInput(reason=f"[DEFAULT]compute_monitors names two monitors of {kind}")
            found[kind] = plugins.load(f"{_NAMESPACE}.{kind}", plugin)(driver)
        return cls(found)

    def measure(self) -> list[Metric] | None:
        """All values that can be had now; None: there are none."""
        found: dict[str, Metric] = {}
        for kind, monitor in self._monitors.items():
            for metric in self._of(kind, monitor):
                found.setdefault(metric.name, metric)
        return list(found.values()) or None

    def _of(self, kind: str, monitor: Monitor) -> Iterator[Metric]:
        try:
            measured = monitor.measure()
        except Exception as error:  # what is not measured must not cost the host its inventory
            LOG.warning("The monitor of %s failed: %s", kind, error)
            return
        for metric in measured:
            if possible(metric):
                yield metric
            else:
                LOG.warning("The monitor of %s measured %.100r, which cannot be", kind, metric)
