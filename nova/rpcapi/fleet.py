"""The whole fleet, for schedulers."""

from __future__ import annotations

from nova.bus import Interface, slow_call
from nova.context import RequestContext
from nova.objects.scheduling import FleetPage
from nova.rpcapi import CONDUCTOR


class Fleet(Interface):
    """The whole fleet, for a scheduler that starts or has missed a delta."""

    topic = CONDUCTOR
    namespace = "fleet"

    @slow_call(10)
    def page(self, ctx: RequestContext, marker: str | None = None, limit: int = 500) -> FleetPage: ...
