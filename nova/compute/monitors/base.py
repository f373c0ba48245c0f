"""The interface of a monitor."""

from __future__ import annotations

import abc
from collections.abc import Sequence

from nova.objects.metric import Metric
from nova.virt.driver import Driver


class Monitor(abc.ABC):
    """Measures a host. An entry point of nova.compute.monitors.KIND, which [DEFAULT]compute_monitors names KIND.NAME.

    It is made once, and asked before each report of the host's nodes: it must not take long.
    """

    def __init__(self, driver: Driver) -> None:
        self.driver = driver

    @abc.abstractmethod
    def measure(self) -> Sequence[Metric]:
        """The values as they are now. What it raises is logged, and costs the host these values until the next time."""
