"""The bases of weighers."""

from __future__ import annotations

import logging

import numpy as np

from nova.conf import CONF
from nova.objects.scheduling import HostState
from nova.scheduler.columns import FloatColumn
from nova.scheduler.plugin import Plugin
from nova.scheduler.request import Request
from nova.scheduler.view import FleetView

LOG = logging.getLogger(__name__)


class Weigher(Plugin):
    """Scores all nodes of a view at once.

    Scores are normalised to 0..1 between the lowest and the highest score of the nodes that fit
    (all equal: 0), then multiplied. ``option`` names the multiplier: an option of
    [filter_scheduler], and the metadata key by which aggregates override it for their hosts.
    """

    option = ""
    # The lower end of the range is at most this, whatever the scores are.
    floor: float | None = None

    def scores(self, view: FleetView, request: Request) -> FloatColumn:
        """One finite number per node of the view; higher is better (with a positive multiplier)."""
        raise NotImplementedError

    def multiplier(self) -> float:
        """The multiplier of hosts whose aggregates say nothing; 1 for a weigher without an option."""
        return float(CONF.filter_scheduler[self.option]) if self.option else 1.0

    def multipliers(self, view: FleetView) -> float | FloatColumn:
        """The multiplier of each node; one number when it is the same for all."""
        default = self.multiplier()
        if not self.option:
            return default
        column: FloatColumn = view.lift("aggregates", lambda metadata: self._of(metadata, default), np.float64)
        if not column.size or (column == column[0]).all():
            return float(column[0]) if column.size else default
        return column

    def _of(self, aggregates: list[dict[str, str]], default: float) -> float:
        """The smallest value that the aggregates of a host give."""
        values = []
        for metadata in aggregates:
            if self.option in metadata:
                try:
                    values.append(self.checked(float(metadata[self.option])))
                except ValueError:
                    LOG.warning("Aggregate metadata %s is not a number: %s", self.option, metadata[self.option])
        return min(values, default=default)

    def checked(self, value: float) -> float:
        """A multiplier as an aggregate gives it; raises ValueError for a useless one."""
        if not np.isfinite(value):
            raise ValueError(value)
        return value


class HostWeigher(Weigher):
    """Scores one node at a time."""

    def weigh(self, host: HostState, request: Request) -> float:
        """The score of this node."""
        raise NotImplementedError

    def scores(self, view: FleetView, request: Request) -> FloatColumn:
        return np.fromiter(
            (self.weigh(view.state(position), request) for position in range(len(view))), np.float64, len(view))
