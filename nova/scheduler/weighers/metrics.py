"""Weigher by the metrics of hosts."""

import numpy as np

from nova import exception
from nova.scheduler.columns import FloatColumn
from nova.scheduler.options import SchedulerOptions
from nova.scheduler.plugin import Scope
from nova.scheduler.request import Request
from nova.scheduler.view import FleetView
from nova.scheduler.weighers.base import Weigher


class MetricsWeigher(Weigher):
    """The sum of metric * ratio, as configured in [metrics]weight_setting. A host without a metric fails the request if
    metrics are required (unless the MetricsFilter excludes it), else scores weight_of_unavailable."""

    option = "metrics_weight_multiplier"  # metadata key of aggregates
    depends_on = Scope.REQUEST

    def applies(self, request: Request) -> bool:
        return bool(request.settings.metric_ratios)

    def multiplier(self, settings: SchedulerOptions) -> float:
        return settings.metrics_multiplier

    def scores(self, view: FleetView, request: Request) -> FloatColumn:
        ratios = request.settings.metric_ratios

        def weigh(measured: dict[str, float]) -> float:
            if any(name not in measured for name in ratios):
                return np.nan
            return sum(measured[name] * ratio for name, ratio in ratios.items())

        column: FloatColumn = view.lift("metrics", weigh, np.float64)
        missing = np.isnan(column)
        if missing.any():
            if request.settings.metrics_required:
                raise exception.NoValidHost(
                    reason="There are not enough hosts available.",
                    detail="A host does not report the metrics that [metrics]weight_setting requires.")
            column[missing] = request.settings.weight_of_unavailable
        return column
