"""Implementation of :class:`nova.rpcapi.scheduler.Scheduler`."""

import logging
import time

from nova import context, exception
from nova.conf import CONF
from nova.objects.hosts.scheduling import FleetDelta, RequestSpec, Selection, Verdict
from nova.scheduler import plugin
from nova.scheduler.filters.base import Filter
from nova.scheduler.follow import Follower
from nova.scheduler.hosts import Fleet
from nova.scheduler.options import SchedulerOptions
from nova.scheduler.request import Request
from nova.scheduler.select import Planner
from nova.scheduler.weighers.base import Weigher
from nova.telemetry import metrics, tracing

LOG = logging.getLogger(__name__)

FILTERS = "nova.scheduler.filters"
WEIGHERS = "nova.scheduler.weighers"
_ALL_WEIGHERS = "all_weighers"

_FLEET_TIMEOUT = 20.0  # seconds that a request waits for the first read of the fleet


def load_filters() -> list[Filter]:
    """Return the enabled filters. Raises PluginError for an unknown name."""
    return plugin.load(FILTERS, Filter, CONF.filter_scheduler.enabled_filters, "[filter_scheduler]enabled_filters")


def load_weighers() -> list[Weigher]:
    """Return the enabled weighers. Raises PluginError for an unknown name."""
    names = [name.rpartition(".")[2] for name in CONF.filter_scheduler.weight_classes]
    return plugin.load(WEIGHERS, Weigher, None if _ALL_WEIGHERS in names else names, "[filter_scheduler]weight_classes")


class SchedulerManager:
    """Answers requests from a fleet that a Follower updates."""

    def __init__(self, fleet: Fleet, planner: Planner, follower: Follower, settings: SchedulerOptions) -> None:
        self._fleet, self._settings, self._planner, self._follower = fleet, settings, planner, follower

    def select(self, ctx: context.RequestContext, spec: RequestSpec) -> list[list[Selection]]:
        """See :meth:`nova.rpcapi.scheduler.Scheduler.select`. Selected resources count as used immediately."""
        self._wait()
        if not (metrics.on or tracing.on):
            return self._select(spec)
        with tracing.span("scheduler select", ctx, servers=len(spec.instance_uuids)), metrics.selecting():
            return self._select(spec)

    def _select(self, spec: RequestSpec) -> list[list[Selection]]:
        started, request = time.perf_counter(), Request(spec, self._settings)
        with self._fleet.view() as view:
            try:
                choices = self._planner.plan(view, request)
            except exception.NoValidHost as error:
                LOG.info("No host found for %d servers of flavor %s of project %s: %s", request.count, spec.flavor.name,
                         spec.project_id, error.inside)
                raise
            self._fleet.commit(view.planned, sorted({choice.row for choice in choices}))
            selections = [[self._fleet.selection(row, request.by_aggregates, request,
                                                 self._planner.limits(view, row, request))
                           for row in (choice.row, *choice.alternates)] for choice in choices]
        hosts = sorted({selection[0].node for selection in selections})
        LOG.info("Selected hosts for %d x %s: %s%s (%d nodes, %.1f ms)", request.count, spec.flavor.name,
                 ", ".join(hosts[:5]), f" and {len(hosts) - 5} more" if len(hosts) > 5 else "", len(self._fleet),
                 (time.perf_counter() - started) * 1000)
        return selections

    def explain(self, ctx: context.RequestContext, spec: RequestSpec) -> list[Verdict]:
        """See :meth:`nova.rpcapi.scheduler.Scheduler.explain`. Changes nothing."""
        self._wait()
        with self._fleet.view() as view:
            return self._planner.explain(view, Request(spec, self._settings))

    def delta(self, ctx: context.RequestContext, delta: FleetDelta) -> None:
        self._follower.delta(delta)

    def _wait(self) -> None:
        """Wait until the fleet has been read for the first time."""
        if not self._follower.ready.wait(_FLEET_TIMEOUT):
            raise exception.ServiceUnavailable("The scheduler has not been able to read the fleet yet.")
