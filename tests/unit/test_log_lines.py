"""Format of log lines for messages with control characters."""

import subprocess
import sys

PROGRAM = """
import logging
from nova import conf
conf.load([], default_files=[])
log = logging.getLogger("nova.x")
log.warning("Operation failed: %s", "hw_disk_bus=x\\n2026-01-01 00:00:00.000 1 INFO nova.y [-] forged\\x1b[2J\\u2028é")
try:
    raise ValueError("broken\\r\\nforged")
except ValueError:
    log.exception("Step %s failed", "place")
"""


def test_log_messages_with_line_breaks_cannot_forge_log_lines():
    """Messages contain text of users, images and hosts, which must not be able to add lines to the log."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, timeout=60, check=True)
    first, second, *traceback = done.stdout.decode().removesuffix("\n").split("\n")
    assert first.endswith(r"hw_disk_bus=x\n2026-01-01 00:00:00.000 1 INFO nova.y [-] forged\x1b[2J\u2028é")
    assert second.endswith(r"Step place failed: ValueError: broken\r\nforged")
    assert traceback
    assert all(" ERROR nova.x " in line for line in traceback)
