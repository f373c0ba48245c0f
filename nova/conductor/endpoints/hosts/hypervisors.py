"""Compute nodes, for operators."""

from __future__ import annotations

from nova.conductor.endpoints.derived import Endpoint, reads
from nova.context import RequestContext
from nova.db.hosts import compute_nodes
from nova.db.servers import servers
from nova.objects.servers.instance import Instance

# Maximum number of servers listed for the hosts of a request.
_MOST_SERVERS = 10000


class Hypervisors(Endpoint):
    """Implements :class:`nova.rpcapi.hosts.Hypervisors`."""

    index = reads(compute_nodes.index)
    get = reads(compute_nodes.get)

    def servers(self, ctx: RequestContext, hosts: list[str]) -> list[Instance]:
        if not hosts:
            return []
        return self.core.db.read(lambda connection: servers.on_hosts_brief(connection, hosts, _MOST_SERVERS))
