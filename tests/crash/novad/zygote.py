"""Starts novads: forked from a process that has imported everything, so that each takes a moment only.

An order is a line of JSON on standard input, {"directory": …, "at": …, "then": …, "from_start": …}; it answers a pid.
"""

from __future__ import annotations

import faulthandler
import json
import os
import pathlib
import signal
import sys
from typing import Any

import nova.cmd.novad
import nova.novad.server
from nova.novad.runtime import podman
from nova.novad.runtime import service as _service  # noqa: F401 (what novad would import)
from tests.crash.novad.points import Points
from tests.crash.novad.runtime import DirectoryRuntime


def serve(directory: pathlib.Path, order: dict[str, Any]) -> int:
    """novad of this node, to its end; its containers are those of the directory."""
    log = os.open(directory / "novad.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    faulthandler.enable()
    os.environ["PATH"] = f"{directory / 'bin'}:{os.environ['PATH']}"
    points = Points(directory / "data", directory / "story", order["at"], order["then"], order["from_start"])
    podman.Podman = lambda *_arguments: DirectoryRuntime(directory / "runtime", points.passed)  # type: ignore
    points.watch()
    return nova.cmd.novad.main(["serve", "--config", str(directory / "novad.toml")])


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them here
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            code = 70
            try:
                os.setsid()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                code = serve(pathlib.Path(order["directory"]), order)
            finally:
                os._exit(code)
        print(pid, flush=True)


if __name__ == "__main__":
    main()
