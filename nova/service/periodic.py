"""A thread that calls a function periodically."""

import contextlib
import logging
import random
import threading
from collections.abc import Callable, Iterator

from nova import exception

LOG = logging.getLogger(__name__)

_MIN_FRACTION = 0.9  # the shortest pause as a fraction of the interval


@contextlib.contextmanager
def continuing(
        log: logging.Logger, message: str, *arguments: object, expected: int = logging.WARNING) -> Iterator[None]:
    """Log an error of the block, so that a periodic task continues with its next item: an item that always fails, such
    as a row written by a newer release, must not delay the others. ``message``: the failed action. ``expected``: log
    level of a NovaException."""
    try:
        yield
    except Exception as error:
        refused = isinstance(error, exception.NovaException)
        log.log(expected if refused else logging.WARNING, f"{message}, retrying later: %s", *arguments,
                str(error) or type(error).__name__, exc_info=not refused and log.isEnabledFor(logging.DEBUG))


class Periodic:
    """A thread that calls ``function`` every ``interval`` seconds until it is stopped. If the function returns a float,
    the next call follows after that many seconds at the latest. Errors are logged, and the next call follows after
    ``retry`` seconds (None: after ``interval``). Pauses are shortened at random by up to a tenth, so that thousands of
    hosts that start together do not stay synchronized."""

    def __init__(self, name: str, interval: float, function: Callable[[], object], retry: float | None = None) -> None:
        self._interval, self._function = interval, function
        self._retry = interval if retry is None else retry
        self._wake = threading.Event()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._wake.clear()  # the first call follows immediately
        self._thread.start()

    def wake(self) -> None:
        """Call the function as soon as possible."""
        self._wake.set()

    def cancel(self) -> None:
        """Prevent further calls without waiting for a running one."""
        self._stopped.set()
        self._wake.set()

    def stop(self) -> None:
        """Prevent further calls and wait until a running one has returned."""
        self.cancel()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopped.is_set():
            pause = self._interval
            try:
                result = self._function()
                if isinstance(result, float):
                    pause = min(pause, result)
            except Exception as error:
                pause = self._retry
                LOG.warning("Periodic task %s failed, retrying in at most %.0f s: %s", self._thread.name, pause, error,
                            exc_info=LOG.isEnabledFor(logging.DEBUG))
            self._wake.wait(pause * random.uniform(_MIN_FRACTION, 1.0))  # noqa: S311
            self._wake.clear()
