"""What the worker processes of a service do at present, for its heartbeat.

Every worker writes its own part of memory that all of them share (made before they are forked); the first one reads
it and tells all in its heartbeat, so that it costs no message and no statement.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import resource
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from nova.conf import CONF
from nova.objects.base import utcnow
from nova.objects.service import WorkerStats

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]

# Bytes of the shared memory for one worker.
_PART = 512
# A worker that has not written for so many heartbeats is gone.
_SILENT = 3


class Meter:
    """Counts what this process answers and works on."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._handled = 0
        self._busy = 0
        self._waiting = 0
        # When these were last asked for; 0: when the process began.
        self._since = 0.0
        self._cpu = 0.0

    @contextlib.contextmanager
    def work(self) -> Iterator[None]:
        """A request, a message or a step is worked on in the block."""
        with self._lock:
            self._busy += 1
        try:
            yield
        finally:
            with self._lock:
                self._busy -= 1
                self._handled += 1

    def wait(self, difference: int) -> None:
        """So many more (or fewer) wait for a thread."""
        with self._lock:
            self._waiting += difference

    @property
    def idle(self) -> bool:
        """Whether nothing is being worked on, or waits for that."""
        with self._lock:
            return not self._busy and self._waiting <= 0

    def take(self, worker: int, busy: int | None = None) -> WorkerStats:
        """The statistics since the last time. ``busy`` where somebody else counts that."""
        now, cpu = time.monotonic(), _cpu_seconds()
        with self._lock:
            seconds = max(now - (self._since or _began()), 0.001)
            stats = WorkerStats(
                worker=worker, pid=os.getpid(), at=utcnow(), per_second=round(self._handled / seconds, 1),
                busy=self._busy if busy is None else busy, waiting=max(0, self._waiting),
                cpu_percent=round(100 * (cpu - self._cpu) / seconds, 1), rss_mb=resident() // 2**20)
            self._handled, self._since, self._cpu = 0, now, cpu
        return stats


class WorkerStatistics:
    """The statistics of the workers of one service; make it before they are forked."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._memory = mmap.mmap(-1, workers * _PART)

    def write(self, stats: WorkerStats) -> None:
        text = msgspec.json.encode(stats)
        if stats.worker < self._workers and len(text) <= _PART:
            self._memory[stats.worker * _PART:(stats.worker + 1) * _PART] = text.ljust(_PART)

    def read(self) -> list[WorkerStats]:
        """Of every worker that has written lately, by number."""
        found = []
        for worker in range(self._workers):
            try:
                stats = msgspec.json.decode(self._memory[worker * _PART:(worker + 1) * _PART].strip(b" \0"),
                                            type=WorkerStats)
            except msgspec.DecodeError:
                continue  # it has never written, or is just writing
            if stats.at and (utcnow() - stats.at).total_seconds() < _SILENT * CONF.report_interval:
                found.append(stats)
        return found


_statistics: WorkerStatistics | None = None


def share(workers: int) -> None:
    """From now on the processes that are forked share their statistics; without that each stands for itself."""
    global _statistics
    _statistics = WorkerStatistics(workers)


def report(worker: int, busy: int | None = None) -> list[WorkerStats]:
    """Note this worker's statistics; returns those of all workers of the service."""
    stats = METER.take(worker, busy)
    if _statistics is None:
        return [stats]
    _statistics.write(stats)
    return _statistics.read()


def counted(application: Application) -> Application:
    """The WSGI application, whose requests count as work."""
    def serve(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        with METER.work():
            return application(environ, start_response)

    return serve


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _began() -> float:
    """When this process began, by the monotonic clock."""
    with open("/proc/self/stat") as file:
        ticks = int(file.read().rpartition(")")[2].split()[19])
    return time.monotonic() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK")


def resident() -> int:
    """Bytes of memory that this process has; 0 where the system does not say."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        return 0


METER = Meter()
