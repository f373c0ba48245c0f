"""Child processes that are recorded in a directory, so that a later process can check and stop exactly them."""

import asyncio
import contextlib
import logging
import os
import pathlib
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from nova.common import files

LOG = logging.getLogger(__name__)
_MARK = "NOVA_LOCAL_PROCESS"  # environment variable that identifies processes that were not recorded before a crash
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_TAIL = 2000  # bytes at the end of a log that an error message shows
_LOG_LIMIT = 32 << 20  # bytes of a log; the content of a larger log is moved to NAME.log.1
_children: dict[int, subprocess.Popen[bytes]] = {}  # by process id; an ended child is a zombie until it is waited for


class Record(msgspec.Struct, frozen=True):
    """A process. ``started``: clock ticks from boot to its start. ``pid``, ``started`` and ``boot`` identify it."""

    pid: int
    started: int
    boot: str
    command: tuple[str, ...] = ()
    environment: dict[str, str] = {}


class Usage(msgspec.Struct, frozen=True):
    """Resources that a process has used: CPU time since its start, and memory that is resident now."""

    cpu_seconds: float
    memory_bytes: int


class Processes:
    """The processes of a directory: records in run/, output in log/. Records survive this process.

    ``prefix``: a command that executes its arguments, such as nsenter, which must keep the process id.
    """

    def __init__(self, directory: pathlib.Path, prefix: Sequence[str] = ()) -> None:
        self.directory, self._prefix = directory, tuple(prefix)
        self._run, self._logs = directory / "run", directory / "log"

    def start(self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        """Start a process in its own session, and record it. Raises OSError if the program cannot be executed."""
        for directory in (self._run, self._logs):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        extra = dict(environment or {})
        with self.log(name).open("ab") as output:
            child = subprocess.Popen(
                [*self._prefix, *command], stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, cwd="/",
                start_new_session=True, env={**os.environ, **extra, _MARK: self._mark(name)})
        _children[child.pid] = child
        self._record(name, child.pid, tuple(command), extra)
        LOG.debug("Started %s: process %d", name, child.pid)

    def record_self(self, name: str) -> None:
        """Record this process, so that :meth:`stop` of another process ends it too."""
        self._run.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._record(name, os.getpid(), (), {})

    def forget(self, name: str) -> None:
        files.remove(str(self._run / f"{name}.json"))

    def names(self) -> list[str]:
        """Return the names of recorded processes, alive or not."""
        return sorted(path.stem for path in self._run.glob("*.json"))

    def record(self, name: str) -> Record | None:
        """Return the record of a process that is alive, or None."""
        try:
            record = msgspec.json.decode((self._run / f"{name}.json").read_bytes(), type=Record)
        except (FileNotFoundError, msgspec.MsgspecError):
            return None
        return record if record.boot == _boot_id() and _start_time(record.pid) == record.started else None

    def current(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> bool:
        """Return True if the process is alive and was started with this command and environment."""
        record = self.record(name)
        return record is not None and record.command == tuple(command) and record.environment == dict(environment)

    def signal(self, name: str, number: int) -> bool:
        """Send a signal to a recorded process. Return False if it has ended."""
        record = self.record(name)
        return record is not None and _send(record, number)

    async def stop(self, names: Iterable[str], timeout: float = 10.0, kill: bool = False) -> None:
        """Stop recorded processes, and processes of these names that a crash left unrecorded, by SIGTERM and after
        ``timeout`` seconds by SIGKILL. ``kill``: by SIGKILL immediately. Return when the processes have ended."""
        names = [name for name in names if (record := self.record(name)) is None or record.pid != os.getpid()]
        marks = {self._mark(name) for name in names}
        records = [record for name in names if (record := self.record(name))]
        records += [record for record in _marked(marks) if record.pid not in {other.pid for other in records}]
        for record in records:
            _send(record, signal.SIGKILL if kill else signal.SIGTERM)
            _send(record, signal.SIGCONT)  # a stopped process (SIGSTOP) handles SIGTERM only after SIGCONT
        if not await _ended(records, timeout):
            for record in records:
                if _send(record, signal.SIGKILL):
                    LOG.warning("Sent SIGKILL to process %d of %s: it ignored SIGTERM for %.0f s", record.pid,
                                self.directory, timeout)
            if not await _ended(records, timeout):
                LOG.error("Not waiting any longer for processes of %s that survived SIGKILL: %s", self.directory,
                          [record.pid for record in records])
        for name in names:
            self.forget(name)

    def usage(self, name: str) -> Usage | None:
        """Return the resources of a process, or None if it has ended."""
        record = self.record(name)
        fields = _fields(record.pid) if record else None
        if not fields:
            return None
        return Usage((int(fields[11]) + int(fields[12])) / _TICKS, int(fields[21]) * _PAGE)

    def log(self, name: str) -> pathlib.Path:
        return self._logs / f"{name}.log"

    def log_tail(self, name: str) -> str:
        """Return the last lines of the output of a process."""
        try:
            with self.log(name).open("rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
                return file.read().decode(errors="replace").strip()
        except OSError:
            return ""

    def rotate_logs(self) -> None:
        """Move the content of logs above the limit to NAME.log.1. Processes go on writing to the emptied file."""
        for path in self._logs.glob("*.log"):
            if path.stat().st_size > _LOG_LIMIT:
                shutil.copyfile(path, path.with_suffix(".log.1"))
                os.truncate(path, 0)

    def _record(self, name: str, pid: int, command: tuple[str, ...], environment: dict[str, str]) -> None:
        record = Record(pid, _start_time(pid) or 0, _boot_id(), command, environment)
        files.replace(self._run / f"{name}.json", msgspec.json.encode(record))

    def _mark(self, name: str) -> str:
        return f"{self.directory.resolve()}/{name}"


async def until(condition: Callable[[], bool], timeout: float, interval: float = 0.02) -> bool:
    """Return True as soon as the condition holds, and False if it does not hold within ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() >= deadline:
            return False
        await asyncio.sleep(interval)
    return True


async def _ended(records: Sequence[Record], timeout: float) -> bool:
    return await until(lambda: all(_start_time(record.pid) != record.started for record in records), timeout)


def _send(record: Record, number: int) -> bool:
    """Send a signal to exactly this process, not to a later process with the same id. Return False if it has ended."""
    try:
        descriptor = os.pidfd_open(record.pid)
    except ProcessLookupError:
        return False
    try:
        if _start_time(record.pid) != record.started:
            return False
        signal.pidfd_send_signal(descriptor, number)
        return True
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)


def _fields(pid: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat after the program's name, or None if the process has ended."""
    try:
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    if fields[0] not in "ZX":
        return fields
    if child := _children.pop(pid, None):
        child.wait()
    return None


def _start_time(pid: int) -> int | None:
    fields = _fields(pid)
    return int(fields[19]) if fields else None


def _boot_id() -> str:
    return pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _marked(marks: set[str]) -> list[Record]:
    """Return the processes of this user that were started with one of the marks."""
    records = []
    wanted = {f"{_MARK}={mark}".encode() for mark in marks}
    for directory in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if wanted.intersection((directory / "environ").read_bytes().split(b"\0")):
                pid = int(directory.name)
                if started := _start_time(pid):
                    records.append(Record(pid, started, _boot_id()))
    return records
