"""The state of all compute nodes, in pages, for a scheduler that starts or has missed a delta."""

from __future__ import annotations

from nova.conductor.core import Core
from nova.context import RequestContext
from nova.db.hosts import compute_nodes
from nova.objects.hosts.scheduling import FleetPage


class Fleet:
    """Implements :class:`nova.rpcapi.by_hosts.Fleet`."""

    def __init__(self, core: Core) -> None:
        self.core = core

    def page(self, ctx: RequestContext, marker: str | None = None, limit: int = 500) -> FleetPage:
        limit = max(1, min(limit, 1000))
        states = self.core.db.read(lambda connection: compute_nodes.states(connection, marker, limit))
        return FleetPage(states=states, marker=states[-1].node_uuid if len(states) == limit else None)
