"""A publisher of the peers of tunneled networks to hosts.

A network that is set up on a thousand hosts at once changes a thousand times. One message to each host covers all
changes since the last message. The more hosts there are, the less often messages are sent.
"""

from __future__ import annotations

from collections.abc import Collection

from nova import context
from nova.conductor.feeds.feed import HostFeed
from nova.db.hosts import network_hosts
from nova.objects.networks.network import Peers


class PeersFeed(HostFeed):
    """A publisher of networks whose set of hosts changed, to the hosts of these networks."""

    name = "peers"
    interval = 0.2

    def publish(self, names: Collection[str]) -> None:
        changed = self._db.read(lambda connection: network_hosts.newer(connection, dict.fromkeys(names, 0)))
        for peers in changed:
            self._publish(peers)
            self.rest(peers.network_id, len(peers.hosts))

    def _publish(self, peers: Peers) -> None:
        for host in peers.hosts:
            with self.sending(host, f"the peers of network {peers.network_id}") as compute:
                compute.refresh_peers(context.admin(), peers)
