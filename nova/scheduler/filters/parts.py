"""Filters by dedicated resources: NUMA cells and PCI devices."""

import numpy as np

from nova.objects.dedicated_resources import fitting
from nova.objects.dedicated_resources.fitting import AllocationRatios, DedicatedRequest, NodeDedicatedResources
from nova.scheduler.columns import BoolColumn
from nova.scheduler.filters.base import Filter
from nova.scheduler.request import Request
from nova.scheduler.view import FleetView


class _DedicatedResourcesFilter(Filter):
    """Nodes with the resources of ``dedicated_request``. Nodes with equal free resources are checked once."""

    costly = True

    def dedicated_request(self, request: Request) -> DedicatedRequest:
        raise NotImplementedError

    def applies(self, request: Request) -> bool:
        return bool(self.dedicated_request(request))

    def mask(self, view: FleetView, request: Request) -> BoolColumn:
        wanted, packing = self.dedicated_request(request), request.settings.packing_cells
        results: dict[tuple[int, AllocationRatios], bool] = {}

        def fits(position: int) -> bool:
            free: NodeDedicatedResources | None = view.dedicated_resources(position)
            if free is None:
                return False
            ratios = view.ratios(position, packing)
            key = id(free), ratios
            if key not in results:
                results[key] = fitting.take(free, wanted, ratios) is not None
            return results[key]

        return np.fromiter((fits(position) for position in range(len(view))), np.bool_, len(view))


class NUMATopologyFilter(_DedicatedResourcesFilter):
    """Nodes whose NUMA cells have the requested CPUs, memory and pages."""

    def dedicated_request(self, request: Request) -> DedicatedRequest:
        return DedicatedRequest(request.dedicated_request.topology, ())

    def reason(self, view: FleetView, request: Request) -> str:
        free = view.dedicated_resources(0)
        if free is None or free.numa_topology is None:
            return "the host reports no NUMA cells"
        return "the NUMA cells of the host lack the requested CPUs, memory or pages"


class PciPassthroughFilter(_DedicatedResourcesFilter):
    """Nodes with the requested PCI devices near the assigned NUMA cells."""

    def dedicated_request(self, request: Request) -> DedicatedRequest:
        return request.dedicated_request if request.dedicated_request.devices else DedicatedRequest(None, ())

    def reason(self, view: FleetView, request: Request) -> str:
        devices = ", ".join(f"{device.count} {device.alias}" for device in request.dedicated_request.devices)
        return f"the host lacks free PCI devices: requested {devices}"
