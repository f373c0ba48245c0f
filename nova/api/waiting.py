"""Requests whose answer waits for something to come true elsewhere. Each holds a thread of its worker meanwhile.

Whoever is waited for may be a program of a tenant, or away: half of the threads stay for requests that do not wait, and
half of the others for other projects.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from nova import exception
from nova.api.request import Request
from nova.conf import CONF

LOG = logging.getLogger(__name__)

T = TypeVar("T")

# Polls in a row that may fail. The operation was accepted: a 503 would have clients request it once more.
_FAILURES = 3


class _Places:
    """The threads of this process in which something is waited for, by project."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken: collections.Counter[str] = collections.Counter()

    @contextlib.contextmanager
    def one(self, project: str) -> Iterator[bool]:
        """Whether there is one left for this project."""
        with self._lock:
            most = max(1, CONF.api.threads // 2)
            there = self._taken.total() < most and self._taken[project] < max(1, most // 2)
            self._taken[project] += there
        try:
            yield there
        finally:
            with self._lock:
                self._taken[project] -= there
                self._taken += collections.Counter()  # those that have none are forgotten


_PLACES = _Places()


def until(req: Request, look: Callable[[], T | None], seconds: float, pause: float) -> T | None:
    """Return what ``look()`` returns, once that is true, called every ``pause`` seconds.

    None when so many seconds are over, when conductors cannot be asked, or at once when too many requests wait already.
    """
    failures = 0
    with _PLACES.one(req.ctx.project_id or "") as there:
        end = time.monotonic() + seconds
        while there and time.monotonic() < end and failures < _FAILURES:
            try:
                if found := look():
                    return found
                failures = 0
            except exception.ServiceUnavailable as error:
                failures += 1
                LOG.info("The outcome of an accepted operation is not known: %s", error)
            time.sleep(pause)
    return None
