"""What a running step tells of itself, however often a driver says it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

# Seconds between two messages.
_PAUSE = 0.5

Tell = Callable[[dict[str, Any], dict[str, Any]], None]


class Progress:
    """At most two messages a second. Each word says everything anew; the last one is told at the end of its step."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._lock = threading.Lock()
        self._waiting: tuple[dict[str, Any], dict[str, Any]] | None = None
        self._told_at = float("-inf")

    def note(self, changes: dict[str, Any], values: dict[str, Any]) -> None:
        """Tell it now, or when nothing newer comes. Raises what telling does."""
        with self._lock:
            self._waiting = changes, values
        if time.monotonic() - self._told_at >= _PAUSE:
            self.end()

    def end(self) -> None:
        """Tell what waits."""
        with self._lock:
            waiting, self._waiting = self._waiting, None
            self._told_at = time.monotonic() if waiting else self._told_at
        if waiting:
            self._tell(*waiting)
