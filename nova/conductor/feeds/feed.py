"""Background publishers, which batch changes."""

from __future__ import annotations

import abc
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator

from nova import exception
from nova.db.sql.engine import Database
from nova.rpcapi.compute import Compute

LOG = logging.getLogger(__name__)

# Maximum seconds between two attempts to publish.
_LONGEST = 10.0
# Maximum messages per second for one name.
_RATE = 200


class Feed(abc.ABC):
    """A thread that collects the names of changed objects and publishes them at most every ``interval`` seconds."""

    name: str
    interval: float

    def __init__(self) -> None:
        # name -> earliest time of publication
        self._touched: dict[str, float] = {}
        self._rests: dict[str, float] = {}
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)

    @abc.abstractmethod
    def publish(self, names: Collection[str]) -> None:
        """Publish the current state of these objects. Exceptions are logged, and the names are retried."""

    def rest(self, name: str, messages: int) -> None:
        """Delay the next publication of ``name`` in proportion to the number of messages that this one took."""
        self._rests[name] = time.monotonic() + messages / _RATE

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread, then try once to publish all pending names."""
        self._stopped.set()
        self._wake.set()
        self._thread.join()
        self.flush(everything=True)

    def touch(self, names: Collection[str]) -> None:
        """Mark the objects as changed. Call after the commit."""
        if names:
            with self._lock:
                for name in names:
                    self._touched.setdefault(name, self._rests.get(name, 0.0))
            self._wake.set()

    def _run(self) -> None:
        failures = 0
        while not self._stopped.is_set():
            self._wake.wait()
            self._stopped.wait(self.interval if not failures else min(_LONGEST, self.interval * 2**failures))
            failures = 0 if self.flush() else failures + 1
            with self._lock:
                if not self._touched and not self._stopped.is_set():
                    self._wake.clear()

    def flush(self, everything: bool = False) -> bool:
        """Publish the changed names whose delay has passed. Return False on failure; the names stay pending."""
        now = time.monotonic()
        with self._lock:
            due = sorted(name for name, since in self._touched.items() if everything or since <= now)
            for name in due:
                del self._touched[name]
            self._rests = {name: until for name, until in self._rests.items() if until > now}
        if not due:
            return True
        try:
            self.publish(due)
            return True
        except Exception as error:
            LOG.warning("Cannot publish %d changes (%s), will retry: %s", len(due), self.name, error,
                        exc_info=LOG.isEnabledFor(logging.DEBUG))
            self.touch(due)
            return False


class HostFeed(Feed):
    """A publisher whose messages go to hosts."""

    def __init__(self, db: Database, compute_at: Callable[[str], Compute]) -> None:
        super().__init__()
        self._db = db
        self._compute_at = compute_at

    @contextlib.contextmanager
    def sending(self, host: str, what: str) -> Iterator[Compute]:
        """Yield the client for ``host``. Log a failure to send ``what``: the host requests missed changes itself."""
        try:
            yield self._compute_at(host)
        except exception.NovaException as error:
            LOG.warning("Cannot send %s to host %s, which requests missed changes later: %s", what, host, error)
