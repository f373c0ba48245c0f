"""The RPC interface of server groups."""

from __future__ import annotations

from nova.bus import Interface, call
from nova.context import RequestContext
from nova.objects.servers.server_group import ServerGroup
from nova.rpcapi import CONDUCTOR


class ServerGroups(Interface):
    topic = CONDUCTOR
    namespace = "server_groups"

    @call
    def index(self, ctx: RequestContext, project_id: str | None, limit: int | None = None,
              offset: int = 0) -> list[ServerGroup]: ...

    @call
    def get(self, ctx: RequestContext, uuid: str, project_id: str | None = None) -> ServerGroup:
        """Raises ServerGroupNotFound."""

    @call
    def create(self, ctx: RequestContext, group: ServerGroup) -> ServerGroup:
        """Raises QuotaLimit ("Quota exceeded, too many server groups.")."""

    @call
    def delete(self, ctx: RequestContext, uuid: str, project_id: str | None = None) -> None: ...
