"""Asking the conductor once in a while for what messages should have told: messages may be lost."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable

from nova import exception

LOG = logging.getLogger(__name__)

# Seconds between two questions, and until one that was not answered is asked again.
INTERVAL = 300
_AGAIN = 5


class Asker:
    """Calls ``question`` in a thread of its own: at the start, when woken, and every few minutes."""

    def __init__(self, name: str, question: Callable[[], object]) -> None:
        self._name = name
        self._question = question
        self._wake = threading.Event()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Does nothing the second time."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._wake.set()

    def wake(self) -> None:
        """Ask now rather than later."""
        self._wake.set()

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._wake.clear()
            # Not all hosts at the same time.
            pause = random.uniform(0.9, 1.1) * INTERVAL  # noqa: S311
            try:
                self._question()
            except exception.NovaException as error:
                LOG.warning("Asking for %s failed and is tried again: %s", self._name, error)
                pause = _AGAIN
            except Exception:
                LOG.exception("Asking for %s failed", self._name)
            self._wake.wait(pause)
