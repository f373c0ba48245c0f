"""The RPC interface of embedded networks."""

from __future__ import annotations

from nova.bus import Interface, call
from nova.context import RequestContext
from nova.objects.networks.network import Network
from nova.rpcapi import CONDUCTOR


class Networks(Interface):
    topic = CONDUCTOR
    namespace = "networks"

    @call
    def index(self, ctx: RequestContext, project_id: str | None = None) -> list[Network]:
        """Return the networks that a project may use (its own and shared ones), or all networks for None."""

    @call
    def get(self, ctx: RequestContext, uuid: str, project_id: str | None = None) -> Network:
        """Raises NetworkNotFound."""

    @call
    def create(self, ctx: RequestContext, network: Network) -> Network:
        """Raises NetworkDuplicate, InvalidInput."""

    @call
    def associate(self, ctx: RequestContext, project_id: str, uuid: str | None = None) -> Network:
        """Assign a network without a project to the project (None: one without servers of other projects).

        Raises NetworkNotFound, NetworkInUse, NetworkDuplicate, NoMoreNetworks.
        """

    @call
    def disassociate(self, ctx: RequestContext, uuid: str, project: bool, host: bool) -> None:
        """Remove the association of a network with its project, its host, or both.

        Raises NetworkNotFound, NetworkInUse, NetworkDuplicate.
        """

    @call
    def associate_host(self, ctx: RequestContext, uuid: str, host: str) -> None:
        """Raises NetworkNotFound, ComputeHostNotFound."""

    @call
    def delete(self, ctx: RequestContext, uuid: str) -> None:
        """Raises NetworkInUse, NetworkNotFound."""
