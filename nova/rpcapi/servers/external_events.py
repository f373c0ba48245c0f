"""The RPC interface of events from other services (os-server-external-events)."""

from __future__ import annotations

from nova.bus import Interface, call
from nova.context import RequestContext
from nova.objects.servers.external_event import ExternalEvent
from nova.rpcapi import CONDUCTOR


class ExternalEvents(Interface):
    topic = CONDUCTOR
    namespace = "external_events"

    @call
    def create(self, ctx: RequestContext, events: list[ExternalEvent]) -> list[int]:
        """Store the events and resume the operations that wait for them.

        Returns a code for each event: 200, 404 (no such server) or 422 (the server is on no host).
        """
