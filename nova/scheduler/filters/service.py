"""Filters by the compute service of a host and its load."""

import numpy as np

from nova.scheduler.columns import BoolColumn, Column
from nova.scheduler.filters.base import Filter, everything
from nova.scheduler.options import SchedulerOptions
from nova.scheduler.plugin import Scope
from nova.scheduler.request import Request
from nova.scheduler.view import FleetView


class AllHostsFilter(Filter):
    """Accepts every node."""

    depends_on = Scope.REQUEST

    def mask(self, view: FleetView, request: Request) -> BoolColumn:
        return everything(view)


class ComputeFilter(Filter):
    """Nodes whose nova-compute is up and enabled."""

    depends_on = Scope.REQUEST

    def mask(self, view: FleetView, request: Request) -> BoolColumn:
        return view.up & ~view.disabled

    def reason(self, view: FleetView, request: Request) -> str:
        return "the compute service is disabled" if view.disabled[0] else "the compute service is down"


class AvailabilityZoneFilter(Filter):
    """Nodes in the requested zone. This filter cannot be disabled."""

    depends_on = Scope.REQUEST

    def applies(self, request: Request) -> bool:
        return bool(request.spec.availability_zone)

    def mask(self, view: FleetView, request: Request) -> BoolColumn:
        wanted = request.spec.availability_zone
        return view.lift("zone", lambda zone: zone == wanted)

    def reason(self, view: FleetView, request: Request) -> str:
        return f"the host is in availability zone {view.text('zone', 0)}"


class _LimitFilter(Filter):
    """Nodes below a limit, which aggregate metadata may override for their hosts (the smallest value wins)."""

    option = ""
    column = ""  # the column of the view with the number that is limited
    what = ""
    by_aggregate = False

    def _limit(self, aggregates: list[dict[str, str]], settings: SchedulerOptions) -> float:
        default = float(settings.limits[self.option])
        if not self.by_aggregate:
            return default
        given = [metadata[self.option] for metadata in aggregates if self.option in metadata]
        return min((float(value) for value in given if value.strip().isdecimal()), default=default)

    def mask(self, view: FleetView, request: Request) -> BoolColumn:
        limit: float | Column = self._limit([], request.settings)
        if self.by_aggregate:
            limit = view.lift("aggregates", lambda given: self._limit(given, request.settings), np.float64)
        fits: BoolColumn = getattr(view, self.column) < limit
        return fits

    def limit(self, view: FleetView, request: Request) -> int:
        return int(self._limit(view.text("aggregates", 0), request.settings))

    def reason(self, view: FleetView, request: Request) -> str:
        return f"{getattr(view, self.column)[0]} {self.what}, limit {self.limit(view, request)}"


class IoOpsFilter(_LimitFilter):
    """Nodes with fewer than max_io_ops_per_host heavy operations."""

    option = "max_io_ops_per_host"
    claim_limit = "max_io_ops"
    column = "num_io_ops"
    what = "operations under way"


class AggregateIoOpsFilter(IoOpsFilter):
    """Like IoOpsFilter; aggregate metadata max_io_ops_per_host overrides the option."""

    by_aggregate = True


class NumInstancesFilter(_LimitFilter):
    """Nodes with fewer than max_instances_per_host servers."""

    option = "max_instances_per_host"
    claim_limit = "max_instances"
    column = "num_instances"
    what = "servers"


class AggregateNumInstancesFilter(NumInstancesFilter):
    """Like NumInstancesFilter; aggregate metadata max_instances_per_host overrides the option."""

    by_aggregate = True


class MetricsFilter(Filter):
    """Nodes that report every metric of [metrics]weight_setting."""

    depends_on = Scope.REQUEST

    def applies(self, request: Request) -> bool:
        return bool(request.settings.metric_ratios)

    def mask(self, view: FleetView, request: Request) -> BoolColumn:
        names = request.settings.metric_ratios.keys()
        return view.lift("metrics", lambda measured: names <= measured.keys())

    def reason(self, view: FleetView, request: Request) -> str:
        names = request.settings.metric_ratios.keys() - view.text("metrics", 0).keys()
        return f"the host does not report {', '.join(sorted(names))}"
