"""Running the system's network tools: few processes, each with many commands on its standard input."""

from __future__ import annotations

import logging
import os
import subprocess
from collections.abc import Sequence

from nova import exception

LOG = logging.getLogger(__name__)

# A tool that takes longer than this many seconds hangs.
TIMEOUT = 60
# The environments of services often lack the administrator's directories.
SBIN = ":/usr/local/sbin:/usr/sbin:/sbin"


def run(argv: Sequence[str], text: str | None = None) -> str:
    """Run a command with ``text`` as its input and answer its output. Raises NetworkSetupError."""
    environment = {**os.environ, "LC_ALL": "C", "PATH": os.environ.get("PATH", "/usr/bin:/bin") + SBIN}
    try:
        done = subprocess.run(argv, input=text, capture_output=True, text=True, timeout=TIMEOUT, check=False,
                              env=environment)
    except (OSError, subprocess.TimeoutExpired) as error:
        LOG.error("%s could not run: %s", argv[0], error)
        raise exception.NetworkSetupError(reason=f"{argv[0]} could not run") from error
    if done.returncode != 0:
        LOG.error("%s failed (%d):", " ".join(argv), done.returncode)
        for line in f"{done.stderr.strip()}\n{text or ''}".splitlines():
            LOG.error("%s", line)
        raise exception.NetworkSetupError(reason=f"{argv[0]} failed")
    return done.stdout


def ip(lines: Sequence[str], namespace: str | None = None) -> None:
    """Run iproute2 commands (without the leading "ip") in one process, up to the first that fails."""
    if not lines:
        return
    inside = ["-n", namespace] if namespace else []
    run(["ip", *inside, "-batch", "-"], "\n".join(lines) + "\n")


def bridge(lines: Sequence[str]) -> None:
    """Run commands of iproute2's bridge tool, as :func:`ip` does."""
    if lines:
        run(["bridge", "-batch", "-"], "\n".join(lines) + "\n")


def nft(lines: Sequence[str]) -> None:
    """Apply nftables commands as one transaction: all or none."""
    if lines:
        run(["nft", "-f", "-"], "\n".join(lines) + "\n")
