"""nova-allinone as a process, with an image to boot from."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import sys
from collections.abc import Iterator, Sequence

from tests.integration import forkserver
from tests.integration.cluster import command_of, environment
from tests.integration.processes import Process, eventually, free_port

_BIN = pathlib.Path(sys.executable).parent
_UUID = re.compile(r"[0-9a-f-]{36}")


@contextlib.contextmanager
def start_allinone(base: pathlib.Path, options: str,
                   inside: Sequence[str] = ()) -> Iterator[tuple[Process, str, str]]:
    """Start nova-allinone and yield process, API URL and image id. ``options`` are further sections of nova.conf,
    ``inside`` a command that runs it in other namespaces."""
    port = free_port()
    config = base / "nova.conf"
    config.write_text(f"[DEFAULT]\nstate_path = {base}/state\n[api]\nport = {port}\n{options}")
    (base / "image").write_bytes(bytes(1 << 20))
    image = forkserver.run([*command_of("manage"), "--config-file", str(config), "image", "import", str(base / "image"),
                            "--name", "blank", "--disk-format", "raw"], environment(), 60)
    assert image.returncode == 0, image.stderr
    process = Process("nova-allinone", [*inside, str(_BIN / "nova-allinone"), "--config-file", str(config)],
                      base / "nova.log", env={"HOME": str(base), "PATH": os.defpath})
    process.start()
    try:
        eventually(lambda: "Nova is at" in process.tail(), 60, "nova-allinone has printed its address")
        yield process, f"http://127.0.0.1:{port}", _UUID.findall(image.stdout)[0]
        process.stop()
    finally:
        process.kill()
