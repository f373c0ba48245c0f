"""A thread that does something again and again."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable

LOG = logging.getLogger(__name__)

# The shortest pause, as a part of the interval.
_SOONEST = 0.9


class Periodic:
    """Calls ``function`` every ``interval`` seconds until stopped; an error is logged, never fatal.

    Sooner, if it returns a number: after so many seconds.
    Now and then a little sooner: what thousands of hosts do at the same moment, they shall not do so for ever.
    """

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
            pause = self._interval
            try:
                soon = self._function()
                if isinstance(soon, float):
                    pause = min(pause, soon)
            except Exception as error:
                LOG.warning("%s failed and will be tried again: %s", self._thread.name, error,
                            exc_info=LOG.isEnabledFor(logging.DEBUG))
            self._wake.wait(pause * random.uniform(_SOONEST, 1.0))  # noqa: S311
            self._wake.clear()
