"""A semaphore that admits the threads of different projects in turn."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

from nova.service.fair_pool import FairQueue

_STALLED_AFTER = 0.05  # seconds after which a thread that holds a slot is assumed to be blocked


class FairSemaphore:
    """A semaphore with ``slots`` slots that serves waiting projects round robin, like ``FairThreadPool``. A thread that
    holds a slot for longer than ``stalled_after`` seconds is assumed to be blocked, for example by a database lock. Its
    slot is given to a waiting thread, so that blocked threads do not delay others. Thread-safe."""

    def __init__(self, slots: int, stalled_after: float = _STALLED_AFTER) -> None:
        self._stalled_after = stalled_after
        self._lock = threading.Lock()
        self._free = slots
        self._queue: FairQueue[_Entry] = FairQueue()
        self._holders: set[_Entry] = set()

    @contextlib.contextmanager
    def slot(self, project_id: str | None) -> Iterator[None]:
        """Run the block with a slot, waiting for one if none is free."""
        entry = _Entry()
        with self._lock:
            if self._free and not self._queue.waiting:
                self._admit(entry)
            else:
                self._queue.put(project_id or "", entry)
                entry.admitted = threading.Event()
        while entry.admitted is not None and not entry.admitted.wait(self._stalled_after):
            with self._lock:
                self._release_stalled()
        try:
            yield
        finally:
            with self._lock:
                self._release(entry)

    def waiting(self) -> int:
        """Return the number of threads that wait for a slot."""
        with self._lock:
            return self._queue.waiting

    def free(self) -> int:
        """Return the number of free slots."""
        with self._lock:
            return self._free

    def _admit(self, entry: _Entry) -> None:
        self._free -= 1
        entry.since = time.monotonic()
        self._holders.add(entry)
        if entry.admitted is not None:
            entry.admitted.set()

    def _release(self, entry: _Entry) -> None:
        if entry not in self._holders:
            return  # its slot was already given to another thread
        self._holders.remove(entry)
        self._free += 1
        if self._queue.waiting:
            self._admit(self._queue.take())

    def _release_stalled(self) -> None:
        before = time.monotonic() - self._stalled_after
        for entry in [entry for entry in self._holders if entry.since <= before]:
            self._release(entry)


class _Entry:
    """A thread that holds or waits for a slot. ``admitted`` is set only for a thread that has to wait."""

    __slots__ = ("admitted", "since")

    def __init__(self) -> None:
        self.admitted: threading.Event | None = None
        self.since = 0.0
