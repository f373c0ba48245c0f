"""Services as operators see and change them."""

from __future__ import annotations

from nova.bus import Interface, call
from nova.context import RequestContext
from nova.objects.service import Service
from nova.rpcapi import CONDUCTOR


class Services(Interface):
    """os-services: nova-compute, nova-conductor, nova-scheduler (never the API or metadata)."""

    topic = CONDUCTOR
    namespace = "services"

    @call
    def index(self, ctx: RequestContext, host: str | None = None, binary: str | None = None) -> list[Service]:
        """With availability zone and ``up`` filled in."""

    @call
    def get(self, ctx: RequestContext, uuid: str) -> Service:
        """Raises ServiceNotFound."""

    @call
    def update(self, ctx: RequestContext, service_id: str, disabled: bool | None = None,
               reason: str | None = None, forced_down: bool | None = None) -> Service:
        """``service_id`` is a uuid. Enabling clears the reason. Raises ServiceNotFound."""

    @call
    def update_by_host(self, ctx: RequestContext, host: str, binary: str, disabled: bool | None = None,
                       reason: str | None = None, forced_down: bool | None = None) -> Service:
        """Raises HostBinaryNotFound."""

    @call
    def delete(self, ctx: RequestContext, service_id: str) -> None:
        """``service_id`` is a uuid or (before 2.53) an integer. Raises ServiceNotFound, ServiceInUse."""
