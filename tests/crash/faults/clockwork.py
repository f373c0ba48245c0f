"""Run a Nova program with a separate wall clock.

::

    python -m tests.crash.faults.clockwork DIRECTORY compute --config-file ...

The clock is ahead of the machine's by the seconds in the file ``HOST.clock`` beside the program's last configuration
file (behind if negative); it jumps when the file changes. ``time.monotonic`` is unaffected, as in a real
jump. A test writes the file with :func:`jump`. Everything else is as in :mod:`tests.crash.service`.
"""

from __future__ import annotations

import contextlib
import datetime
import pathlib
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.integration.cluster import Cluster

# Seconds between checks of the file.
_LOOK = 0.1


def launcher(directory: pathlib.Path) -> list[str]:
    """Return a launcher of such processes for a Cluster; ``directory`` must exist and be used by that cluster only."""
    for name in ("wishes", "held"):
        (directory / name).mkdir()
    return [sys.executable, "-m", "tests.crash.faults.clockwork", str(directory)]


def jump(nova: Cluster, name: str, seconds: float) -> None:
    """Set the clock of the process ``name`` ahead by ``seconds``, also after a restart of the process."""
    file = nova.directory / f"{name}.clock"
    written = file.with_suffix(".new")
    written.write_text(str(seconds))
    written.rename(file)


class Clock:
    """The machine's clock plus the offset in the file."""

    def __init__(self, file: pathlib.Path) -> None:
        self._file = file
        self._machine = time.time
        self._ahead = 0.0
        self._looked = 0.0

    def time(self) -> float:
        now = time.monotonic()
        if now - self._looked > _LOOK:
            self._looked = now
            self._ahead = 0.0
            with contextlib.suppress(FileNotFoundError):
                self._ahead = float(self._file.read_text())
        return self._machine() + self._ahead

    def utcnow(self) -> datetime.datetime:
        return datetime.datetime.fromtimestamp(self.time(), datetime.UTC)


def main() -> int:
    clock = Clock(pathlib.Path(sys.argv[-1]).with_suffix(".clock"))
    time.time = clock.time
    # Before other modules import utcnow from there.
    from nova.objects import base

    base.utcnow = clock.utcnow

    from tests.crash import service

    return service.main()


if __name__ == "__main__":
    sys.exit(main())
