"""podman's REST service as a child of novad: where no systemd starts one, and with what this node needs."""

from __future__ import annotations

import os
import pathlib
import resource
import shutil
import subprocess
import time

from nova.novad.errors import RuntimeFault

_START = 30.0  # seconds
_CONF = """\
[engine]
runtime = "{runtime}"
cgroup_manager = "{manager}"
events_logger = "file"
[network]
network_backend = "netavark"
[containers]
log_driver = "k8s-file"
log_size_max = 52428800
# soft and hard are the same: some releases of podman swap them
default_ulimits = ["nofile={files}:{files}", "nproc={processes}:{processes}"]
"""


class PodmanService:
    """``directory``: of its socket, its configuration and, with ``own_storage``, its images and containers."""

    def __init__(self, directory: pathlib.Path, own_storage: bool = True) -> None:
        self.directory = directory
        self.socket = directory / "podman.sock"
        self._own_storage = own_storage
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns when it answers. Raises RuntimeFault."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        conf = self.directory / "containers.conf"
        conf.write_text(_CONF.format(
            runtime="runc" if shutil.which("runc") else "crun",
            manager="systemd" if os.path.isdir("/run/systemd/system") else "cgroupfs",
            files=_limit(resource.RLIMIT_NOFILE, 65536), processes=_limit(resource.RLIMIT_NPROC, 32768)))
        program = shutil.which("podman")
        if program is None:
            raise RuntimeFault("podman is not installed.")
        storage = ["--root", str(self.directory / "storage"), "--runroot", str(self.directory / "run"),
                   "--tmpdir", str(self.directory / "tmp"), "--network-config-dir", str(self.directory / "networks")]
        self.socket.unlink(missing_ok=True)
        with open(self.directory / "podman.log", "ab") as log:
            self._process = subprocess.Popen(
                [program, *(storage if self._own_storage else []), "system", "service", "--time=0",
                 f"unix://{self.socket}"], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                env={**os.environ, "CONTAINERS_CONF": str(conf)})
        end = time.monotonic() + _START
        while not self.socket.exists():
            if self._process.poll() is not None or time.monotonic() > end:
                raise RuntimeFault(f"podman's service does not start; see {self.directory / 'podman.log'}")
            time.sleep(0.05)

    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def stop(self) -> None:
        """Containers go on."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None


def _limit(kind: int, most: int) -> int:
    """What this process may give others, at most ``most``."""
    hard = resource.getrlimit(kind)[1]
    return most if hard == resource.RLIM_INFINITY else min(hard, most)
