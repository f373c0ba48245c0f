"""What conductors tell others in the background, many changes at a time."""

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

# The most seconds until what could not be told is tried again.
_LONGEST = 10.0
# Messages per second that one name may cost.
_RATE = 200


class Feed(abc.ABC):
    """Collects what has changed, by name, and tells it by a thread of its own, every ``interval`` seconds at most."""

    name: str
    interval: float

    def __init__(self) -> None:
        # what -> not before this time
        self._touched: dict[str, float] = {}
        self._rests: dict[str, float] = {}
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)

    @abc.abstractmethod
    def tell(self, names: Collection[str]) -> None:
        """Tell of these, as they are now. Whatever it raises is logged, and they are told again."""

    def rest(self, name: str, messages: int) -> None:
        """It took so many messages to tell of this: the more, the longer it is until it is told again."""
        self._rests[name] = time.monotonic() + messages / _RATE

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Returns when what was touched is told, or could not be once more."""
        self._stopped.set()
        self._wake.set()
        self._thread.join()
        self.flush(everything=True)

    def touch(self, names: Collection[str]) -> None:
        """They are not as they were (call after the commit)."""
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
        """Tell what was touched and need not rest any longer, now; False if that failed, and is still to be done."""
        now = time.monotonic()
        with self._lock:
            due = sorted(name for name, since in self._touched.items() if everything or since <= now)
            for name in due:
                del self._touched[name]
            self._rests = {name: until for name, until in self._rests.items() if until > now}
        if not due:
            return True
        try:
            self.tell(due)
            return True
        except Exception as error:
            LOG.warning("%d changes were not told (%s) and will be: %s", len(due), self.name, error,
                        exc_info=LOG.isEnabledFor(logging.DEBUG))
            self.touch(due)
            return False


class HostFeed(Feed):
    """One whose words go to hosts."""

    def __init__(self, db: Database, compute_at: Callable[[str], Compute]) -> None:
        super().__init__()
        self._db = db
        self._compute_at = compute_at

    @contextlib.contextmanager
    def telling(self, host: str, what: str) -> Iterator[Compute]:
        """The host, which is told in the block. A failure is logged (``what``): it asks for itself what it missed."""
        try:
            yield self._compute_at(host)
        except exception.NovaException as error:
            LOG.warning("Host %s was not told %s: %s", host, what, error)
