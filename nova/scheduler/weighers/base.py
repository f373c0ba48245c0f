"""Base classes of weighers."""

import logging

import numpy as np

from nova.objects.hosts.scheduling import HostState
from nova.scheduler.columns import FloatColumn
from nova.scheduler.options import SchedulerOptions
from nova.scheduler.plugin import Plugin
from nova.scheduler.request import Request
from nova.scheduler.view import FleetView

LOG = logging.getLogger(__name__)


class Weigher(Plugin):
    """Scores all nodes of a view at once. Scores are normalised to 0..1 between the lowest and the highest score of the
    feasible nodes (all equal: 0), then multiplied. ``option`` names the multiplier: an option of [filter_scheduler],
    and the metadata key by which aggregates override it for their hosts."""

    option = ""
    column = ""  # the column of the view with the scores
    direction = 1.0  # -1 for scores that always count against a node, whose multiplier is configured without a sign
    floor: float | None = None  # scores are normalised from this value if all of them are higher

    def scores(self, view: FleetView, request: Request) -> FloatColumn:
        """Return one finite number per node of the view; higher is better (with a positive multiplier)."""
        scores: FloatColumn = getattr(view, self.column).astype(float)
        return scores

    def multiplier(self, settings: SchedulerOptions) -> float:
        """Return the multiplier of hosts without aggregate metadata; 1 for a weigher without an option."""
        return self.direction * settings.multipliers[self.option] if self.option else self.direction

    def multipliers(self, view: FleetView, settings: SchedulerOptions) -> float | FloatColumn:
        """Return the multiplier of each node, or one number if all are equal."""
        default = self.multiplier(settings)
        if self.option not in view.metadata_keys():
            return default
        column: FloatColumn = view.lift("aggregates", lambda metadata: self._of(metadata, default), np.float64)
        if not column.size or (column == column[0]).all():
            return float(column[0]) if column.size else default
        return column

    def _of(self, aggregates: list[dict[str, str]], default: float) -> float:
        """Return the smallest value in the metadata of the host's aggregates."""
        values = []
        for metadata in aggregates:
            if self.option in metadata:
                value = _number(metadata[self.option])
                if value is None:
                    LOG.warning("Ignoring aggregate metadata %s, which is not a number: %s", self.option,
                                metadata[self.option])
                else:
                    values.append(value)
        return self.direction * min(values) if values else default


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if np.isfinite(value) else None


class HostWeigher(Weigher):
    """Scores one node at a time."""

    def weigh(self, host: HostState, request: Request) -> float:
        """Return the score of this node."""
        raise NotImplementedError

    def scores(self, view: FleetView, request: Request) -> FloatColumn:
        return np.fromiter(
            (self.weigh(view.state(position), request) for position in range(len(view))), np.float64, len(view))
