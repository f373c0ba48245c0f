"""Tells the schedulers how full nodes are, many nodes at a time.

A boot storm touches the same nodes over and over; one message says it for all that was touched
since the last one. Schedulers count their own choices meanwhile, and the claim decides anyway.
"""

from __future__ import annotations

from collections.abc import Collection

from nova.conductor.feeds.deltas import FleetAnnouncer
from nova.conductor.feeds.feed import Feed
from nova.db import compute_nodes
from nova.db.sql.engine import Database


class UsageFeed(Feed):
    """Collects nodes whose usage changed and publishes it."""

    name = "usage"
    interval = 0.25

    def __init__(self, db: Database, fleet: FleetAnnouncer) -> None:
        super().__init__()
        self._db = db
        self._fleet = fleet

    def tell(self, names: Collection[str]) -> None:
        self._fleet.usage(self._db.read(lambda connection: compute_nodes.usage(connection, sorted(names))))
