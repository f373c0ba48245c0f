"""The RPC interface of the nodes of all hosts, for schedulers."""

from __future__ import annotations

from nova.bus import Interface, slow_call
from nova.context import RequestContext
from nova.objects.hosts.scheduling import FleetPage
from nova.rpcapi import CONDUCTOR


class Fleet(Interface):
    """The nodes of all hosts, for a scheduler that starts or has lost a message."""

    topic = CONDUCTOR
    namespace = "fleet"

    @slow_call(10)
    def page(self, ctx: RequestContext, marker: str | None = None, limit: int = 500) -> FleetPage:
        """Return a page of nodes after ``marker``."""
