"""What keeps a service small and quick, asked of the C library and the garbage collector once, before workers fork."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import threading
import time
from typing import Any

from nova.telemetry import worker_stats

# mallopt's names for: a size from which blocks are returned at once, free memory kept at the top, arenas.
_MMAP_THRESHOLD, _TRIM_THRESHOLD, _ARENA_MAX = -3, -1, -8
_RETURNED_FROM = 256 * 1024

# A process that has grown by so much gives back what is free (0.1 ms per MiB). To look for what is in use by nothing
# but itself stops all its threads, so that waits until there is nothing to do, unless it has grown very much. Seconds
# between two looks.
_GROWN = 1024 * 1024
_GROWN_MUCH = 64 * 1024 * 1024
_LOOK = 2.0

# Seconds that a thread may compute while another waits. A request passes between threads and the network a dozen
# times; with Python's 0.005 it waits as often behind whatever computes.
_TURN = 0.001

# New objects between two looks at the youngest ones, which stop all threads. A list of a thousand servers makes some
# tens of thousands, which are in use: with Python's 700 a third of its time went into looking at them again and again.
_YOUNG = 4_000
# Looks at the middle-aged ones (every tenth) between two looks at all.
_OLD = 50


def settle() -> None:
    """Call when everything is imported and no thread runs yet."""
    _keep_little()
    gc.collect()
    # What is imported stays: it need not be looked at, and workers go on sharing it.
    gc.freeze()
    gc.set_threshold(_YOUNG, 10, _OLD)
    sys.setswitchinterval(_TURN)


def watch() -> None:
    """Give back, after a while, what a long list or a thousand servers of one request have left behind.

    Call in a worker, after the fork. It costs nothing as long as the process does not grow.
    """
    threading.Thread(target=_give_back, name="process", daemon=True).start()


def _give_back() -> None:
    least = worker_stats.resident()
    while True:
        time.sleep(_LOOK)
        now = worker_stats.resident()
        least = min(least, now)
        if now <= least + _GROWN:
            continue
        thorough = worker_stats.METER.idle or now > least + _GROWN_MUCH
        if thorough:
            gc.collect()
        if _MALLOC_TRIM is not None:
            _MALLOC_TRIM(0)
        if thorough:
            # What is left may be in use only for the moment: a few looks more, then it counts as needed.
            least += max(0, worker_stats.resident() - least) // 4


def _of_glibc(name: str) -> Any:
    """A function that other C libraries do not have: None there."""
    return getattr(ctypes.CDLL(None), name, None)


_MALLOC_TRIM = _of_glibc("malloc_trim")


def _keep_little() -> None:
    """Freed memory goes back to the system, rather than to one of many arenas: one thread computes at a time anyway."""
    mallopt = _of_glibc("mallopt")
    if mallopt is not None:
        mallopt(_ARENA_MAX, 1)
        mallopt(_MMAP_THRESHOLD, _RETURNED_FROM)
        mallopt(_TRIM_THRESHOLD, _RETURNED_FROM)


def workers_of(configured: int | None) -> int:
    """The number of worker processes: as configured, else one per CPU, at most 8."""
    return configured or min(os.cpu_count() or 1, 8)
