"""The threads of a server: they take what they can do, and nothing that nobody waits for any more."""

from __future__ import annotations

import concurrent.futures
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from nova import context
from nova.bus.deadlines import Clocks
from nova.telemetry import metrics

LOG = logging.getLogger(__name__)


class Workers:
    """What oslo.messaging hands each message to (in place of an executor whose queue has no end).

    A message is taken from the broker when a thread is free: until then it is there for others to take. One that is
    older than its sender wants is dropped unread, and not answered; the others can ask how long they have
    (:func:`nova.context.too_late`).
    """

    def __init__(self, max_workers: int) -> None:
        self._pool = concurrent.futures.ThreadPoolExecutor(max_workers, thread_name_prefix="messages")
        self._changed = threading.Condition()
        self._free = max_workers
        self._stopping = False
        self._clocks = Clocks()

    def submit(self, process: Callable[[Any], None], incoming: Sequence[Any]) -> None:
        """Returns when there is a thread for the next one: until then the broker is asked for nothing more."""
        left = self._clocks.left(incoming[0].ctxt)
        until = None if left is None else time.monotonic() + left
        with self._changed:
            self._free -= 1
        try:
            self._pool.submit(self._run, process, incoming, until)
        except RuntimeError:
            self._done()
            raise
        with self._changed:
            self._changed.wait_for(lambda: self._free > 0 or self._stopping)

    def stop_taking(self) -> None:
        """Wait for a free thread no more: what has been taken from the broker is ours."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    def shutdown(self, wait: bool = True) -> None:
        self.stop_taking()
        self._pool.shutdown(wait)

    def _run(self, process: Callable[[Any], None], incoming: Sequence[Any], until: float | None) -> None:
        try:
            if until is not None and time.monotonic() > until:
                message = incoming[0].message
                label = f"{message.get('namespace')}.{message.get('method')}"
                LOG.warning("Dropped %s: its sender no longer waits", label)
                metrics.BUS_DROPPED.inc(label)
                return
            with context.wanted_until(until):
                process(incoming)
        except Exception:
            LOG.exception("A message was lost")
        finally:
            self._done()

    def _done(self) -> None:
        with self._changed:
            self._free += 1
            self._changed.notify()
