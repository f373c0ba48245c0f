"""The filters by what a node has for single guests: NUMA cells and PCI devices."""

from __future__ import annotations

import numpy as np

from nova.objects.parts import fitting
from nova.objects.parts.fitting import NodeParts, Ratios, Wish
from nova.scheduler.columns import BoolColumn
from nova.scheduler.filters.base import Filter
from nova.scheduler.request import Request
from nova.scheduler.view import FleetView


class _PartsFilter(Filter):
    """Nodes that have what ``wish`` says. Nodes with equal parts are looked at once."""

    costly = True

    def wish(self, request: Request) -> Wish:
        raise NotImplementedError

    def applies(self, request: Request) -> bool:
        return bool(self.wish(request))

    def mask(self, view: FleetView, request: Request) -> BoolColumn:
        wish, packing = self.wish(request), request.settings.packing_cells
        known: dict[tuple[int, Ratios], bool] = {}

        def fits(position: int) -> bool:
            parts: NodeParts | None = view.parts(position)
            if parts is None:
                return False
            ratios = view.ratios(position, packing)
            key = id(parts), ratios
            if key not in known:
                known[key] = fitting.take(parts, wish, ratios) is not None
            return known[key]

        return np.fromiter((fits(position) for position in range(len(view))), np.bool_, len(view))


class NUMATopologyFilter(_PartsFilter):
    """Nodes whose NUMA cells have the CPUs, the memory and the pages that the server asks for."""

    def wish(self, request: Request) -> Wish:
        return Wish(request.wish.topology, ())

    def reason(self, view: FleetView, request: Request) -> str:
        parts = view.parts(0)
        if parts is None or parts.numa_topology is None:
            return "the host tells of no NUMA cells"
        return "no NUMA cells of the host have the CPUs, memory and pages that are asked for"


class PciPassthroughFilter(_PartsFilter):
    """Nodes that have the PCI devices that the server asks for, near the cells that it gets."""

    def wish(self, request: Request) -> Wish:
        return request.wish if request.wish.devices else Wish(None, ())

    def reason(self, view: FleetView, request: Request) -> str:
        asked = ", ".join(f"{each.count} {each.alias}" for each in request.wish.devices)
        return f"the host has not the PCI devices left that are asked for: {asked}"
