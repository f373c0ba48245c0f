"""Planning: hosts for the servers of a request. Each choice counts the usage of the servers chosen before."""

import random
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from nova import exception
from nova.objects.hosts import trees
from nova.objects.hosts.scheduling import AFFINITY, ANTI_AFFINITY, SOFT_AFFINITY, SOFT_ANTI_AFFINITY, Verdict
from nova.scheduler import stages
from nova.scheduler.columns import BoolColumn
from nova.scheduler.filters.base import Filter
from nova.scheduler.options import SchedulerOptions
from nova.scheduler.rank import Ranking
from nova.scheduler.request import Request
from nova.scheduler.view import FleetView
from nova.scheduler.weighers.base import Weigher
from nova.telemetry import metrics

_TOO_FEW = "There are not enough hosts available."
# Policy of a server group -> plugin that enforces it. Requests with the policy fail if the plugin is not enabled.
_ENFORCERS = {AFFINITY: "ServerGroupAffinityFilter", ANTI_AFFINITY: "ServerGroupAntiAffinityFilter",
              SOFT_AFFINITY: "ServerGroupSoftAffinityWeigher", SOFT_ANTI_AFFINITY: "ServerGroupSoftAntiAffinityWeigher"}


class Choice(msgspec.Struct):
    """Rows of the table: the host of one server, and alternates."""

    row: int
    alternates: list[int]


class Planner:
    """Chooses hosts with a fixed set of plugins. Independent of threads, messages and the origin of the view."""

    def __init__(self, filters: Sequence[Filter], weighers: Sequence[Weigher],
                 rng: random.Random | None = None) -> None:
        self._filters = list(filters)
        self._weighers = list(weighers)
        self._limit_filters = [node_filter for node_filter in filters if node_filter.claim_limit]
        self._names = {plugin.name for plugin in (*filters, *weighers)}
        self._random = rng or random.Random()  # noqa: S311 - used for load distribution only

    def plan(self, view: FleetView, request: Request) -> list[Choice]:
        """Return a choice for each server, in order, and add their usage to ``view.planned``. A server that stays on
        its host (``in_place``) adds nothing. Raises NoValidHost; the view must then not be used any more."""
        needed = _ENFORCERS.get(request.policy or "")
        if needed and needed not in self._names and not request.spec.forced:
            raise exception.UnsupportedGroupPolicy(reason=f"{needed} not configured")
        chain = stages.chain(request, self._filters, view)
        request.by_aggregates = any(node_filter.by_aggregates for node_filter in chain)
        mask, refused = feasible(view, request, chain)
        rows = np.flatnonzero(mask)
        metrics.CANDIDATES.observe(rows.size)
        if not rows.size:
            rejected = ", ".join(f"{name}: {count} host{'s' if count != 1 else ''} refused" for name, count in refused)
            raise exception.NoValidHost(reason=_TOO_FEW, detail=f"Requested {request.count}; {rejected}." if refused
                                        else "No compute hosts are registered.")
        if request.spec.in_place:
            return [Choice(int(rows[0]), [])]
        ranking = Ranking(view, rows, request, self._weighers, chain)
        wanted = 0 if request.spec.forced else request.spec.alternates
        chosen: list[int] = []
        pool: list[int] = []
        for _ in range(request.count):
            if not len(ranking):
                raise exception.NoValidHost(reason=_TOO_FEW)
            position = self._pick(ranking, request.settings)
            row = int(ranking.rows[position])
            if request.count == 1:
                # Rank alternates without the server's usage: they are used only if it fails on its host.
                pool = _best_rows(ranking, wanted + 1)
            _consume(view, row, request)
            request.place(view.at(row).text("host", 0))
            chosen.append(row)
            ranking.consumed(position)
        if request.count > 1:
            pool = _best_rows(ranking, (wanted + 1) * request.count)
        return [Choice(row, others) for row, others in zip(chosen, _alternates(chosen, pool, wanted), strict=True)]

    def _pick(self, ranking: Ranking, settings: SchedulerOptions) -> int:
        """Return the position of the host to use: the best host, or a random one of the host_subset_size best hosts."""
        subset = min(settings.host_subset_size, len(ranking))
        if settings.shuffle_best_same_weighed_hosts:
            equal = np.flatnonzero(ranking.weights == ranking.weights.max())
            if len(equal) >= subset:
                return int(equal[self._random.randrange(len(equal))])
        if subset == 1:
            return int(ranking.weights.argmax())
        return int(ranking.best(subset)[self._random.randrange(subset)])

    def limits(self, view: FleetView, row: int, request: Request) -> dict[str, Any]:
        """Return the limits of a row and the hints that its claim has to check again, by field of Selection."""
        limits: dict[str, Any] = {}
        if not request.spec.forced:
            limits["hints"] = [node_filter.claim_hint for node_filter in self._filters
                               if node_filter.claim_hint and node_filter.applies(request)]
            for node_filter in self._limit_filters:
                limit = node_filter.limit(view.at(row), request)
                limits[node_filter.claim_limit] = min(limit, limits.get(node_filter.claim_limit, limit))
        return limits

    def explain(self, view: FleetView, request: Request) -> list[Verdict]:
        """Return a verdict for every node: first the accepted nodes with their weight, best first, then the rejected
        nodes with the first filter that rejected each."""
        chain = stages.chain(request, self._filters, view)
        mask, blame = view.alive.copy(), np.full(len(view), -1)
        for index, node_filter in enumerate(chain):
            passed = filter_mask(node_filter, view, request, mask)
            blame[mask & ~passed] = index
            mask &= passed
        verdicts = []
        for row in np.flatnonzero(blame >= 0).tolist():
            node, node_filter = view.at(row), chain[blame[row]]
            verdicts.append(Verdict(host=node.text("host", 0), node=node.text("node", 0), refused_by=node_filter.name,
                                    reason=node_filter.reason(node, request)))
        verdicts.sort(key=lambda verdict: (verdict.host, verdict.node))
        ranking = Ranking(view, np.flatnonzero(mask), request, self._weighers, chain)
        passed_verdicts = []
        for position in ranking.best(len(ranking)).tolist() if len(ranking) else []:
            node = view.at(int(ranking.rows[position]))
            passed_verdicts.append(Verdict(host=node.text("host", 0), node=node.text("node", 0),
                                           weight=float(ranking.weights[position])))
        return passed_verdicts + verdicts


