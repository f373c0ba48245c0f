"""A line before a lock that knows none.

Who finds SQLite's write lock taken sleeps and tries again, longer each time: among many who write he may come last
(61 builds at once: the one that stood second in line was placed as the 60th).
"""

from __future__ import annotations

import collections
import contextlib
import threading
from collections.abc import Iterator


class Line:
    """Threads of this process pass one after the other, in the order in which they came. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken = False
        self._waiting: collections.deque[threading.Event] = collections.deque()

    @property
    def waiting(self) -> int:
        """How many wait."""
        with self._lock:
            return len(self._waiting)

    @contextlib.contextmanager
    def turn(self, seconds: float) -> Iterator[None]:
        """The block is run by one thread at a time; who has waited for ``seconds`` does not wait any longer."""
        passed = self._pass(seconds)
        try:
            yield
        finally:
            if passed:
                self._leave()

    def _pass(self, seconds: float) -> bool:
        with self._lock:
            if not self._taken:
                self._taken = True
                return True
            called = threading.Event()
            self._waiting.append(called)
        if called.wait(seconds):
            return True
        with self._lock:
            if called.is_set():  # in the last moment
                return True
            self._waiting.remove(called)
            return False

    def _leave(self) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._taken = False
