"""Updates of the fleet: deltas from the conductors, and a complete read after a delta was lost."""

import dataclasses
import logging
import threading
import time
from collections.abc import Callable

from nova.conf import CONF
from nova.objects.hosts.scheduling import FleetDelta, FleetPage, ServiceFlags
from nova.scheduler.hosts import Fleet
from nova.telemetry import metrics

LOG = logging.getLogger(__name__)

GRACE = 0.5  # seconds that a missing delta may be late before it counts as lost: threads process deltas concurrently
# Maximum fraction of time spent on complete reads.
_MAX_DUTY = 0.05
_TICK = 1.0  # the thread wakes up twice in this number of seconds
_RETRY = (0.5, 1.0, 2.0, 5.0)  # seconds before a failed complete read is repeated, by the number of failures
_SLICE = 50  # number of nodes that are changed while the lock is held once
_FORGET = 3600.0  # seconds without a message after which a conductor is removed


@dataclasses.dataclass
class _Source:
    """Progress of the deltas of one conductor. Received: all deltas up to number ``last``, and those in ``early``."""

    last: int
    seen_at: float
    early: set[int] = dataclasses.field(default_factory=set)
    gap_since: float | None = None

    def note(self, seq: int, now: float) -> None:
        self.seen_at = now
        if seq <= self.last:
            return  # ignore a late or duplicate message
        self.early.add(seq)
        while self.last + 1 in self.early:
            self.last += 1
            self.early.discard(self.last)
        if not self.early:
            self.gap_since = None
        elif self.gap_since is None:
            self.gap_since = now

    def give_up(self) -> None:
        """Treat the missing deltas as lost."""
        self.last = max(self.early, default=self.last)
        self.early.clear()
        self.gap_since = None


class Follower:
    """Applies deltas to a fleet; reads the complete fleet at the start, after a gap, on demand and periodically.
    ``page`` fetches a page of the fleet by its marker. Requests do not wait for a read: they use the current fleet.
    Deltas are applied immediately; those that arrive during a read are applied again after it."""

    def __init__(self, fleet: Fleet, page: Callable[[str | None], FleetPage]) -> None:
        self._fleet, self._page = fleet, page
        self._lock = threading.Lock()  # protects the next four fields
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
        """Apply the changes of a conductor. Deltas may be duplicate, late and in any order."""
        now = time.monotonic()
        with self._lock:
            source = self._sources.get(delta.source)
            if source is None:
                self._sources[delta.source] = _Source(last=delta.seq, seen_at=now)
            else:
                source.note(delta.seq, now)
            if self._recorded is not None:
                self._recorded.append(delta)
            # Inside the lock, so that each delta is either recorded for the read or applied before the read began.
            self._apply(delta)
        if delta.reload:
            self.refresh("a conductor requested it")

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
        """Schedule a complete read in the background."""
        with self._lock:
            self._wanted = self._wanted or why
        self._wake.set()

    # --- readings ----------------------------------------------------------------------------------
    def read_all(self) -> None:
        """Read the complete fleet now. Raises the errors of the conductor; the fleet is then unchanged or newer."""
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
            # Remove nodes that were not read. Apply again the deltas that arrived during the read.
            with self._lock:
                recorded, self._recorded = self._recorded or [], None
                seen.update(state.node_uuid for delta in recorded for state in delta.states)
                removed = self._fleet.retain(seen)
                for delta in recorded:
                    self._apply(delta)
            if removed:
                LOG.info("Removed %d compute nodes that no longer exist", removed)
        finally:
            with self._lock:
                self._recorded = None
        self.ready.set()

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
        """Return the reason for a read now, or ""."""
        with self._lock:
            for name, source in list(self._sources.items()):
                if source.gap_since is not None and now - source.gap_since > GRACE:
                    source.give_up()
                    metrics.FLEET_GAPS.inc()
                    self._wanted = self._wanted or f"a message of {name} was lost"
                elif now - source.seen_at > _FORGET:
                    del self._sources[name]
                    self._service_seq = {key: seq for key, seq in self._service_seq.items() if key[0] != name}
            return self._wanted or ("periodic" if now >= due else "")

    def _read(self, why: str, failures: int) -> tuple[int, float]:
        """Read the fleet; return the number of consecutive failures, and the seconds until the next read."""
        started = time.monotonic()
        with self._lock:
            self._wanted = ""
        try:
            self.read_all()
        except Exception as error:
            with self._lock:
                self._wanted = why
            metrics.FLEET_READ_SECONDS.observe(time.monotonic() - started, "failed")
            LOG.warning("Cannot read the compute nodes from a conductor, retrying: %s", error)
            return failures + 1, _RETRY[min(failures, len(_RETRY) - 1)]
        took = time.monotonic() - started
        metrics.FLEET_READ_SECONDS.observe(took, "success")
        LOG.log(logging.DEBUG if why == "periodic" else logging.INFO, "Read %d compute nodes in %.2f s, reason: %s",
                len(self._fleet), took, why)
        return 0, max(CONF.scheduler.refresh_interval, took / _MAX_DUTY)
