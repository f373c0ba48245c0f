"""Server groups."""

from __future__ import annotations

from nova.conductor.endpoints import notifications
from nova.conductor.endpoints.derived import Endpoint, reads, writes
from nova.db.servers import server_groups


class ServerGroups(Endpoint):
    """Implements :class:`nova.rpcapi.servers.ServerGroups`."""

    index = reads(server_groups.index)
    get = reads(server_groups.get)
    create = writes(server_groups.create, notify=notifications.group_created)
    delete = writes(server_groups.delete, notify=notifications.group_deleted)
