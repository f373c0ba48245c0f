"""The parent process of a novad that can be updated: it starts the current release and checks if a new one is healthy.
The check is a process of its own, ``python -m nova.novad.release.launcher SOCKET START STEADY``.

The launcher always belongs to the installed package, whatever release it starts, and loads only the standard library.
Its interface to a release: RESTART, the environment variables below, and the files of the data directory:

    releases/VERSION/      content of the wheels of a release
    releases/current       a link to the running release; without it, or if it is older, the installed package runs
    releases/trial         {"version", "previous"}: the running release is on trial: it was not found healthy yet
    releases/failed        {"version", "why"}: the last release that failed its trial

``trial`` is written before the link is changed, and the link is restored before ``trial`` is removed. A process that is
killed in between leaves a link to one of the two releases.
"""

import contextlib
import ctypes
import json
import logging
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Sequence

from nova import __version__
from nova.common import files

LOG = logging.getLogger(__name__)

RESTART = 75  # Exit code with which novad requests a restart.
# Environment of a novad with a launcher: the socket for health checks, the release, the pid of the launcher.
LAUNCHED, RELEASE, _PARENT = "NOVAD_SOCKET", "NOVAD_RELEASE", "NOVAD_LAUNCHER"
_DATA, _WATCH = "/var/lib/novad", 60.0
_PAUSE = 0.2  # Seconds between two health checks.
_STEADY = 5.0  # Seconds for which a new release is watched once it is healthy.


def number(version: str) -> tuple[int, ...]:
    """Return the numbers of a version, for comparison. Raises ValueError for a text that is not a version."""
    if not re.fullmatch(r"\d{1,6}(\.\d{1,6}){0,3}", version):
        raise ValueError(f"{version!r} is not a version of a release (numbers separated by dots)")
    return tuple(map(int, re.sub(r"(\.0+)+\Z", "", version).split(".")))


def import_path(place: pathlib.Path) -> str:
    """Return the PYTHONPATH of a process that runs the release in a directory."""
    return os.pathsep.join([str(place), *filter(None, [os.environ.get("PYTHONPATH")])])


class Releases:
    def __init__(self, data_dir: str | pathlib.Path) -> None:
        self.place = pathlib.Path(data_dir) / "releases"

    def current(self, installed: str) -> str:
        """Return the version of the release to run, or "" for the installed package, whose version is ``installed``."""
        version = self._linked()
        try:
            return version if number(version) > number(installed) and (self.place / version).is_dir() else ""
        except ValueError:
            return ""

    def begin(self, version: str, previous: str) -> None:
        """Select this release, on trial, for the next start. ``previous``: the current release."""
        self._write("trial", {"version": version, "previous": previous})
        self._link(version)

    def trial(self) -> str:
        """Return the version of the running release if it is on trial, or ""."""
        version = self._read("trial").get("version", "")
        return version if version == self._linked() else ""

    def succeeded(self) -> None:
        """End the trial; keep this release and the previous release, remove all others."""
        retained = {self._linked(), self._read("trial").get("previous", "")}
        self._drop("failed")
        self._drop("trial")
        for place in self.place.iterdir():
            if place.is_dir() and not place.is_symlink() and place.name not in retained:
                shutil.rmtree(place, ignore_errors=True)

    def failed(self, why: str) -> None:
        """Record the failure of the release on trial; select the previous release for the next start."""
        trial = self._read("trial")
        with contextlib.suppress(OSError):  # On a full disk the previous release starts, too.
            self._write("failed", {"version": trial.get("version", ""), "why": why})
        self._link(trial.get("previous", ""))
        self._drop("trial")

    def failure(self) -> tuple[str, str]:
        """Return (version, reason) of the last release that did not become healthy."""
        failed = self._read("failed")
        return failed.get("version", ""), failed.get("why", "")

    def _linked(self) -> str:
        try:
            return os.readlink(self.place / "current")
        except OSError:
            return ""

    def _link(self, version: str) -> None:
        if not version:
            self._drop("current")
            return
        fresh = self.place / ".current.new"
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(version)
        fresh.replace(self.place / "current")
        files.sync_directory(self.place)

    def _read(self, name: str) -> dict[str, str]:
        try:
            content = json.loads((self.place / name).read_text())
        except (OSError, ValueError):
            return {}
        items = content.items() if isinstance(content, dict) else ()
        return {key: value for key, value in items if isinstance(value, str)}

    def _write(self, name: str, what: dict[str, str]) -> None:
        files.replace(self.place / name, json.dumps(what), mode=0o644, sync=True)

    def _drop(self, name: str) -> None:
        (self.place / name).unlink(missing_ok=True)
        if self.place.is_dir():
            files.sync_directory(self.place)


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
    ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
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
            environment["PYTHONPATH"] = import_path(self.releases.place / release)
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
        """Return the reason why a new release is not healthy; "" if it is, or if novad was stopped during the trial."""
        probe = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, str(socket), str(self._watch), str(_STEADY)],
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
                self._child.wait(60.0)
            self._child.kill()
            self._child.wait()
        return RESTART

    def _end(self, number: int, _frame: object) -> None:
        self._ended.set()
        if self._child is not None and self._child.poll() is None:
            self._child.send_signal(signal.SIGTERM)


def watch(socket: str, start: float, steady: float) -> str:
    """Return "" if novad is healthy within ``start`` seconds and stays so for ``steady`` seconds, else the reason."""
    limit, since = time.monotonic() + start, 0.0
    while True:
        why, now = _check(socket), time.monotonic()
        if why and (since or now > limit):
            return why
        since = since or (0.0 if why else now)
        if since and now >= since + steady:
            return ""
        time.sleep(_PAUSE)


def _check(socket: str) -> str:
    import grpc  # Only this process loads it.
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    with grpc.insecure_channel(f"unix:{socket}", [("grpc.enable_http_proxy", 0)]) as channel:
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=5)
        except grpc.RpcError as error:
            return f"no response ({error.code().name.lower()})"
    return "" if answer.status == health_pb2.HealthCheckResponse.SERVING else "novad reports that it is not serving"


if __name__ == "__main__":
    failure = watch(sys.argv[1], float(sys.argv[2]), float(sys.argv[3]))
    print(failure)
    sys.exit(1 if failure else 0)
