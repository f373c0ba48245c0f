"""Floating addresses of the embedded networks. ``project_id`` None looks at every project."""

from __future__ import annotations

from nova.bus import Interface, call
from nova.context import RequestContext
from nova.objects.network import FloatingIp
from nova.rpcapi import CONDUCTOR


class FloatingIps(Interface):
    topic = CONDUCTOR
    namespace = "floating_ips"

    @call
    def pools(self, ctx: RequestContext) -> list[str]:
        """Their names."""

    @call
    def index(self, ctx: RequestContext, project_id: str | None = None) -> list[FloatingIp]:
        """Those of a project, oldest first; None: all, the free ones as well."""

    @call
    def get(self, ctx: RequestContext, uuid: str, project_id: str | None = None) -> FloatingIp:
        """Raises FloatingIpNotFound."""

    @call
    def create(self, ctx: RequestContext, pool: str, cidr: str) -> int:
        """Put the host addresses of a network into a pool; how many. Raises InvalidInput, FloatingIpExists."""

    @call
    def delete(self, ctx: RequestContext, cidr: str) -> int:
        """Take the addresses of a network out of their pools; how many. Raises InvalidInput, FloatingIpInUse."""

    @call
    def on_host(self, ctx: RequestContext, host: str) -> list[FloatingIp]:
        """Those that lead to servers of a host, oldest first."""

    @call
    def allocate(self, ctx: RequestContext, project_id: str, pool: str | None = None) -> FloatingIp:
        """An address of a pool (None: of the first one) for the project.

        Raises FloatingIpPoolNotFound, NoMoreFloatingIps, QuotaLimit.
        """

    @call
    def release(self, ctx: RequestContext, uuid: str, project_id: str | None = None) -> None:
        """Give an address back; the server that has it loses it. Raises FloatingIpNotFound."""

    @call
    def give(self, ctx: RequestContext, instance_uuid: str, address: str, fixed_address: str | None = None,
             project_id: str | None = None) -> None:
        """Have an address of the server's project lead to it, and to no other one that it led to.

        Raises InstanceNotFound, FloatingIpNotFound, InvalidInput, InstanceIsLocked (either server).
        """

    @call
    def take(self, ctx: RequestContext, instance_uuid: str, address: str, project_id: str | None = None) -> None:
        """The address leads to the server no more.

        Raises InstanceNotFound, FloatingIpNotFound, FloatingIpNotAssociated, InstanceIsLocked.
        """
