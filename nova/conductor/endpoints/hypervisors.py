"""Compute nodes as operators see them."""

from __future__ import annotations

from nova.conductor.endpoints.derived import Endpoint, reads
from nova.context import RequestContext
from nova.db import compute_nodes, servers
from nova.objects.instance import Instance

# More servers than this on the hosts of one request are not listed.
_MOST_SERVERS = 10000


class Hypervisors(Endpoint):
    """Implements :class:`nova.rpcapi.hypervisors.Hypervisors`."""

    index = reads(compute_nodes.index)
    get = reads(compute_nodes.get)

    def servers(self, ctx: RequestContext, hosts: list[str]) -> list[Instance]:
        if not hosts:
            return []
        return self.core.db.read(lambda connection: servers.on_hosts_brief(connection, hosts, _MOST_SERVERS))
