"""Rank: the weight of every feasible node, kept up to date row by row while planning.

The weights are exactly those that a fresh ranking of the same state would give: a changed node is
weighed by the same operations in the same order, and a weigher's column is normalised anew when
the range of its scores has moved.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nova.scheduler.columns import FloatColumn, IntColumn
from nova.scheduler.filters.base import Filter
from nova.scheduler.plugin import Scope
from nova.scheduler.request import Request
from nova.scheduler.view import FleetView
from nova.scheduler.weighers.base import Weigher


def finite(scores: FloatColumn) -> FloatColumn:
    """Scores that no node can spoil for all others: what is not a number counts as 0."""
    scores = np.asarray(scores, np.float64)
    if np.isfinite(scores).all():
        return scores
    return np.where(np.isfinite(scores), scores, 0.0)


class _Part:
    """One weigher's share of the weights."""

    def __init__(self, weigher: Weigher, multiplier: float | FloatColumn, view: FleetView, request: Request) -> None:
        self.weigher = weigher
        self.scope = weigher.scope(request)
        self.multiplier = multiplier
        self.scores = finite(weigher.scores(view, request))
        if self.scores.base is not None:  # a view of the fleet's own columns
            self.scores = self.scores.copy()
        self.share: FloatColumn | None = None
        self.normalise()

    def normalise(self) -> None:
        """The range and the weighted share of all nodes; None where all are equal and so count 0."""
        scores, floor = self.scores, self.weigher.floor
        self.low = float(scores.min()) if scores.size else 0.0
        self.high = float(scores.max()) if scores.size else 0.0
        if floor is not None:
            self.low = min(self.low, floor)
        if self.high > self.low and self.scores.size:
            self.share = self.multiplier * ((scores - self.low) / (self.high - self.low))
        else:
            self.share = None

    def set(self, position: int, score: float) -> bool:
        """A node's score changed; returns whether that moved the range (and so all shares)."""
        old = float(self.scores[position])
        if score == old:
            return False
        self.scores[position] = score
        if self._moves(old, score):
            before = self.low, self.high
            self.normalise()
            if (self.low, self.high) != before:
                return True
        if self.share is not None:
            multiplier = self.multiplier if isinstance(self.multiplier, float) else self.multiplier[position]
            self.share[position] = multiplier * ((score - self.low) / (self.high - self.low))
        return False

    def _moves(self, old: float, new: float) -> bool:
        return old <= self.low or old >= self.high or new < self.low or new > self.high

    def drop(self, positions: IntColumn) -> bool:
        """Forget these nodes; returns whether that moved the range."""
        dropped = self.scores[positions]
        self.scores = np.delete(self.scores, positions)
        if not isinstance(self.multiplier, float):
            self.multiplier = np.delete(self.multiplier, positions)
        if dropped.min() <= self.low or dropped.max() >= self.high:
            before = self.low, self.high
            self.normalise()
            return (self.low, self.high) != before
        if self.share is not None:
            self.share = np.delete(self.share, positions)
        return False

    def renew(self, view: FleetView, request: Request) -> None:
        self.scores = finite(self.weigher.scores(view, request)).copy()
        self.normalise()


class Ranking:
    """The feasible nodes of a view and their weights (``weights[i]`` is that of table row ``rows[i]``)."""

    def __init__(self, view: FleetView, rows: IntColumn, request: Request, weighers: Sequence[Weigher],
                 chain: Sequence[Filter]) -> None:
        self._view = view
        self._request = request
        self.rows = rows
        self._row_filters = [each for each in chain if each.scope(request) is Scope.ROW]
        self._table_filters = [each for each in chain if each.scope(request) is Scope.TABLE]
        mine = view.take(rows)
        self._parts: list[_Part] = []
        for weigher in weighers:
            if weigher.applies(request):
                multiplier = weigher.multipliers(mine, request.settings)
                if not isinstance(multiplier, float) or multiplier != 0.0:
                    self._parts.append(_Part(weigher, multiplier, mine, request))
        self._sum()

    def __len__(self) -> int:
        return len(self.rows)

    def _sum(self) -> None:
        total: FloatColumn = np.zeros(len(self.rows))
        for part in self._parts:
            if part.share is not None:
                total += part.share
        self.weights = total

    def consumed(self, position: int) -> None:
        """The node at ``position`` got one server more (in the view and the request): weigh again."""
        view, request = self._view.at(int(self.rows[position])), self._request
        if not all(bool(each.mask(view, request)[0]) for each in self._row_filters):
            self._drop(np.array([position], np.int64))
        else:
            self._reweigh(position, view)
        if self._table_filters or any(part.scope is Scope.TABLE for part in self._parts):
            self._whole_table()

    def _reweigh(self, position: int, view: FleetView) -> None:
        moved = False
        for part in self._parts:
            if part.scope is Scope.ROW:
                score = float(finite(part.weigher.scores(view, self._request))[0])
                moved = part.set(position, score) or moved
        if moved:
            self._sum()
            return
        weight = np.float64(0.0)
        for part in self._parts:
            if part.share is not None:
                weight += part.share[position]
        self.weights[position] = weight

    def _drop(self, positions: IntColumn) -> None:
        """Forget nodes that are no longer feasible."""
        self.rows = np.delete(self.rows, positions)
        moved = [part.drop(positions) for part in self._parts]
        if any(moved):
            self._sum()
        else:
            self.weights = np.delete(self.weights, positions)

    def _whole_table(self) -> None:
        """Ask again what depends on more than the node itself."""
        for each in self._table_filters:
            refused = np.flatnonzero(~each.mask(self._view.take(self.rows), self._request))
            if refused.size:
                self._drop(refused)
        changed = [part for part in self._parts if part.scope is Scope.TABLE]
        if changed:
            view = self._view.take(self.rows)
            for part in changed:
                part.renew(view, self._request)
            self._sum()

    def best(self, count: int) -> IntColumn:
        """The positions of the ``count`` best nodes, best first; of equal ones the first row first."""
        if count == 1:
            return np.array([self.weights.argmax()], np.int64)
        count = min(count, len(self.rows))
        if not count:
            return np.zeros(0, np.int64)
        if count < len(self.rows):
            # All nodes that may be among them: better than, or as good as, the last one.
            cut = np.partition(self.weights, len(self.rows) - count)[len(self.rows) - count]
            candidates = np.flatnonzero(self.weights >= cut)
        else:
            candidates = np.arange(len(self.rows))
        order = np.argsort(-self.weights[candidates], kind="stable")
        best: IntColumn = candidates[order[:count]]
        return best

    def equal_best(self) -> IntColumn:
        """The positions of all nodes with the highest weight."""
        return np.flatnonzero(self.weights == self.weights.max())
