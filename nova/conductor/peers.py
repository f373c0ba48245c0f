"""Tells hosts who else has their networks, many changes at a time.

A network that comes to a thousand hosts at once changes a thousand times; one message to each host says it for all
changes since the last one, and the more hosts there are the rarer it is said.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection

from nova import context, exception
from nova.db import network_hosts
from nova.db.engine import Database
from nova.objects.network import Peers
from nova.rpcapi.compute import Compute

LOG = logging.getLogger(__name__)

# Seconds between two looks for changes, and messages per second that a network may cost.
_INTERVAL = 0.2
_RATE = 200


class PeersFeed:
    """Collects networks that came to a host or went from one, and tells their hosts in the background."""

    def __init__(self, db: Database, compute_at: Callable[[str], Compute]) -> None:
        self._db = db
        self._compute_at = compute_at
        # network -> not before this time
        self._touched: dict[str, float] = {}
        self._rests: dict[str, float] = {}
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="peers", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Tell what is left to be told."""
        self._stopped.set()
        self._wake.set()
        self._thread.join()
        self.flush(everything=True)

    def touch(self, network_ids: Collection[str]) -> None:
        """Other hosts have these networks than before (call after the commit)."""
        if network_ids:
            with self._lock:
                for network_id in network_ids:
                    self._touched.setdefault(network_id, self._rests.get(network_id, 0.0))
            self._wake.set()

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._wake.wait()
            self._stopped.wait(_INTERVAL)
            with self._lock:
                if not self._touched:
                    self._wake.clear()
                    continue
            self.flush()

    def flush(self, everything: bool = False) -> None:
        """Tell of the networks whose time has come."""
        now = time.monotonic()
        with self._lock:
            due = [network for network, since in self._touched.items() if everything or since <= now]
            for network in due:
                del self._touched[network]
            self._rests = {network: until for network, until in self._rests.items() if until > now}
        if not due:
            return
        try:
            found = self._db.read(lambda connection: network_hosts.newer(connection, dict.fromkeys(due, 0)))
        except Exception:
            LOG.exception("The hosts of %d networks were not told of one another: they ask by themselves", len(due))
            return
        for peers in found:
            self._tell(peers)
            with self._lock:
                self._rests[peers.network_id] = time.monotonic() + len(peers.hosts) / _RATE

    def _tell(self, peers: Peers) -> None:
        for host in peers.hosts:
            try:
                self._compute_at(host).refresh_peers(context.admin(), peers)
            except exception.NovaException as error:
                LOG.warning("Host %s was not told who has network %s: %s", host, peers.network_id, error)
