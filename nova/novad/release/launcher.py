"""The parent process of a novad that can be updated: it starts the current release and checks if a new one is healthy.

The launcher always belongs to the installed package, whatever release it starts, and loads only the standard library.
Its interface to a release: RESTART, the environment variables below, and :mod:`nova.novad.release.releases`.
"""

import contextlib
import ctypes
import logging
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import tomllib
from collections.abc import Sequence

from nova import __version__
from nova.novad.release.releases import Releases, import_path

LOG = logging.getLogger(__name__)

RESTART = 75  # Exit code with which novad requests a restart.
# Environment of a novad with a launcher: the socket for health checks, the release, the pid of the launcher.
LAUNCHED, RELEASE, _PARENT = "NOVAD_SOCKET", "NOVAD_RELEASE", "NOVAD_LAUNCHER"
_DATA, _WATCH = "/var/lib/novad", 60.0
_STEADY = 5.0  # Seconds for which a new release is watched once it is healthy.
_END = 60.0  # Seconds that novad has to exit.
_DEATH_SIGNAL = 1  # Constant of prctl(2).


def wanted(config: str | pathlib.Path) -> bool:
    """Return True if this novad can be updated. Errors in the configuration are reported when novad reads all of it."""
    return LAUNCHED not in os.environ and bool(_configured(config).get("update_url"))


def _configured(config: str | pathlib.Path) -> dict[str, object]:
    try:
        return tomllib.loads(pathlib.Path(config).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def die_with_parent() -> None:
    """Let the kernel kill this novad with its launcher, which alone restarts it."""
    ctypes.CDLL(None, use_errno=True).prctl(_DEATH_SIGNAL, signal.SIGKILL)
    if os.environ.get(_PARENT) != str(os.getppid()):
        raise SystemExit("novad: the launcher has exited")


class Launcher:
    """The launcher. ``words``: the command line of novad. The result is the exit code of novad."""

    def __init__(self, config: str | pathlib.Path, words: Sequence[str]) -> None:
        configured = _configured(config)
        self.releases = Releases(str(configured.get("data_dir", _DATA)))
        watch = configured.get("update_watch", _WATCH)
        self._watch = float(watch) if isinstance(watch, int | float) else _WATCH
        self._words = list(words)
        self._child: subprocess.Popen[bytes] | None = None
        self._ended = threading.Event()

    def run(self) -> int:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._end)
        # The paths of sockets must be short.
        with tempfile.TemporaryDirectory(prefix="novad-", dir="/run" if os.access("/run", os.W_OK) else None,
                                         ignore_cleanup_errors=True) as directory:
            while True:
                code = self._once(pathlib.Path(directory) / "novad.sock")
                if code != RESTART or self._ended.is_set():
                    return code if code >= 0 else 128 - code

    def _once(self, socket: pathlib.Path) -> int:
        release = self.releases.current(__version__)
        trial = release if release and self.releases.trial() == release else ""
        socket.unlink(missing_ok=True)
        command = [sys.executable, "-P", "-m", "nova.cmd.novad", *self._words]
        environment = {**os.environ, LAUNCHED: str(socket), RELEASE: release, _PARENT: str(os.getpid())}
        if release:
            environment["PYTHONPATH"] = import_path(self.releases.directory(release))
        try:
            self._child = subprocess.Popen(command, env=environment)
        except OSError as error:
            if not trial:
                raise
            return self._back(trial, f"it cannot be started: {error}")
        if self._ended.is_set():
            self._child.terminate()
        if trial and (why := self._sick(self._child, socket)):
            return self._back(trial, why)
        if trial and not self._ended.is_set():
            self.releases.succeeded()
            LOG.info("novad %s is healthy: the upgrade is finished", trial)
        return self._child.wait()

    def _sick(self, child: subprocess.Popen[bytes], socket: pathlib.Path) -> str:
        """Return the reason why a new release is not healthy; "" if it is, or if novad was stopped (still on trial)."""
        probe = subprocess.Popen(
            [sys.executable, "-P", "-m", "nova.novad.probe", str(socket), str(self._watch), str(_STEADY)],
            stdout=subprocess.PIPE, text=True)
        try:
            while probe.poll() is None and child.poll() is None and not self._ended.wait(0.1):
                pass
            if self._ended.is_set():
                return ""
            if child.poll() is not None:
                return f"it ended with {child.returncode}"
            words = probe.stdout.read().strip() if probe.stdout else ""
            return "" if probe.returncode == 0 else words or f"its health check exited with {probe.returncode}"
        finally:
            probe.kill()
            probe.wait()

    def _back(self, version: str, why: str) -> int:
        LOG.error("novad %s did not become healthy: %s. Starting the previous release", version, why)
        self.releases.failed(why)
        if self._child is not None and self._child.poll() is None:
            self._child.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(_END)
            self._child.kill()
            self._child.wait()
        return RESTART

    def _end(self, number: int, _frame: object) -> None:
        self._ended.set()
        if self._child is not None and self._child.poll() is None:
            self._child.send_signal(signal.SIGTERM)
