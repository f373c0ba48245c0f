"""Compute nodes as operators see them."""

from __future__ import annotations

from nova.conductor.core import Core
from nova.context import RequestContext
from nova.db import compute_nodes as db
from nova.db import servers
from nova.objects.instance import Instance
from nova.objects.node import ComputeNode

# More servers than this on the hosts of one request are not listed.
_MOST_SERVERS = 10000


class Hypervisors:
    """Implements :class:`nova.rpcapi.hypervisors.Hypervisors`."""

    def __init__(self, core: Core) -> None:
        self.core = core

    def index(self, ctx: RequestContext, pattern: str | None = None, limit: int | None = None,
              marker: str | None = None) -> list[ComputeNode]:
        return self.core.db.read(lambda connection: db.index(connection, pattern, limit, marker))

    def get(self, ctx: RequestContext, node_id: str) -> ComputeNode:
        return self.core.db.read(lambda connection: db.get(connection, node_id))

    def servers(self, ctx: RequestContext, hosts: list[str]) -> list[Instance]:
        if not hosts:
            return []
        return self.core.db.read(lambda connection: servers.on_hosts_brief(connection, hosts, _MOST_SERVERS))
