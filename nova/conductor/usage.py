"""Tells the schedulers how full nodes are, many nodes at a time.

A boot storm touches the same nodes over and over; one message says it for all that was touched
since the last one. Schedulers count their own choices meanwhile, and the claim decides anyway.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection

from nova.conductor.fleet import FleetPublisher
from nova.db import compute_nodes
from nova.db.engine import Database

LOG = logging.getLogger(__name__)

# Seconds between two messages of one conductor.
_INTERVAL = 0.25


class UsageFeed:
    """Collects touched nodes and publishes their usage in the background."""

    def __init__(self, db: Database, fleet: FleetPublisher) -> None:
        self._db = db
        self._fleet = fleet
        self._touched: set[str] = set()
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="usage", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped = True
        self._wake.set()
        self._thread.join()

    def touch(self, node_uuids: Collection[str]) -> None:
        """The usage of these nodes changed (call after the commit)."""
        with self._lock:
            self._touched.update(node_uuids)
        self._wake.set()

    def _run(self) -> None:
        pause = threading.Event()
        while not self._stopped:
            self._wake.wait()
            pause.wait(_INTERVAL)
            self._wake.clear()
            self.flush()

    def flush(self) -> None:
        """Publish what was touched, now."""
        with self._lock:
            touched, self._touched = self._touched, set()
        if not touched:
            return
        try:
            self._fleet.usage(self._db.read(lambda connection: compute_nodes.usage(connection, sorted(touched))))
        except Exception:
            LOG.exception("The usage of %d nodes was not published", len(touched))
            with self._lock:
                self._touched |= touched
