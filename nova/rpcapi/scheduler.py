"""The RPC interface of nova-scheduler."""

from nova.bus import fanout, slow_call
from nova.context import RequestContext
from nova.objects.hosts.scheduling import FleetDelta, RequestSpec, Selection, Verdict
from nova.rpcapi import SCHEDULER, Interface


class Scheduler(Interface, topic=SCHEDULER, namespace="scheduler"):
    @slow_call(20)
    def select(self, ctx: RequestContext, spec: RequestSpec) -> list[list[Selection]]:
        """Return for each instance of the request, in order, the best host followed by its alternates. Raises
        NoValidHost, whose ``detail`` lists the filters with the number of hosts that they rejected."""

    def explain(self, ctx: RequestContext, spec: RequestSpec) -> list[Verdict]:
        """Return for each host the first filter that rejects the request, or the weight of the host."""

    @fanout
    def delta(self, ctx: RequestContext, delta: FleetDelta) -> None:
        """Apply a change of nodes, services or aggregates that a conductor made."""
