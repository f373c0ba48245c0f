"""The deadline of a graceful shutdown ([DEFAULT]graceful_shutdown_timeout), shared by all parts of a service."""

import threading
import time
from collections.abc import Callable

from nova.conf import CONF

# Seconds after the deadline in which unfinished work is handed over to other processes; then the process is killed.
GRACE = 10


class Drain:
    """A deadline that starts when the object is made."""

    def __init__(self) -> None:
        self._until = time.monotonic() + float(CONF.graceful_shutdown_timeout)

    def left(self) -> float:
        """Return the seconds until the deadline, or 0 after it."""
        return max(0.0, self._until - time.monotonic())

    def wait(self, end: Callable[[], object]) -> bool:
        """Run ``end`` in a thread and return True if it returned before the deadline."""
        waiting = threading.Thread(target=end, name="drain", daemon=True)
        waiting.start()
        waiting.join(self.left())
        return not waiting.is_alive()
