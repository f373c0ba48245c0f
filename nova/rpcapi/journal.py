"""What hosts tell of the steps that they run."""

from __future__ import annotations

from nova.bus import Interface, brief_cast, by_hosts, call
from nova.context import RequestContext
from nova.objects.order import StepOrder, StepReport
from nova.rpcapi import CONDUCTOR, REPORTS


class Engine(Interface):
    """The saga engine's side of the journal."""

    topic = REPORTS
    former_topic = CONDUCTOR
    namespace = "engine"

    @by_hosts
    @call
    def step_done(self, ctx: RequestContext, report: StepReport) -> None:
        """The steps of an order ended. Raises StaleReport when the attempt is not the current one."""

    @by_hosts
    @brief_cast(30)
    def progress(self, ctx: RequestContext, report: StepReport) -> None:
        """The next step of the same order began, or the running one tells how far it is; it may get lost."""

    @by_hosts
    @call
    def begin(self, ctx: RequestContext, action_uuid: str, attempt: int, host: str) -> None:
        """Is this order current still? Its lease is renewed. Raises StaleReport."""

    @by_hosts
    @call
    def resume(self, ctx: RequestContext, host: str) -> list[StepOrder]:
        """The unfinished steps of a host that has just started, as new attempts."""

    @brief_cast(30)
    def handed_over(self, ctx: RequestContext) -> None:
        """A conductor that ends has left actions: look for expired leases now rather than later."""
