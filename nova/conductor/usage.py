"""Tells the schedulers how full nodes are, many nodes at a time.

A boot storm touches the same nodes over and over; one message says it for all that was touched
since the last one. Schedulers count their own choices meanwhile, and the claim decides anyway.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection

from nova.conductor.announcer import FleetAnnouncer
from nova.db import compute_nodes
from nova.db.engine import Database

LOG = logging.getLogger(__name__)

# Seconds between two messages of one conductor.
_INTERVAL = 0.25
# The most seconds until what could not be published is tried again.
_LONGEST = 10.0


class UsageFeed:
    """Collects touched nodes and publishes their usage in the background."""

    def __init__(self, db: Database, fleet: FleetAnnouncer) -> None:
        self._db = db
        self._fleet = fleet
        self._touched: set[str] = set()
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="usage", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Returns when what was touched is published, or could not be once more."""
        self._stopped.set()
        self._wake.set()
        self._thread.join()

    def touch(self, node_uuids: Collection[str]) -> None:
        """The usage of these nodes changed (call after the commit)."""
        with self._lock:
            self._touched.update(node_uuids)
        self._wake.set()

    def _run(self) -> None:
        failures = 0
        while not self._stopped.is_set():
            self._wake.wait()
            self._stopped.wait(_INTERVAL if not failures else min(_LONGEST, _INTERVAL * 2**failures))
            self._wake.clear()
            failures = 0 if self.flush() else failures + 1
            if failures:
                self._wake.set()  # nobody else might touch anything for long

    def flush(self) -> bool:
        """Publish what was touched, now; False if that failed, and is still to be done."""
        with self._lock:
            touched, self._touched = self._touched, set()
        if not touched:
            return True
        try:
            self._fleet.usage(self._db.read(lambda connection: compute_nodes.usage(connection, sorted(touched))))
            return True
        except Exception as error:
            LOG.warning("The usage of %d nodes was not published and will be: %s", len(touched), error,
                        exc_info=LOG.isEnabledFor(logging.DEBUG))
            with self._lock:
                self._touched |= touched
            return False
