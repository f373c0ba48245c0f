"""Server groups."""

from __future__ import annotations

from nova.conductor.core import Core
from nova.context import RequestContext
from nova.db import server_groups as db
from nova.objects.server_group import ServerGroup


class ServerGroups:
    """Implements :class:`nova.rpcapi.server_groups.ServerGroups`."""

    def __init__(self, core: Core) -> None:
        self.core = core

    def index(self, ctx: RequestContext, project_id: str | None, limit: int | None = None,
              offset: int = 0) -> list[ServerGroup]:
        return self.core.db.read(lambda connection: db.index(connection, project_id, limit, offset))

    def get(self, ctx: RequestContext, uuid: str, project_id: str | None = None) -> ServerGroup:
        return self.core.db.read(lambda connection: db.get(connection, uuid, project_id))

    def create(self, ctx: RequestContext, group: ServerGroup) -> ServerGroup:
        return self.core.db.write(lambda connection: db.create(connection, group))

    def delete(self, ctx: RequestContext, uuid: str, project_id: str | None = None) -> None:
        self.core.db.write(lambda connection: db.delete(connection, uuid, project_id))
