"""The podman REST service as a child process of novad, for nodes where systemd does not start one."""

import contextlib
import hashlib
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import time

from nova.common import files
from nova.common.errors import os_error_text
from nova.novad.errors import RuntimeFault
from nova.novad.runtime.podman_stream import PodmanStream

_START, _END = 30.0, 10.0  # Seconds that the service has to start, and to exit.
# Seconds between two health checks of the service, seconds until a check fails, failed checks until it is restarted.
_PING, _LATE, _SILENT = 10.0, 5.0, 4
_RUN = pathlib.Path("/run/novad")  # A reboot clears it, by which podman detects the reboot; the path must be short.
# podman and the programs that it starts. podman reports some missing programs only when a container starts, without
# their names. Without aardvark-dns, components cannot resolve the names of other components.
_PROGRAMS = ("podman", "runc", "netavark", "aardvark-dns", "catatonit", "iptables")
_INSTEAD = {"runc": "crun"}
_HELPERS = "/usr/local/libexec/podman:/usr/local/lib/podman:/usr/libexec/podman:/usr/lib/podman:/usr/sbin:/sbin"
_CONF = """\
[engine]
runtime = "{runtime}"
cgroup_manager = "{manager}"
events_logger = "file"
# of a command run by the API; by default two processes stay for five minutes after each health check
exit_command_delay = 2
[network]
network_backend = "netavark"
[containers]
log_driver = "k8s-file"
log_size_max = 52428800
# soft and hard are the same: some releases of podman swap them
default_ulimits = ["nofile={files}:{files}", "nproc={processes}:{processes}"]
"""


class PodmanService:
    """The podman service of a node. ``directory``: configuration, images and containers."""

    def __init__(self, directory: pathlib.Path) -> None:
        self.directory = directory
        self.run = _RUN / hashlib.sha256(str(directory.absolute()).encode()).hexdigest()[:8]
        self.socket = self.run / "podman.sock"
        self._pid = self.run / "podman.pid"
        self._process: subprocess.Popen[bytes] | None = None
        self._pinged = 0.0
        self._silent = 0

    def start(self) -> None:
        """Start the service and wait until it responds. Raises RuntimeFault."""
        if absent := missing():
            raise RuntimeFault(f"Programs for containers are not installed: {', '.join(absent)} "
                               "(Debian has packages of these names).")
        try:
            self._start()
        except OSError as error:  # For example, a full disk: novad retries.
            raise RuntimeFault(f"podman's service cannot be started: {os_error_text(error)}") from error
        end = time.monotonic() + _START
        while not self.socket.exists():
            if not self._runs() or time.monotonic() > end:
                self.stop()
                raise RuntimeFault(f"podman's service does not start; see {self.directory / 'podman.log'}")
            time.sleep(0.05)

    def _start(self) -> None:
        for place in (self.directory, self.run.parent, self.run):
            files.private_directory(place, owned=True)
        conf = self.directory / "containers.conf"
        text = _CONF.format(
            runtime="runc" if shutil.which("runc") else "crun",
            manager="systemd" if os.path.isdir("/run/systemd/system") else "cgroupfs",
            files=_limit(resource.RLIMIT_NOFILE, 65536), processes=_limit(resource.RLIMIT_NPROC, 32768))
        if not conf.exists() or conf.read_text() != text:  # A full disk must not prevent a restart of the service.
            conf.write_text(text)
        storage = ["--root", str(self.directory / "storage"), "--runroot", str(self.run / "root"),
                   "--tmpdir", str(self.run / "tmp"), "--network-config-dir", str(self.directory / "networks")]
        with contextlib.suppress(OSError, ValueError):  # The service of a killed novad may still run.
            pid = int(self._pid.read_text())
            if str(self.socket).encode() in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)  # A frozen service would exit later. Containers keep running.
        self.socket.unlink(missing_ok=True)
        with open(self.directory / "podman.log", "ab") as log:
            self._process = subprocess.Popen(
                ["podman", *storage, "system", "service", "--time=0", f"unix://{self.socket}"], start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, "CONTAINERS_CONF": str(conf)})
        self._pid.write_text(str(self._process.pid))
        self._silent, self._pinged = 0, time.monotonic()

    def _runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def alive(self) -> bool:
        """Return True if the service runs and responds. A service without a response for a minute is stopped."""
        if not self._runs():
            return False
        now = time.monotonic()
        if now < self._pinged + _PING:  # Use the result of the previous check.
            return True
        self._pinged = now
        try:
            PodmanStream(str(self.socket), "no response", "GET", "/_ping", timeout=_LATE).free()
            self._silent = 0
        except RuntimeFault:
            self._silent += 1
        if self._silent < _SILENT:
            return True
        self._kill()
        return False

    def stop(self) -> None:
        """Stop the service. Containers keep running."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(_END)
        except subprocess.TimeoutExpired:
            self._kill()
        self._process = None
        self._pid.unlink(missing_ok=True)

    def _kill(self) -> None:
        """Kill the service. A process that hangs in the kernel ends later, and novad does not wait for it."""
        if self._process is not None:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_LATE)


def missing(path: str | None = None) -> list[str]:
    """Return the required programs that are not on ``path`` (default: that of this process and podman's helpers)."""
    path = f"{os.environ.get('PATH', os.defpath)}:{_HELPERS}" if path is None else path
    return [name for name in _PROGRAMS
            if not any(shutil.which(program, path=path) for program in (name, _INSTEAD.get(name, name)))]


def _limit(kind: int, most: int) -> int:
    """Return the limit that this process may set for other processes, at most ``most``."""
    hard = resource.getrlimit(kind)[1]
    return most if hard == resource.RLIM_INFINITY else min(hard, most)
