"""Feasible: which nodes a request may go to, and who refused the others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nova.scheduler.columns import BoolColumn
from nova.scheduler.filters.base import Filter
from nova.scheduler.request import Request
from nova.scheduler.view import FleetView


def feasible(view: FleetView, request: Request, chain: Sequence[Filter]) -> tuple[BoolColumn, list[tuple[str, int]]]:
    """The mask of nodes that all of the chain accept, and (name, refused nodes) of those that refused any."""
    mask = view.alive.copy()
    left, refused = int(np.count_nonzero(mask)), []
    for each in chain:
        if not left:
            break
        mask &= answer(each, view, request, mask)
        still = int(np.count_nonzero(mask))
        if still < left:
            refused.append((each.name, left - still))
        left = still
    return mask, refused


def answer(each: Filter, view: FleetView, request: Request, mask: BoolColumn) -> BoolColumn:
    """The filter's mask over the view; a costly filter is only asked about nodes that are left in ``mask``."""
    if not each.costly:
        return each.mask(view, request)
    positions = np.flatnonzero(mask)
    passed = np.zeros(len(mask), np.bool_)
    passed[positions] = each.mask(view.take(positions), request)
    return passed


def summary(refused: Sequence[tuple[str, int]]) -> str:
    """Who refused how many, for the user."""
    return ", ".join(f"{name}: {count} host{'s' if count != 1 else ''} refused" for name, count in refused)
