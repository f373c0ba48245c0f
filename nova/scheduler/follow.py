"""Keeping the fleet fresh: deltas from the conductors, and a reading of everything when one was lost."""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Callable

from nova.conf import CONF
from nova.objects.scheduling import FleetDelta, FleetPage, ServiceFlags
from nova.scheduler.hosts import Fleet
from nova.telemetry import metrics

LOG = logging.getLogger(__name__)

# Seconds that a missing delta may be late (threads handle them side by side) before it counts as lost.
GRACE = 0.5
# A reading takes at most this part of the time.
_MAX_DUTY = 0.05
_TICK = 1.0
_RETRY = (0.5, 1.0, 2.0, 5.0)
# Nodes that are changed under one hold of the lock.
_SLICE = 50
# Seconds after which a silent conductor is forgotten.
_FORGET = 3600.0


@dataclasses.dataclass
class _Source:
    """How far the deltas of one conductor have come: all up to ``last``, and those in ``early``."""

    last: int
    seen_at: float
    early: set[int] = dataclasses.field(default_factory=set)
    gap_since: float | None = None

    def note(self, seq: int, now: float) -> None:
        self.seen_at = now
        if seq <= self.last:
            return  # late or doubled
        self.early.add(seq)
        while self.last + 1 in self.early:
            self.last += 1
            self.early.discard(self.last)
        if not self.early:
            self.gap_since = None
        elif self.gap_since is None:
            self.gap_since = now

    def give_up(self) -> None:
        """What is missing will not come."""
        self.last = max(self.early, default=self.last)
        self.early.clear()
        self.gap_since = None


class Follower:
    """Applies deltas to a fleet and reads all of it at the start, after a gap, on demand and now and then.

    ``page`` fetches a page of the fleet by its marker. Nothing waits for a reading: the fleet is
    used as it is, deltas are applied at once and again on top of what was read.
    """

    def __init__(self, fleet: Fleet, page: Callable[[str | None], FleetPage]) -> None:
        self._fleet = fleet
        self._page = page
        self._lock = threading.Lock()  # the fields below
        self._sources: dict[str, _Source] = {}
        self._service_seq: dict[tuple[str, str], int] = {}
        self._recorded: list[FleetDelta] | None = None
        self._wanted = "start"
        self._wake = threading.Event()
        self._stopped = threading.Event()
        self.ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fleet", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()

    # --- deltas ------------------------------------------------------------------------------------
    def delta(self, delta: FleetDelta) -> None:
        """A conductor changed something. Deltas may come doubled, late and in any order."""
        now = time.monotonic()
        with self._lock:
            source = self._sources.get(delta.source)
            if source is None:
                self._sources[delta.source] = _Source(last=delta.seq, seen_at=now)
            else:
                source.note(delta.seq, now)
            if self._recorded is not None:
                self._recorded.append(delta)
            # Inside the lock, so that a reading sees a delta either recorded or applied before it began.
            self._apply(delta)
        if delta.reload:
            self.refresh("a conductor asked for it")

    def _apply(self, delta: FleetDelta) -> None:
        for state in delta.states:
            self._fleet.upsert(state)
        for usage in delta.usage:
            self._fleet.apply(usage)
        for host, (up, disabled) in delta.services.items():
            key = (delta.source, host)
            if self._service_seq.get(key, -1) <= delta.seq:
                self._service_seq[key] = delta.seq
                self._fleet.set_service(host, ServiceFlags(
                    up=up, disabled=disabled, generation=delta.service_generations.get(host, 0)))
        for node_uuid in delta.removed:
            self._fleet.remove(node_uuid)

    def refresh(self, why: str) -> None:
        """Read the whole fleet soon, in the background."""
        with self._lock:
            self._wanted = self._wanted or why
        self._wake.set()

    # --- readings ----------------------------------------------------------------------------------
    def read_all(self) -> None:
        """Read the whole fleet now. Raises what the conductor raises; the fleet is then as before, or newer."""
        with self._lock:
            self._recorded = []
        seen: set[str] = set()
        try:
            marker: str | None = None
            while not self._stopped.is_set():
                page = self._page(marker)
                for start in range(0, len(page.states), _SLICE):
                    self._fleet.upsert_all(page.states[start:start + _SLICE])
                seen.update(state.node_uuid for state in page.states)
                marker = page.marker
                if marker is None:
                    break
            else:
                return
            self._settle(seen)
        finally:
            with self._lock:
                self._recorded = None
        self.ready.set()

    def _settle(self, seen: set[str]) -> None:
        """Forget what was not read, and put back on top what came meanwhile."""
        with self._lock:
            recorded, self._recorded = self._recorded or [], None
            seen.update(state.node_uuid for delta in recorded for state in delta.states)
            gone = self._fleet.retain(seen)
            for delta in recorded:
                self._apply(delta)
        if gone:
            LOG.info("%d compute nodes are gone", gone)

    # --- the thread --------------------------------------------------------------------------------
    def _run(self) -> None:
        due, failures = 0.0, 0
        while not self._stopped.is_set():
            now = time.monotonic()
            why = self._why(now, due)
            if why and (failures == 0 or now >= due):
                failures, pause = self._read(why, failures)
                due = time.monotonic() + pause
            self._fleet.expire(CONF.scheduler.pending_timeout)
            self._wake.wait(_TICK / 2)
            self._wake.clear()

    def _why(self, now: float, due: float) -> str:
        """The reason for a reading now; "" for none."""
        with self._lock:
            for name, source in list(self._sources.items()):
                if source.gap_since is not None and now - source.gap_since > GRACE:
                    source.give_up()
                    metrics.FLEET_GAPS.inc()
                    self._wanted = self._wanted or f"a message of {name} was lost"
                elif now - source.seen_at > _FORGET:
                    del self._sources[name]
                    self._service_seq = {key: seq for key, seq in self._service_seq.items() if key[0] != name}
            return self._wanted or ("it is time" if now >= due else "")

    def _read(self, why: str, failures: int) -> tuple[int, float]:
        """Read everything; returns how often that has failed in a row, and the seconds until the next time."""
        started = time.monotonic()
        with self._lock:
            self._wanted = ""
        try:
            self.read_all()
        except Exception as error:
            with self._lock:
                self._wanted = why
            metrics.FLEET_READ_SECONDS.observe(time.monotonic() - started, "failed")
            LOG.warning("The fleet could not be read and will be tried again: %s", error)
            return failures + 1, _RETRY[min(failures, len(_RETRY) - 1)]
        took = time.monotonic() - started
        metrics.FLEET_READ_SECONDS.observe(took, "success")
        LOG.log(logging.DEBUG if why == "it is time" else logging.INFO,
                "Read %d compute nodes in %.2f s, because %s", len(self._fleet), took,
                "of the start" if why == "start" else why)
        return 0, max(CONF.scheduler.refresh_interval, took / _MAX_DUTY)
