"""The RPC interface of availability zones."""

from __future__ import annotations

from nova.bus import Interface, call
from nova.context import RequestContext
from nova.objects.hosts.service import Service
from nova.rpcapi import CONDUCTOR


class Zones(Interface):
    """Availability zones are host aggregates with the metadata key availability_zone."""

    topic = CONDUCTOR
    namespace = "zones"

    @call
    def index(self, ctx: RequestContext) -> dict[str, bool]:
        """Return zone -> True if it has an enabled compute service, without the internal zone."""

    @call
    def detail(self, ctx: RequestContext) -> dict[str, list[Service]]:
        """Return zone -> its services, including the internal zone."""
