"""Base of hosts and switches, which are on while their first process lives."""

from __future__ import annotations

import os
import pathlib
import signal
import time
from collections.abc import Callable

from tools.hosts import kernel

# Seconds within which a kill, stop or unplug must take effect.
_LIMIT = 20.0


class HostError(Exception):
    """An unexpected state of a host or switch; the message names the host and the reason."""


class Running:
    """A host or switch; ``directory/running`` has the id of the first process while it is usable."""

    directory: pathlib.Path

    @property
    def pid(self) -> int | None:
        """Return the id of the first process in the outer pid namespace, or None if off or not yet usable."""
        try:
            number, start = (self.directory / "running").read_text().split()
        except (OSError, ValueError):
            return None
        return int(number) if kernel.started(int(number)) == start else None

    @property
    def netns(self) -> str:
        """Return the path of the network namespace. Raises HostError if off."""
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
        """Kill the first process (SIGKILL), and wait for its end."""
        pid = self.pid
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
            eventually(lambda: not kernel.started(pid), f"{self.directory} does not switch off")
        self.forget()


def eventually(check: Callable[[], bool], error: str) -> None:
    """Wait until ``check`` returns True. Raises HostError with ``error`` after _LIMIT seconds."""
    deadline = time.monotonic() + _LIMIT
    while not check():
        if time.monotonic() > deadline:
            raise HostError(error)
        time.sleep(0.02)
