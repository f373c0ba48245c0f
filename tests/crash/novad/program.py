"""novad with a directory as its container runtime, and with points at which a test kills it.

``python -m tests.crash.novad.program '{"directory": …, "at": …, "then": …, "from_start": …}'``
"""

from __future__ import annotations

import faulthandler
import json
import os
import pathlib
import sys

import nova.cmd.novad
from nova.novad.runtime import podman
from tests.crash.novad.points import Points
from tests.crash.novad.runtime import DirectoryRuntime


def main() -> int:
    """Run novad to its end; return its exit code."""
    order = json.loads(sys.argv[1])
    directory = pathlib.Path(order["directory"])
    faulthandler.enable()
    os.environ["PATH"] = f"{directory / 'bin'}:{os.environ['PATH']}"
    points = Points(directory / "data", directory / "story", order["at"], order["then"], order["from_start"])
    podman.Podman = lambda *_arguments: DirectoryRuntime(directory / "runtime", points.passed)  # type: ignore
    points.watch()
    return nova.cmd.novad.main(["serve", "--config", str(directory / "novad.toml")])


if __name__ == "__main__":
    sys.exit(main())
