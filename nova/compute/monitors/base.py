"""Base class of monitors."""

from __future__ import annotations

import abc
from collections.abc import Sequence

from nova.objects.hosts.metric import Metric
from nova.virt.driver import Driver


class Monitor(abc.ABC):
    """Measures a host. Entry point in nova.compute.monitors.KIND, configured in [DEFAULT]compute_monitors as KIND.NAME.
    A monitor is created once and called before each report of the host's nodes, so it must return quickly."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver

    @abc.abstractmethod
    def measure(self) -> Sequence[Metric]:
        """Return the current values. An exception is logged and the values are omitted from the report."""
