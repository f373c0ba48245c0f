"""A node with its own novad, podman and registry, on loopback and below one directory."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence

from nova.novad.runtime import service
from nova.novad.runtime.service import PodmanService
from tests.polling import poll

NEEDED = ("docker-registry", "busybox", "runc")  # in addition to the programs that novad requires
# Prints its version and appends it to its data; the version "broken" exits at once.
_PROGRAM = """\
echo "version {version} starts"
/bin/busybox echo {version} >> /data/written
{end}
while true; do /bin/busybox echo alive; /bin/busybox sleep 1; done
"""
_CONF = """\
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
[containers]
default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]
"""


def missing() -> str:
    """Return the reason why this machine cannot run such a node, or ""."""
    if os.geteuid() != 0:
        return "needs root"
    absent = dict.fromkeys([*service.missing(), *(name for name in NEEDED if shutil.which(name) is None)])
    return ", ".join(f"no {name}" for name in absent)


def free_port() -> int:
    with contextlib.closing(socket.socket()) as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Registry:
    """A registry. ``push(name, version)`` builds and pushes an image of a program. ``tls``: certificate and key
    file."""

    def __init__(self, directory: pathlib.Path, tls: tuple[str, str] | None = None) -> None:
        self.directory = directory
        self.run = pathlib.Path(tempfile.mkdtemp(prefix="novad-", dir="/run"))  # podman needs a short path
        self.host = f"127.0.0.1:{free_port()}"
        secured = f", tls: {{certificate: {tls[0]}, key: {tls[1]}}}" if tls else ""
        (directory / "registry.yml").write_text(
            f"version: 0.1\nstorage: {{filesystem: {{rootdirectory: {directory}/images}}}}\n"
            f"http: {{addr: '{self.host}'{secured}}}\n"
            "log: {level: error}\n")
        (directory / "containers.conf").write_text(_CONF)
        with open(directory / "registry.log", "ab") as log:
            self.process = subprocess.Popen(["docker-registry", "serve", directory / "registry.yml"], stdout=log,
                                            stderr=log)
        port = int(self.host.rpartition(":")[2])
        wait_for(lambda: socket.socket().connect_ex(("127.0.0.1", port)) == 0, "the registry accepts connections")

    def push(self, name: str, version: str, broken: bool = False, program: str = _PROGRAM,
             declared: str = "") -> None:
        """Build and push an image of the program. ``declared``: further lines of the Dockerfile."""
        place = self.directory / "build"
        place.mkdir(exist_ok=True)
        shutil.copy(shutil.which("busybox") or "", place / "busybox")
        (place / "run").write_text(program.replace("{version}", version).replace("{end}", "exit 3" if broken else ""))
        (place / "Dockerfile").write_text(
            "FROM scratch\nCOPY busybox /bin/busybox\nCOPY run /run.sh\n"
            f'{declared}ENTRYPOINT ["/bin/busybox", "sh", "/run.sh"]\n')
        self.build(place, name, version)

    def build(self, place: pathlib.Path, name: str, version: str) -> None:
        """Build an image from a directory with a Dockerfile."""
        reference = f"{self.host}/{name}:{version}"
        self._podman("build", "-q", "-t", reference, str(place))
        self._podman("push", "-q", "--tls-verify=false", reference)

    def _podman(self, *words: str) -> None:
        subprocess.run(["podman", "--root", str(self.directory / "storage"), "--runroot", str(self.run),
                        *words], check=True, capture_output=True, timeout=120,
                       env={**os.environ, "CONTAINERS_CONF": str(self.directory / "containers.conf")})

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(20)
        unmount(self.directory)
        unmount(self.run)
        shutil.rmtree(self.run, ignore_errors=True)


class Node:
    """A novad. ``kill()`` and ``start()`` act as the machine would; ``nova(...)`` runs commands of the user.

    ``address``: tls://… for a remote node, with ``options`` of its configuration; its commands run with ``inside`` (a
    network namespace) and ``variables``. A node without ``platform`` is controlled by another node.
    """

    def __init__(self, directory: pathlib.Path, platform: str, kind: str = "toml", *, address: str = "",
                 options: str = "", inside: Sequence[str] = (), variables: Mapping[str, str] | None = None) -> None:
        self.directory = directory
        self.data = directory / "data"
        self.address = address or f"tcp://127.0.0.1:{free_port()}"
        self.inside, self.variables = list(inside), dict(variables or {})
        directory.mkdir(exist_ok=True)
        (directory / f"platform.{kind}").write_text(platform)
        (directory / "novad.toml").write_text(
            f'listen = "{self.address.replace("tls:", "tcp:")}"\ndata_dir = "{self.data}"\n'
            f'platform = "{f"{directory}/platform.{kind}" if platform else ""}"\ninterval = 0.5\n{options}')
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with open(self.directory / "novad.log", "ab") as log:
            self.process = subprocess.Popen(
                [*self.inside, sys.executable, "-m", "nova.cmd.novad", "serve", "--config",
                 str(self.directory / "novad.toml")],
                stdout=log, stderr=log)
        wait_for(lambda: self.process is None or self.process.poll() is not None
                 or self.nova("info", check=False).returncode == 0, "novad", self.log)
        assert self.process.poll() is None, self.log()

    def kill(self, number: int = signal.SIGKILL) -> None:
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait(60)
            self.process = None

    def log(self) -> str:
        return (self.directory / "novad.log").read_text()[-3000:]

    def command(self, *words: str) -> list[str]:
        program = "import sys; from nova.cli.main import main; sys.exit(main())"
        return [*self.inside, sys.executable, "-c", program, *words]

    def environment(self) -> dict[str, str]:
        secret = self.data / "shared-secret"
        return {**os.environ, "NOVA_ADDR": self.address,
                "NOVA_SHARED_SECRET": secret.read_text() if secret.exists() else "none", **self.variables}

    def nova(self, *words: str, check: bool = True, timeout: float = 180) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(self.command(*words), capture_output=True, text=True, timeout=timeout, check=False,
                              env=self.environment())
        assert not check or done.returncode == 0, f"{words}: {done.stdout}\n{done.stderr}\n{self.log()}"
        return done

    def written(self, component: str) -> list[str]:
        """Return the versions that have written to the component's data."""
        return (self.data / "volumes" / component / "state" / "written").read_text().split()

    def podman(self, *words: str) -> str:
        """Run podman with novad's storage."""
        place, run = self.data / "podman", PodmanService(self.data / "podman").run
        return subprocess.run(
            [*self.inside, "podman", "--root", str(place / "storage"), "--runroot", str(run / "root"), "--tmpdir",
             str(run / "tmp"), "--network-config-dir", str(place / "networks"), *words], check=True,
            capture_output=True, text=True, timeout=60,
            env={**os.environ, "CONTAINERS_CONF": str(place / "containers.conf")}).stdout

    def stop(self) -> None:
        """Stop the node with all its processes."""
        try:
            if self.process is None:
                self.start()
            wait_for(lambda: self.nova("remove", "--yes", check=False).returncode == 0, "all components are removed",
                     self.log)
        finally:
            self.kill(signal.SIGTERM)
            # podman's last cleanups would mount again.
            wait_for(lambda: not runs_in(self.directory), "podman's processes have exited", self.log)
            unmount(self.directory)
            run = PodmanService(self.data / "podman").run
            unmount(run)
            shutil.rmtree(run, ignore_errors=True)


@contextlib.contextmanager
def node(directory: pathlib.Path, platform: str, kind: str = "toml", inside: Sequence[str] = ()) -> Iterator[Node]:
    made = Node(directory, platform, kind, inside=inside)
    try:
        made.start()
        yield made
    finally:
        made.stop()


def runs_in(directory: pathlib.Path) -> list[str]:
    """Return the PIDs of processes with the directory in their command line."""
    found = []
    for place in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"{directory}/".encode() in (place / "cmdline").read_bytes():
                found.append(place.name)
    return found


def unmount(directory: pathlib.Path) -> None:
    """Unmount podman's mounts in the directory, the innermost first."""
    mounted = [line.split()[1] for line in pathlib.Path("/proc/self/mounts").read_text().splitlines()]
    for place in reversed([one for one in mounted if one.startswith(f"{directory}/")]):
        subprocess.run(["umount", "-l", place], check=False, capture_output=True)


def wait_for(condition: Callable[[], bool], what: str, log: Callable[[], str] = lambda: "",
             seconds: float = 60) -> None:
    """Poll ``condition`` until it is true. ``what``: the awaited state, for the failure message."""
    assert poll(condition, seconds), f"not within {seconds:g} s: {what}\n{log()}"
