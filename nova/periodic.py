"""A thread that does something again and again."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

LOG = logging.getLogger(__name__)


class Periodic:
    """Calls ``function`` every ``interval`` seconds until stopped; an error is logged, never fatal."""

    def __init__(self, name: str, interval: float, function: Callable[[], object]) -> None:
        self._interval = interval
        self._function = function
        self._wake = threading.Event()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Do it now rather than later."""
        self._wake.set()

    def cancel(self) -> None:
        """Never again; a call under way goes on."""
        self._stopped.set()
        self._wake.set()

    def stop(self) -> None:
        """Returns when the thread has ended (a call under way finishes first)."""
        self.cancel()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                self._function()
            except Exception as error:
                LOG.warning("%s failed and will be tried again: %s", self._thread.name, error,
                            exc_info=LOG.isEnabledFor(logging.DEBUG))
            self._wake.wait(self._interval)
            self._wake.clear()
