"""Memory and scheduling settings of service processes: garbage collector, C allocator, thread switching."""

import ctypes
import gc
import os
import sys
import threading
import time
from typing import Any

from nova.telemetry import worker_stats

# Parameters of mallopt(): M_MMAP_THRESHOLD, M_TRIM_THRESHOLD and M_ARENA_MAX.
_MMAP_THRESHOLD, _TRIM_THRESHOLD, _ARENA_MAX = -3, -1, -8
_RETURNED_FROM = 256 * 1024  # bytes of free memory from which the allocator returns it to the system

# Growth in bytes after which a process returns free memory to the system (0.1 ms per MiB). A full garbage collection
# stops all threads, so it runs only in an idle process, or after growth by _GROWN_MUCH.
_GROWN = 1024 * 1024
_GROWN_MUCH = 64 * 1024 * 1024
_CHECK_INTERVAL = 2.0  # seconds between two checks of the memory size
_SHARE = 0.01  # maximum fraction of the time that collections and returns of memory take under constant load

# Seconds that a thread may compute while another thread waits (Python's default: 0.005). A request passes between
# threads a dozen times, and waits behind computing threads each time.
_SWITCH_INTERVAL = 0.001

# Thresholds of the garbage collector, whose runs stop all threads. With Python's default of 700 new objects a list of
# a thousand servers spent a third of its time in collections, since all its objects are in use.
_GENERATION_0, _GENERATION_1, _GENERATION_2 = 4_000, 10, 50


def tune_runtime() -> None:
    """Set garbage collector, allocator and thread switching. Call it after all imports, before threads and forks."""
    _limit_free_memory()
    gc.collect()
    gc.freeze()  # exclude imported objects from collections, so that workers keep sharing their memory pages
    gc.set_threshold(_GENERATION_0, _GENERATION_1, _GENERATION_2)
    sys.setswitchinterval(_SWITCH_INTERVAL)


def start_memory_trimming() -> None:
    """Start a thread that returns free memory to the system after the process has grown. Call it in a worker after the
    fork. The thread costs nothing until the process grows, and then at most one percent of the time."""
    threading.Thread(target=_trim_memory, name="process", daemon=True).start()


def _trim_memory() -> None:
    least, pause = worker_stats.resident(), _CHECK_INTERVAL
    while True:
        time.sleep(pause)
        pause = _CHECK_INTERVAL
        now = worker_stats.resident()
        least = min(least, now)
        if now <= least + _GROWN:
            continue
        began = time.thread_time()
        thorough = worker_stats.METER.idle or now > least + _GROWN_MUCH
        if thorough:
            gc.collect()
        if _MALLOC_TRIM is not None:
            _MALLOC_TRIM(0)
        if thorough:
            # Remaining memory may be in use for a moment only: accept it as needed after a few more checks.
            least += max(0, worker_stats.resident() - least) // 4
        pause = max(_CHECK_INTERVAL, (time.thread_time() - began) / _SHARE)


def _glibc_function(name: str) -> Any:
    """Return a function of the C library, or None if the library does not have it."""
    return getattr(ctypes.CDLL(None), name, None)


_MALLOC_TRIM = _glibc_function("malloc_trim")


def _limit_free_memory() -> None:
    """Use one allocation arena (one Python thread runs at a time), and return freed memory to the system early."""
    mallopt = _glibc_function("mallopt")
    if mallopt is not None:
        mallopt(_ARENA_MAX, 1)
        mallopt(_MMAP_THRESHOLD, _RETURNED_FROM)
        mallopt(_TRIM_THRESHOLD, _RETURNED_FROM)


def workers_of(configured: int | None) -> int:
    """Return the number of worker processes: the configured number, or one per CPU and at most 8."""
    return configured or min(os.cpu_count() or 1, 8)
