"""CPU seconds and memory of processes, read from /proc."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import re
import threading
import time
from collections.abc import Iterable, Mapping

_TICKS = os.sysconf("SC_CLK_TCK")
_MIB = 1024.0


@dataclasses.dataclass(frozen=True)
class Proc:
    """An entry of the process table; ``cpu`` in seconds, including exited children."""

    pid: int
    parent: int
    session: int
    cpu: float


def table() -> dict[int, Proc]:
    """Return all processes by pid."""
    processes = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError, ValueError):
                # The process name, in parentheses, may contain any character.
                fields = pathlib.Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
                ticks = sum(int(field) for field in fields[11:15])
                processes[int(entry)] = Proc(int(entry), int(fields[1]), int(fields[3]), ticks / _TICKS)
    return processes


def family(root: int, processes: Mapping[int, Proc]) -> list[Proc]:
    """Return ``root``, the processes of its session, and all descendants."""
    members = {pid for pid, process in processes.items() if pid == root or process.session == root}
    grown = True
    while grown:
        more = {pid for pid, process in processes.items() if process.parent in members} - members
        members |= more
        grown = bool(more)
    return [processes[pid] for pid in sorted(members)]


def used(roots: Mapping[str, Iterable[int]]) -> dict[str, float]:
    """Return the CPU seconds used so far by each group of process families; ``client``: this process."""
    processes = table()
    seconds = {name: sum(process.cpu for root in pids for process in family(root, processes))
               for name, pids in roots.items()}
    seconds["client"] = time.process_time()
    return seconds


def machine() -> tuple[float, float]:
    """Return (busy, stolen) seconds of all CPUs since boot."""
    fields = [int(field) / _TICKS for field in pathlib.Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    user, nice, system, _idle, _wait, irq, softirq, steal = fields
    return user + nice + system + irq + softirq, steal


def calibration_loop() -> float:
    """Run a fixed amount of work and return its CPU milliseconds: a measure of the current speed of the machine.

    The speed of a virtual machine may vary by a factor of two; results at different speeds are not comparable.
    """
    began = time.thread_time()
    for _ in range(4):
        rows = [{"id": f"row-{number}", "number": number, "list": [number] * 5} for number in range(100)]
        json.loads(json.dumps(rows))
    return 1000 * (time.thread_time() - began)


class Calibration:
    """A context manager that runs the calibration loop ten times a second; ``ms`` is the mean afterwards."""

    def __enter__(self) -> Calibration:
        self._times = [calibration_loop()]
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="calibration", daemon=True)
        self._thread.start()
        return self

    def _run(self) -> None:
        while not self._stop.wait(0.1):
            self._times.append(calibration_loop())

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self.ms = sum(self._times) / len(self._times)


class Meter:
    """A meter of the CPU seconds between :meth:`start` and :meth:`stop`."""

    def __init__(self, roots: Mapping[str, Iterable[int]]) -> None:
        self._roots = roots
        self.start()

    def start(self) -> None:
        self._before, self._busy, self._began = used(self._roots), machine(), time.monotonic()

    def stop(self) -> Used:
        after, busy, seconds = used(self._roots), machine(), time.monotonic() - self._began
        by_process = {name: after[name] - self._before[name] for name in after}
        others = busy[0] - self._busy[0] - sum(by_process.values())
        return Used(seconds, by_process, max(0.0, others), busy[1] - self._busy[1])


@dataclasses.dataclass(frozen=True)
class Used:
    """CPU seconds by process within ``seconds``; ``others``: of processes that do not belong to the benchmark."""

    seconds: float
    by_process: dict[str, float]
    others: float
    stolen: float

    def ms_by_process(self, count: int) -> dict[str, float]:
        """Return the CPU milliseconds per operation by process, without the client."""
        return {name: round(1000 * seconds / max(count, 1), 2) for name, seconds in self.by_process.items()
                if name != "client"}

    def ms_per(self, count: int) -> float:
        """Return the CPU milliseconds per operation of all processes except the client."""
        return sum(self.ms_by_process(count).values())

    def disturbance(self) -> dict[str, float]:
        """Return the cores used by the client and by foreign processes, which limit the accuracy of the results."""
        return {"client_cores": round(self.by_process["client"] / self.seconds, 3),
                "foreign_cores": round(self.others / self.seconds, 3),
                "stolen_cores": round(self.stolen / self.seconds, 3)}


# --- memory ----------------------------------------------------------------------------------------------
def memory(root: int) -> dict[str, float]:
    """Return the memory of a service in MiB: largest worker (rss, pss), main process, and total (shared pages once)."""
    processes = family(root, table())
    sizes = {process.pid: _size(process.pid) for process in processes}
    workers = [sizes[process.pid] for process in processes if process.pid != root] or [sizes[root]]
    rss, pss = max(workers)
    return {"worker_rss": rss, "worker_pss": pss, "main_rss": sizes[root][0], "workers": len(workers),
            "all_pss": round(sum(pss for _rss, pss in sizes.values()), 1)}


def workers(root: int) -> dict[int, float]:
    """Return the resident memory (MiB) of each worker of a service by pid; without workers, of the service itself."""
    pids = [process.pid for process in family(root, table()) if process.pid != root] or [root]
    return {pid: _size(pid)[0] for pid in pids}


def _size(pid: int) -> tuple[float, float]:
    with contextlib.suppress(OSError):
        rollup = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text()
        rss, pss = (re.search(rf"^{name}:\s+(\d+) kB", rollup, re.MULTILINE) for name in ("Rss", "Pss"))
        if rss and pss:
            return round(int(rss[1]) / _MIB, 1), round(int(pss[1]) / _MIB, 1)
    return 0.0, 0.0
