"""Polling for the outcome of an accepted operation; each waiting request occupies a thread of its worker.

The result may depend on a tenant's guest or on an unavailable service. Therefore at most half of the threads wait, and
at most half of these for the same project."""

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

# Number of failed polls in a row after which the response is sent without the result. The status is not 503:
# clients would repeat the request, although its operation is accepted.
_FAILURES = 3

# Number of waiting threads of this process, by project.
_waiting: collections.Counter[str] = collections.Counter()
_lock = threading.Lock()


@contextlib.contextmanager
def _slot(project: str) -> Iterator[bool]:
    """Occupy a slot inside the context; yield False if none is free for the project."""
    with _lock:
        most = max(1, CONF.api.threads // 2)
        acquired = _waiting.total() < most and _waiting[project] < max(1, most // 2)
        _waiting[project] += acquired
    try:
        yield acquired
    finally:
        with _lock:
            _waiting[project] -= acquired
            if not _waiting[project]:
                del _waiting[project]


def until(req: Request, poll: Callable[[], T | None], seconds: float, pause: float) -> T | None:
    """Call ``poll`` every ``pause`` seconds and return its first true result. Return None after ``seconds``, after 3
    consecutive polls without a conductor, or immediately if no slot is free."""
    failures = 0
    with _slot(req.ctx.project_id or "") as acquired:
        end = time.monotonic() + seconds
        while acquired and time.monotonic() < end and failures < _FAILURES:
            try:
                if result := poll():
                    return result
                failures = 0
            except exception.ServiceUnavailable as error:
                failures += 1
                LOG.info("Cannot poll the result of an accepted operation (its response may not contain it): %s", error)
            time.sleep(pause)
    return None
