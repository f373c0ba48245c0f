"""The RPC interface of the overview of a deployment."""

from __future__ import annotations

from nova.bus import Interface, call
from nova.context import RequestContext
from nova.objects.hosts.overview import Overview
from nova.rpcapi import CONDUCTOR


class Overviews(Interface):
    topic = CONDUCTOR
    namespace = "overview"

    @call
    def get(self, ctx: RequestContext, limit: int) -> Overview:
        """Return at most ``limit`` nodes, running operations and failures, the latter among the last 10,000 actions."""