def feasible(view: FleetView, request: Request, chain: Sequence[Filter]) -> tuple[BoolColumn, list[tuple[str, int]]]:
    """Return the mask of nodes that pass all filters, and (name, number of rejected nodes) of each filter that rejects.
    """
    mask = view.alive.copy()
    left, refused = int(np.count_nonzero(mask)), []
    for node_filter in chain:
        if not left:
            break
        mask &= filter_mask(node_filter, view, request, mask)
        still = int(np.count_nonzero(mask))
        if still < left:
            refused.append((node_filter.name, left - still))
        left = still
    return mask, refused


def filter_mask(node_filter: Filter, view: FleetView, request: Request, mask: BoolColumn) -> BoolColumn:
    """Return the filter's mask over the view. A costly filter only checks the nodes left in ``mask``."""
    if not node_filter.costly:
        return node_filter.mask(view, request)
    positions = np.flatnonzero(mask)
    passed = np.zeros(len(mask), np.bool_)
    passed[positions] = node_filter.mask(view.take(positions), request)
    return passed


def _consume(view: FleetView, row: int, request: Request) -> None:
    """Add the usage of one server of the request to this row."""
    node, resources = view.at(row), request.resources
    if (request.amounts.groups or view.any_children(resources)) and not node.root_gives(0, request):
        tree = node.tree(0)
        # A forced node may lack the resources: its claim then fails.
        allocation = trees.allocate(tree, request.amounts) or {}
        resources = allocation.get(tree[0].uuid, {})
        view.planned.children[row] = trees.taken_from(tree[1:], allocation)
    view.planned.consume(row, resources)
    if request.dedicated_request:
        view.planned.fit(row, request.dedicated_request, node.ratios(0, request.settings.packing_cells))


def _best_rows(ranking: Ranking, count: int) -> list[int]:
    return ranking.rows[ranking.best(count)].tolist() if len(ranking) and count > 1 else []


def _alternates(chosen: Sequence[int], pool: Sequence[int], wanted: int) -> list[list[int]]:
    """Return for each chosen row up to ``wanted`` alternates from the pool. Alternates are distributed over the pool,
    so that many servers do not all fall back to the same two hosts."""
    alternates, start = [], 0
    for row in chosen:
        others: list[int] = []
        for step in range(min(len(pool), wanted + 1)):
            other = pool[(start + step) % len(pool)]
            if other != row and len(others) < wanted:
                others.append(other)
        start += wanted
        alternates.append(others)
    return alternates
