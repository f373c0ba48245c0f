"""Networks of the embedded network driver."""

from __future__ import annotations

from nova.bus import Interface, call
from nova.context import RequestContext
from nova.objects.network import Network
from nova.rpcapi import CONDUCTOR


class Networks(Interface):
    topic = CONDUCTOR
    namespace = "networks"

    @call
    def index(self, ctx: RequestContext, project_id: str | None = None) -> list[Network]:
        """The networks that a project may use (its own and the shared ones); None: all."""

    @call
    def get(self, ctx: RequestContext, uuid: str, project_id: str | None = None) -> Network:
        """Raises NetworkNotFound."""

    @call
    def create(self, ctx: RequestContext, network: Network) -> Network:
        """Raises NetworkDuplicate, InvalidInput."""

    @call
    def associate(self, ctx: RequestContext, project_id: str, uuid: str | None = None) -> Network:
        """A network of nobody's becomes the project's; None: one without servers of others.

        Raises NetworkNotFound, NetworkInUse, NetworkDuplicate, NoMoreNetworks.
        """

    @call
    def disassociate(self, ctx: RequestContext, uuid: str, project: bool, host: bool) -> None:
        """Take the network from its project, from its host, or both.

        Raises NetworkNotFound, NetworkInUse, NetworkDuplicate.
        """

    @call
    def associate_host(self, ctx: RequestContext, uuid: str, host: str) -> None:
        """Raises NetworkNotFound, ComputeHostNotFound."""

    @call
    def delete(self, ctx: RequestContext, uuid: str) -> None:
        """Raises NetworkInUse, NetworkNotFound."""
