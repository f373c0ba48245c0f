"""What the schedulers answer, and how they follow the fleet."""

from __future__ import annotations

from nova.bus import Interface, call, fanout, slow_call
from nova.context import RequestContext
from nova.objects.scheduling import FleetDelta, RequestSpec, Selection, Verdict
from nova.rpcapi import SCHEDULER


class Scheduler(Interface):
    topic = SCHEDULER
    namespace = "scheduler"

    @slow_call(20)
    def select(self, ctx: RequestContext, spec: RequestSpec) -> list[list[Selection]]:
        """For each instance of the request, in order: the best host, then its alternates.

        Raises NoValidHost; its ``detail`` says what refused how many hosts.
        """

    @call
    def explain(self, ctx: RequestContext, spec: RequestSpec) -> list[Verdict]:
        """Per host, which filter refused the request first, or the weight of the host."""

    @fanout
    def delta(self, ctx: RequestContext, delta: FleetDelta) -> None:
        """A conductor changed something of the fleet."""
