"""Child processes of tests, each in its own session, with output to a file, killed at the end."""

from __future__ import annotations

import contextlib
import os
import pathlib
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import psutil
import pytest

from tests.integration import forkserver
from tests.polling import poll

_TAIL = 6000
# Seconds within which all threads of a process stop, except threads that wait for a disk.
_STOPPED = 5
# Not seeded by hypothesis, which would give two test processes the same ports.
_RANDOM = random.SystemRandom()


class Process:
    """A service that a test starts, kills and restarts. Signals are sent to all its worker processes.

    ``forked``: a Python program that starts as a fork (see tests.integration.forkserver).
    """

    def __init__(self, name: str, command: Sequence[str], log: pathlib.Path, *, env: Mapping[str, str] | None = None,
                 user: str | None = None, forked: bool = False) -> None:
        self.name = name
        self.log = log
        self._command = list(command)
        self._env = dict(env or {})
        self._user = user
        self._forked = forked
        self._process: subprocess.Popen[bytes] | forkserver.Forked | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} was never started"
        return self._process.pid

    def start(self) -> None:
        """Start the process, to be killed when this process ends."""
        assert not self.running(), f"{self.name} runs already"
        if self._forked:
            with self.log.open("ab") as output:
                self._process = forkserver.start(self._command, self._env, output)
            return
        identity: dict[str, Any] = {}
        if self._user:
            identity = {"user": self._user, "group": self._user, "extra_groups": []}
        with self.log.open("ab") as output:
            self._process = forkserver.spawn(self._command, env={**os.environ, **self._env}, stdout=output,
                                             stderr=subprocess.STDOUT, **identity)

    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """Send SIGKILL to the process and its workers."""
        self._signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait(30)

    def freeze(self) -> None:
        """Send SIGSTOP and wait until all threads have stopped."""
        self._signal(signal.SIGSTOP)
        deadline = time.monotonic() + _STOPPED
        while not self._stopped() and time.monotonic() < deadline:
            time.sleep(0.001)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def stop(self, timeout: float = 30.0) -> None:
        """Send SIGTERM to the main process, which stops its workers; SIGKILL to all after ``timeout`` seconds."""
        if self._process is None:
            return
        if self.running():
            self._process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout)
        self.kill()

    def tail(self) -> str:
        """Return the end of the output."""
        if not self.log.exists():
            return ""
        with self.log.open("rb") as file:
            file.seek(max(0, self.log.stat().st_size - _TAIL))
            return file.read().decode(errors="replace")

    def _stopped(self) -> bool:
        """Return True if all threads have stopped: the signal reaches them one after the other."""
        try:
            root = psutil.Process(self.pid)
            processes = [root, *root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return True
        for process in processes:
            for thread in pathlib.Path(f"/proc/{process.pid}/task").glob("*/stat"):
                with contextlib.suppress(OSError):  # the thread has ended
                    if thread.read_text().rpartition(") ")[2][0] not in "TtZX":
                        return False
        return True

    def _signal(self, number: int) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)


def free_port(offsets: Iterable[int] = (0,)) -> int:
    """Return a free TCP port of the loopback interface, for which the ports at these offsets are free, too.

    The ports are outside the range from which the system assigns ports to clients.
    """
    others = list(offsets)
    while True:
        first = _RANDOM.randrange(15000, 32000)
        try:
            for offset in others:
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", first + offset))
        except OSError:
            continue
        return first


def eventually(check: Callable[[], Any], timeout: float, what: str, interval: float = 0.1) -> Any:
    """Return the first true value of ``check``. Fail the test after ``timeout`` seconds with the last value."""
    answer = poll(check, timeout, interval)
    if not answer:
        pytest.fail(f"not within {timeout:g} s: {what} (last answer: {answer!r})", pytrace=True)
    return answer
