"""The deployment at one look."""

from __future__ import annotations

from nova.bus import Interface, call
from nova.context import RequestContext
from nova.objects.overview import Overview
from nova.rpcapi import CONDUCTOR


class Overviews(Interface):
    topic = CONDUCTOR
    namespace = "overview"

    @call
    def get(self, ctx: RequestContext, limit: int) -> Overview:
        """At most ``limit`` nodes, operations and failures each; of failures those among the latest 10,000 actions."""
