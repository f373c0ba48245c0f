"""How long a service may take to end: [DEFAULT]graceful_shutdown_timeout, for all that it has begun together."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from nova.conf import CONF

# Seconds after the end of that time in which what is left is handed over; then the process is killed.
GRACE = 10


class Drain:
    """The time from now on."""

    def __init__(self) -> None:
        self._until = time.monotonic() + float(CONF.graceful_shutdown_timeout)

    def left(self) -> float:
        """Seconds; 0 when it is over."""
        return max(0.0, self._until - time.monotonic())

    def wait(self, end: Callable[[], object]) -> bool:
        """Run ``end``, which returns when something has ended; False if that is not so in time."""
        waiting = threading.Thread(target=end, name="drain", daemon=True)
        waiting.start()
        waiting.join(self.left())
        return not waiting.is_alive()
