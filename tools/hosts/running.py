"""What is on as long as its first process lives."""

from __future__ import annotations

import os
import pathlib
import signal
import time
from collections.abc import Callable

from tools.hosts import kernel

# Seconds until what was killed, stopped or unplugged must be so.
_LIMIT = 20.0


class HostError(Exception):
    """A host or its switch is not as it should be; the message says which and why."""


class Running:
    """``directory/running`` names the first process while it is usable."""

    directory: pathlib.Path

    @property
    def pid(self) -> int | None:
        """The first process as seen from outside; None: it is off, or not usable yet."""
        try:
            number, start = (self.directory / "running").read_text().split()
        except (OSError, ValueError):
            return None
        return int(number) if kernel.started(int(number)) == start else None

    @property
    def netns(self) -> str:
        """Its network namespace. Raises HostError when it is off."""
        pid = self.pid
        if pid is None:
            raise HostError(f"{self.directory} is off")
        return f"/proc/{pid}/ns/net"

    def remember(self, pid: int) -> None:
        new = self.directory / "running.new"
        new.write_text(f"{pid} {kernel.started(pid)}")
        new.rename(self.directory / "running")

    def forget(self) -> None:
        (self.directory / "running").unlink(missing_ok=True)

    def kill(self) -> None:
        """SIGKILL the first process, and wait until all is over."""
        pid = self.pid
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
            eventually(lambda: not kernel.started(pid), f"{self.directory} does not go off")
        self.forget()


def eventually(check: Callable[[], bool], trouble: str) -> None:
    """Raises HostError with ``trouble`` when ``check`` is never true."""
    deadline = time.monotonic() + _LIMIT
    while not check():
        if time.monotonic() > deadline:
            raise HostError(trouble)
        time.sleep(0.02)
