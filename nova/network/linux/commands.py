"""Execution of the network tools ip, bridge, nft and tc, with many commands per process on standard input."""

import logging
import os
import subprocess
from collections.abc import Sequence

from nova import exception

LOG = logging.getLogger(__name__)

# Timeout of a tool in seconds.
TIMEOUT = 60
# Appended to PATH, since the environments of services often lack these directories.
SBIN = ":/usr/local/sbin:/usr/sbin:/sbin"


def run(argv: Sequence[str], text: str | None = None) -> str:
    """Run a command with ``text`` as its input and return its output. Raises NetworkSetupError."""
    environment = {**os.environ, "LC_ALL": "C", "PATH": os.environ.get("PATH", "/usr/bin:/bin") + SBIN}
    try:
        done = subprocess.run(argv, input=text, capture_output=True, text=True, timeout=TIMEOUT, check=False,
                              env=environment)
    except (OSError, subprocess.TimeoutExpired) as error:
        LOG.error("Cannot run %s: %s", argv[0], error)
        raise exception.NetworkSetupError(reason=f"cannot run {argv[0]}") from error
    if done.returncode != 0:
        LOG.error("%s failed with status %d, error output and input:", " ".join(argv), done.returncode)
        for line in f"{done.stderr.strip()}\n{text or ''}".splitlines():
            LOG.error("%s", line)
        raise exception.NetworkSetupError(reason=f"{argv[0]} failed; the log of nova-compute contains its output")
    return done.stdout


def ip(lines: Sequence[str]) -> None:
    """Run iproute2 commands (without the leading "ip") in one process, up to the first failure."""
    if lines:
        run(["ip", "-batch", "-"], "\n".join(lines) + "\n")


def bridge(lines: Sequence[str]) -> None:
    """Run commands of iproute2's bridge tool in one process, up to the first failure."""
    if lines:
        run(["bridge", "-batch", "-"], "\n".join(lines) + "\n")


def nft(lines: Sequence[str]) -> None:
    """Apply nftables commands in one transaction."""
    if lines:
        run(["nft", "-f", "-"], "\n".join(lines) + "\n")
