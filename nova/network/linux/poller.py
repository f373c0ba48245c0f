"""Periodic polls of the conductor for state that is also pushed by messages, since messages may be lost."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable

from nova import exception

LOG = logging.getLogger(__name__)

# Interval of polls in seconds, and delay before a failed poll is retried.
INTERVAL = 300
_RETRY = 5


class Poller:
    """A thread that calls ``poll`` at the start, when woken, and every INTERVAL seconds."""

    def __init__(self, name: str, poll: Callable[[], object]) -> None:
        self._name = name
        self._poll = poll
        self._wake = threading.Event()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread. May be called again."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._wake.set()

    def wake(self) -> None:
        """Poll now."""
        self._wake.set()

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._wake.clear()
            # Jitter, so that hosts do not poll at the same time.
            pause = random.uniform(0.9, 1.1) * INTERVAL  # noqa: S311
            try:
                self._poll()
            except exception.NovaException as error:
                LOG.warning("Polling %s failed, retrying in %d s: %s", self._name, _RETRY, error)
                pause = _RETRY
            except Exception:
                LOG.exception("Polling %s failed, next poll in %.0f s", self._name, pause)
            self._wake.wait(pause)
