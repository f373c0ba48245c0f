"""Filtering: the nodes that a request may use, and the filters that rejected the other nodes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nova.scheduler.columns import BoolColumn
from nova.scheduler.filters.base import Filter
from nova.scheduler.request import Request
from nova.scheduler.view import FleetView


def feasible(view: FleetView, request: Request, chain: Sequence[Filter]) -> tuple[BoolColumn, list[tuple[str, int]]]:
    """Return the mask of nodes that pass all filters, and (name, number of rejected nodes) of the filters that rejected
    nodes."""
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


def summary(refused: Sequence[tuple[str, int]]) -> str:
    """Return a text with the number of nodes rejected by each filter."""
    return ", ".join(f"{name}: {count} host{'s' if count != 1 else ''} refused" for name, count in refused)
