"""Ranking: the weight of every feasible node, updated row by row during planning.

The weights are exactly those of a new ranking of the same state: a changed node is weighed by the same operations in
the same order, and a weigher's column is normalised again when the range of its scores changes."""

from collections.abc import Sequence

import numpy as np

from nova.scheduler.columns import FloatColumn, IntColumn
from nova.scheduler.filters.base import Filter
from nova.scheduler.plugin import Scope
from nova.scheduler.request import Request
from nova.scheduler.view import FleetView
from nova.scheduler.weighers.base import Weigher


def finite(scores: FloatColumn) -> FloatColumn:
    """Return the scores with non-finite values replaced by 0, so that no node distorts the normalisation."""
    scores = np.asarray(scores, np.float64)
    return scores if np.isfinite(scores).all() else np.where(np.isfinite(scores), scores, 0.0)


class _WeigherColumn:
    """The contribution of one weigher to the weights."""

    def __init__(self, weigher: Weigher, multiplier: float | FloatColumn, view: FleetView, request: Request) -> None:
        self.weigher = weigher
        self.scope = weigher.scope(request)
        self.multiplier = multiplier
        self.scores = finite(weigher.scores(view, request))
        if self.scores.base is not None:  # a NumPy view: do not change the fleet's columns
            self.scores = self.scores.copy()
        self.contribution: FloatColumn | None = None
        self.normalise()

    def normalise(self) -> None:
        """Compute the range and the weighted contribution of all nodes; None if all scores are equal and so count 0."""
        scores, floor = self.scores, self.weigher.floor
        self.low = float(scores.min()) if scores.size else 0.0
        self.high = float(scores.max()) if scores.size else 0.0
        if floor is not None:
            self.low = min(self.low, floor)
        if self.high > self.low and self.scores.size:
            self.contribution = self.multiplier * ((scores - self.low) / (self.high - self.low))
        else:
            self.contribution = None

    def set(self, position: int, score: float) -> bool:
        """Store a changed score of a node; return True if the range (and so all contributions) changed."""
        old = float(self.scores[position])
        if score == old:
            return False
        self.scores[position] = score
        if old <= self.low or old >= self.high or score < self.low or score > self.high:
            before = self.low, self.high
            self.normalise()
            if (self.low, self.high) != before:
                return True
        if self.contribution is not None:
            multiplier = self.multiplier if isinstance(self.multiplier, float) else self.multiplier[position]
            self.contribution[position] = multiplier * ((score - self.low) / (self.high - self.low))
        return False

    def drop(self, positions: IntColumn) -> bool:
        """Remove these nodes; return True if the range changed."""
        dropped = self.scores[positions]
        self.scores = np.delete(self.scores, positions)
        if not isinstance(self.multiplier, float):
            self.multiplier = np.delete(self.multiplier, positions)
        if dropped.min() <= self.low or dropped.max() >= self.high:
            before = self.low, self.high
            self.normalise()
            return (self.low, self.high) != before
        if self.contribution is not None:
            self.contribution = np.delete(self.contribution, positions)
        return False

    def renew(self, view: FleetView, request: Request) -> None:
        self.scores = finite(self.weigher.scores(view, request)).copy()
        self.normalise()


class Ranking:
    """The feasible nodes of a view and their weights (``weights[i]`` is the weight of table row ``rows[i]``)."""

    def __init__(self, view: FleetView, rows: IntColumn, request: Request, weighers: Sequence[Weigher],
                 chain: Sequence[Filter]) -> None:
        self._view, self._request, self.rows = view, request, rows
        self._row_filters = [node_filter for node_filter in chain if node_filter.scope(request) is Scope.ROW]
        self._table_filters = [node_filter for node_filter in chain if node_filter.scope(request) is Scope.TABLE]
        feasible = view.take(rows)
        self._columns: list[_WeigherColumn] = []
        for weigher in weighers:
            if weigher.applies(request):
                multiplier = weigher.multipliers(feasible, request.settings)
                if not isinstance(multiplier, float) or multiplier != 0.0:
                    self._columns.append(_WeigherColumn(weigher, multiplier, feasible, request))
        self._sum()

    def __len__(self) -> int:
        return len(self.rows)

    def _sum(self) -> None:
        total: FloatColumn = np.zeros(len(self.rows))
        for column in self._columns:
            if column.contribution is not None:
                total += column.contribution
        self.weights = total

    def consumed(self, position: int) -> None:
        """Update the weights after a server was added to the node at ``position`` in the view and the request."""
        view, request = self._view.at(int(self.rows[position])), self._request
        if not all(bool(node_filter.mask(view, request)[0]) for node_filter in self._row_filters):
            self._drop(np.array([position], np.int64))
        else:
            self._reweigh(position, view)
        if self._table_filters or any(column.scope is Scope.TABLE for column in self._columns):
            # Evaluate plugins again whose results depend on other nodes, too.
            for node_filter in self._table_filters:
                refused = np.flatnonzero(~node_filter.mask(self._view.take(self.rows), self._request))
                if refused.size:
                    self._drop(refused)
            changed = [column for column in self._columns if column.scope is Scope.TABLE]
            if changed:
                view = self._view.take(self.rows)
                for column in changed:
                    column.renew(view, self._request)
                self._sum()

    def _reweigh(self, position: int, view: FleetView) -> None:
        moved = False
        for column in self._columns:
            if column.scope is Scope.ROW:
                moved = column.set(position, float(finite(column.weigher.scores(view, self._request))[0])) or moved
        if moved:
            self._sum()
            return
        weight = np.float64(0.0)
        for column in self._columns:
            if column.contribution is not None:
                weight += column.contribution[position]
        self.weights[position] = weight

    def _drop(self, positions: IntColumn) -> None:
        self.rows = np.delete(self.rows, positions)
        moved = [column.drop(positions) for column in self._columns]
        if any(moved):
            self._sum()
        else:
            self.weights = np.delete(self.weights, positions)

    def best(self, count: int) -> IntColumn:
        """Return the positions of the ``count`` best nodes, best first; equal nodes in the order of their rows."""
        if count == 1:
            return np.array([self.weights.argmax()], np.int64)
        count = min(count, len(self.rows))
        if not count:
            return np.zeros(0, np.int64)
        if count < len(self.rows):
            # Nodes that may be among the best are those that are not worse than the node in position ``count``.
            cut = np.partition(self.weights, len(self.rows) - count)[len(self.rows) - count]
            candidates = np.flatnonzero(self.weights >= cut)
        else:
            candidates = np.arange(len(self.rows))
        best: IntColumn = candidates[np.argsort(-self.weights[candidates], kind="stable")[:count]]
        return best
