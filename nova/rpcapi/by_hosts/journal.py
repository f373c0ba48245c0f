"""The RPC interface for reports of hosts about the steps that they run."""

from __future__ import annotations

from nova.bus import Interface, brief_cast, by_hosts, call
from nova.context import RequestContext
from nova.objects.servers.order import StepOrder, StepReport
from nova.rpcapi import CONDUCTOR, REPORTS


class Engine(Interface):
    """Reports to the saga engine of conductors."""

    topic = REPORTS
    former_topic = CONDUCTOR
    namespace = "engine"

    @by_hosts
    @call
    def step_done(self, ctx: RequestContext, report: StepReport) -> None:
        """Report the end of the steps of an order. Raises StaleReport if the attempt is not the current one."""

    @by_hosts
    @brief_cast(30)
    def progress(self, ctx: RequestContext, report: StepReport) -> None:
        """Report the start of the next step of an order, or the progress of the running step. It may get lost."""

    @by_hosts
    @call
    def begin(self, ctx: RequestContext, action_uuid: str, attempt: int, host: str) -> None:
        """Renew the lease of an order before it starts. Raises StaleReport if the order is no longer current."""

    @by_hosts
    @call
    def resume(self, ctx: RequestContext, host: str) -> list[StepOrder]:
        """Return the unfinished steps of a host that has restarted, as new attempts."""

    @brief_cast(30)
    def handed_over(self, ctx: RequestContext) -> None:
        """Request an immediate check for expired leases, since a stopping conductor has left actions."""
