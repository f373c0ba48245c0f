"""The RPC interface of services for operators."""

from __future__ import annotations

from nova.bus import Interface, call
from nova.context import RequestContext
from nova.objects.hosts.service import Service
from nova.rpcapi import CONDUCTOR


class Services(Interface):
    """The services of os-services: nova-compute, nova-conductor and nova-scheduler."""

    topic = CONDUCTOR
    namespace = "services"

    @call
    def index(self, ctx: RequestContext, host: str | None = None, binary: str | None = None) -> list[Service]:
        """Return services, with their availability zone and ``up``."""

    @call
    def get(self, ctx: RequestContext, uuid: str) -> Service:
        """Raises ServiceNotFound."""

    @call
    def update(self, ctx: RequestContext, service_id: str, disabled: bool | None = None,
               reason: str | None = None, forced_down: bool | None = None) -> Service:
        """Change a service by its uuid. Enabling clears the reason. Raises ServiceNotFound."""

    @call
    def update_by_host(self, ctx: RequestContext, host: str, binary: str, disabled: bool | None = None,
                       reason: str | None = None, forced_down: bool | None = None) -> Service:
        """Raises HostBinaryNotFound."""

    @call
    def delete(self, ctx: RequestContext, service_id: str) -> None:
        """Delete a service by its uuid or, before 2.53, its integer id. Raises ServiceNotFound, ServiceInUse."""
