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
    def delete(self, ctx: RequestContext, uuid: str) -> None:
        """Raises NetworkInUse, NetworkNotFound."""
