"""Server groups."""

from __future__ import annotations

from nova.conductor.endpoints import telling
from nova.conductor.endpoints.derived import Endpoint, reads, writes
from nova.db import server_groups


class ServerGroups(Endpoint):
    """Implements :class:`nova.rpcapi.server_groups.ServerGroups`."""

    index = reads(server_groups.index)
    get = reads(server_groups.get)
    create = writes(server_groups.create, tells=telling.group_created)
    delete = writes(server_groups.delete, tells=telling.group_deleted)
