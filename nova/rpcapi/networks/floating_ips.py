"""The RPC interface of floating IP addresses of embedded networks. ``project_id`` None means all projects."""

from __future__ import annotations

from nova.bus import Interface, call
from nova.context import RequestContext
from nova.objects.networks.network import FloatingIp
from nova.rpcapi import CONDUCTOR


class FloatingIps(Interface):
    topic = CONDUCTOR
    namespace = "floating_ips"

    @call
    def pools(self, ctx: RequestContext) -> list[str]:
        """Return the names of the pools."""

    @call
    def index(self, ctx: RequestContext, project_id: str | None = None) -> list[FloatingIp]:
        """Return the addresses of a project, oldest first, or all addresses including free ones for None."""

    @call
    def get(self, ctx: RequestContext, uuid: str, project_id: str | None = None) -> FloatingIp:
        """Raises FloatingIpNotFound."""

    @call
    def create(self, ctx: RequestContext, pool: str, cidr: str) -> int:
        """Add the host addresses of a network to a pool, and return their number.

        Raises InvalidInput, FloatingIpExists.
        """

    @call
    def delete(self, ctx: RequestContext, cidr: str) -> int:
        """Remove the addresses of a network from their pools, and return their number.

        Raises InvalidInput, FloatingIpInUse.
        """

    @call
    def on_host(self, ctx: RequestContext, host: str) -> list[FloatingIp]:
        """Return the addresses that are associated with servers on a host, oldest first."""

    @call
    def allocate(self, ctx: RequestContext, project_id: str, pool: str | None = None) -> FloatingIp:
        """Allocate an address of a pool (None: the first pool) to the project.

        Raises FloatingIpPoolNotFound, NoMoreFloatingIps, QuotaLimit.
        """

    @call
    def release(self, ctx: RequestContext, uuid: str, project_id: str | None = None) -> None:
        """Release an address, and disassociate it from its server. Raises FloatingIpNotFound."""

    @call
    def give(self, ctx: RequestContext, instance_uuid: str, address: str, fixed_address: str | None = None,
             project_id: str | None = None) -> None:
        """Associate an address of the server's project with the server, instead of another server.

        Raises InstanceNotFound, FloatingIpNotFound, InvalidInput, InstanceIsLocked (either server).
        """

    @call
    def take(self, ctx: RequestContext, instance_uuid: str, address: str, project_id: str | None = None) -> None:
        """Disassociate an address from the server.

        Raises InstanceNotFound, FloatingIpNotFound, FloatingIpNotAssociated, InstanceIsLocked.
        """
