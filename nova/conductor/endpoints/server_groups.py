"""Server groups."""

from __future__ import annotations

from nova.conductor.endpoints import telling
from nova.conductor.endpoints.derived import Endpoint, reads, writes
from nova.db import server_groups as db


class ServerGroups(Endpoint):
    """Implements :class:`nova.rpcapi.server_groups.ServerGroups`."""

    index = reads(db.index)
    get = reads(db.get)
    create = writes(db.create, tells=telling.group_created)
    delete = writes(db.delete, tells=telling.group_deleted)
