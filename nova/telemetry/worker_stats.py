"""Statistics of the worker processes of a service, sent with its heartbeat. Each worker writes its statistics to its
section of shared memory, which is created before the workers fork. The first worker sends the statistics of all workers
in its heartbeat, without additional messages or statements."""

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
from nova.objects.hosts.service import WorkerStats

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]

_SECTION = 512  # size in bytes of the section of a worker
_MAX_MISSED = 3  # number of heartbeats without an update after which a worker is left out


class Meter:
    """Counters of the work of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._handled = self._busy = self._waiting = 0
        # Time of the previous call of take(); 0: the start of the process.
        self._since = 0.0
        self._cpu = 0.0

    @contextlib.contextmanager
    def work(self) -> Iterator[None]:
        """Count a request, a message or a step that is handled in the block."""
        with self._lock:
            self._busy += 1
        try:
            yield
        finally:
            with self._lock:
                self._busy -= 1
                self._handled += 1

    def wait(self, difference: int) -> None:
        """Change the number of items that wait for a thread by ``difference``."""
        with self._lock:
            self._waiting += difference

    @property
    def idle(self) -> bool:
        """Return True if this process handles no work and none waits."""
        with self._lock:
            return not self._busy and self._waiting <= 0

    def take(self, worker: int, busy: int | None = None) -> WorkerStats:
        """Return the statistics since the previous call. ``busy`` overrides the number of busy threads."""
        now, cpu = time.monotonic(), time.process_time()
        with self._lock:
            seconds = max(now - (self._since or _started_at()), 0.001)
            stats = WorkerStats(
                worker=worker, pid=os.getpid(), at=utcnow(), per_second=round(self._handled / seconds, 1),
                busy=self._busy if busy is None else busy, waiting=max(0, self._waiting),
                cpu_percent=round(100 * (cpu - self._cpu) / seconds, 1), rss_mb=resident() // 2**20)
            self._handled, self._since, self._cpu = 0, now, cpu
        return stats


class WorkerStatistics:
    """The statistics of all workers of a service, in shared memory. Created before the workers fork."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._memory = mmap.mmap(-1, workers * _SECTION)

    def write(self, stats: WorkerStats) -> None:
        text = msgspec.json.encode(stats)
        if stats.worker < self._workers and len(text) <= _SECTION:
            self._memory[stats.worker * _SECTION:(stats.worker + 1) * _SECTION] = text.ljust(_SECTION)

    def read(self) -> list[WorkerStats]:
        """Return the statistics of all workers with a recent update, in the order of worker numbers."""
        recent = []
        for worker in range(self._workers):
            try:
                stats = msgspec.json.decode(self._memory[worker * _SECTION:(worker + 1) * _SECTION].strip(b" \0"),
                                            type=WorkerStats)
            except msgspec.DecodeError:
                continue  # the section was never written, or is being written
            if stats.at and (utcnow() - stats.at).total_seconds() < _MAX_MISSED * CONF.report_interval:
                recent.append(stats)
        return recent


_statistics: WorkerStatistics | None = None


def share(workers: int) -> None:
    """Share statistics between the processes that fork later. Without this call a process reports only itself."""
    global _statistics
    _statistics = WorkerStatistics(workers)


def report(worker: int, busy: int | None = None) -> list[WorkerStats]:
    """Store the statistics of this worker and return those of all workers of the service."""
    stats = METER.take(worker, busy)
    if _statistics is None:
        return [stats]
    _statistics.write(stats)
    return _statistics.read()


def counted(application: Application) -> Application:
    """Return a WSGI application that counts its requests as work."""
    def serve(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        with METER.work():
            return application(environ, start_response)

    return serve


def _started_at() -> float:
    """Return the start of this process by the monotonic clock."""
    with open("/proc/self/stat") as file:
        ticks = int(file.read().rpartition(")")[2].split()[19])
    return time.monotonic() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK")


def resident() -> int:
    """Return the resident memory of this process in bytes, or 0 if the system does not report it."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        return 0


METER = Meter()
