"""A publisher of the usage of nodes to the schedulers.

A boot storm changes the same nodes over and over. One message covers all nodes that changed since
the last message. Meanwhile schedulers count their own choices, and the claim decides anyway.
"""

from __future__ import annotations

from collections.abc import Collection

from nova.conductor.feeds.deltas import FleetAnnouncer
from nova.conductor.feeds.feed import Feed
from nova.db.hosts import compute_nodes
from nova.db.sql.engine import Database


class UsageFeed(Feed):
    """A publisher of the usage of changed nodes."""

    name = "usage"
    interval = 0.25

    def __init__(self, db: Database, fleet: FleetAnnouncer) -> None:
        super().__init__()
        self._db = db
        self._fleet = fleet

    def publish(self, names: Collection[str]) -> None:
        self._fleet.usage(self._db.read(lambda connection: compute_nodes.usage(connection, sorted(names))))
