"""Availability zones."""

from __future__ import annotations

from nova.bus import Interface, call
from nova.context import RequestContext
from nova.objects.service import Service
from nova.rpcapi import CONDUCTOR


class Zones(Interface):
    """Availability zones are host aggregates with the metadata key availability_zone."""

    topic = CONDUCTOR
    namespace = "zones"

    @call
    def index(self, ctx: RequestContext) -> dict[str, bool]:
        """Zone -> is there an enabled compute service in it (the default zone included, internal not)."""

    @call
    def detail(self, ctx: RequestContext) -> dict[str, list[Service]]:
        """Zone -> the services in it, the internal zone included."""
