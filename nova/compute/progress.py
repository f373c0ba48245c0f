"""Rate limit for the progress reports of a running step."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

# Seconds between two messages.
_PAUSE = 0.5

Send = Callable[[dict[str, Any], dict[str, Any]], None]


class Progress:
    """Sends at most two reports per second. Each report contains all values; the last one is sent at the end of the
    step."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._lock = threading.Lock()
        self._pending: tuple[dict[str, Any], dict[str, Any]] | None = None
        self._sent_at = float("-inf")

    def note(self, changes: dict[str, Any], values: dict[str, Any]) -> None:
        """Send the values now, or later if no newer values come. Raises the errors of sending."""
        with self._lock:
            self._pending = changes, values
        if time.monotonic() - self._sent_at >= _PAUSE:
            self.end()

    def end(self) -> None:
        """Send the pending values."""
        with self._lock:
            pending, self._pending = self._pending, None
            self._sent_at = time.monotonic() if pending else self._sent_at
        if pending:
            self._send(*pending)
