"""Tells hosts who else has their networks, many changes at a time.

A network that comes to a thousand hosts at once changes a thousand times; one message to each host says it for all
changes since the last one, and the more hosts there are the rarer it is said.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from nova import context, exception
from nova.conductor.feeds.feed import Feed
from nova.db import network_hosts
from nova.db.sql.engine import Database
from nova.objects.network import Peers
from nova.rpcapi.compute import Compute

LOG = logging.getLogger(__name__)


class PeersFeed(Feed):
    """Collects networks that came to a host or went from one, and tells their hosts."""

    name = "peers"
    interval = 0.2

    def __init__(self, db: Database, compute_at: Callable[[str], Compute]) -> None:
        super().__init__()
        self._db = db
        self._compute_at = compute_at

    def tell(self, names: Collection[str]) -> None:
        found = self._db.read(lambda connection: network_hosts.newer(connection, dict.fromkeys(names, 0)))
        for peers in found:
            self._tell(peers)
            self.rest(peers.network_id, len(peers.hosts))

    def _tell(self, peers: Peers) -> None:
        for host in peers.hosts:
            try:
                self._compute_at(host).refresh_peers(context.admin(), peers)
            except exception.NovaException as error:
                LOG.warning("Host %s was not told who has network %s: %s", host, peers.network_id, error)
