"""Tells hosts who else has their networks, many changes at a time.

A network that comes to a thousand hosts at once changes a thousand times; one message to each host says it for all
changes since the last one, and the more hosts there are the rarer it is said.
"""

from __future__ import annotations

from collections.abc import Collection

from nova import context
from nova.conductor.feeds.feed import HostFeed
from nova.db import network_hosts
from nova.objects.network import Peers


class PeersFeed(HostFeed):
    """Collects networks that came to a host or went from one, and tells their hosts."""

    name = "peers"
    interval = 0.2

    def tell(self, names: Collection[str]) -> None:
        found = self._db.read(lambda connection: network_hosts.newer(connection, dict.fromkeys(names, 0)))
        for peers in found:
            self._tell(peers)
            self.rest(peers.network_id, len(peers.hosts))

    def _tell(self, peers: Peers) -> None:
        for host in peers.hosts:
            with self.telling(host, f"who has network {peers.network_id}") as compute:
                compute.refresh_peers(context.admin(), peers)
