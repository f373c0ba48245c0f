"""Faults of novad's environment: a frozen podman, corrupt registry content, full disks, occupied ports and hostile
data.
"""

from __future__ import annotations

import contextlib
import http.server
import os
import pathlib
import signal
import socket
import stat
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from nova.novad.deployment import data as data_module
from nova.novad.deployment.data import Data
from nova.novad.errors import Failed
from nova.novad.platform import Volume
from nova.novad.runtime.podman import Podman
from nova.novad.runtime.service import PodmanService
from tests.integration.novad import novad_node
from tests.integration.novad.novad_node import Node, Registry, wait_for
from tests.integration.novad.test_novad import registry, versions  # noqa: F401 (a fixture)
from tests.unit.novad.runtimes import Killed
from tests.unit.novad.test_deploy import Node as FakeNode

pytestmark = [pytest.mark.root, pytest.mark.skipif(bool(novad_node.missing()), reason=novad_node.missing())]

_PLATFORM = """\
name = "{name}"
[components.db]
image = "{host}/toy"
version = "1"
volumes = [{{name = "state", destination = "/data"}}]
health = {{command = ["/bin/busybox", "test", "-s", "/data/written"], interval = 0.5, timeout = 5, start = 20}}
stop_timeout = 1
"""


@contextlib.contextmanager
def running(directory: pathlib.Path, host: str, more: str = "") -> Iterator[Node]:
    name = f"h{os.getpid()}"
    with novad_node.node(directory, _PLATFORM.format(name=name, host=host) + more.replace("HOST", host)) as made:
        made.name = name  # type: ignore[attr-defined]
        yield made


class Liar(http.server.BaseHTTPRequestHandler):
    """A proxy between podman and the registry that falsifies responses. ``how``: the kind of fault; ``what``: the part
    of the path that selects requests."""

    behind = ""
    how, what = "", "/blobs/"

    def do_HEAD(self) -> None:
        self._pass_on("HEAD")

    def do_GET(self) -> None:
        self._pass_on("GET")

    def _pass_on(self, method: str) -> None:
        lies = self.what in self.path and bool(self.how)
        if lies and self.how == "error":
            self.send_error(500)
            return
        try:
            with urllib.request.urlopen(urllib.request.Request(
                    f"http://{self.behind}{self.path}", method=method, headers={
                        "Accept": ", ".join(self.headers.get_all("Accept") or ["*/*"])})) as answer:
                status, headers, body = answer.status, answer.headers, answer.read()
        except urllib.error.HTTPError as error:
            status, headers, body = error.code, error.headers, error.read()
        if lies and body and self.how == "changed":
            body = bytes([body[0] ^ 1, *body[1:]])
        self.send_response(status)
        for name, value in headers.items():
            if name.lower() not in ("transfer-encoding", "connection"):
                self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body[:len(body) // 2] if lies and self.how == "half" else body)
        if lies:
            self.close_connection = True

    def log_message(self, *_args: object) -> None:
        pass


@pytest.fixture
def liar(registry: Registry) -> Iterator[str]:  # noqa: F811
    Liar.behind, Liar.how = registry.host, ""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Liar)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


@pytest.mark.slow
def test_corrupt_registry_content_is_refused(liar: str, tmp_path: pathlib.Path) -> None:
    with running(tmp_path, liar) as node:
        node.nova("deploy")
        for what in ("/blobs/", "/manifests/"):
            for how in ("changed", "half", "error"):
                Liar.how, Liar.what = how, what
                failed = node.nova("deploy", "db=2", check=False)
                assert (failed.returncode, "cannot be fetched" in failed.stderr) == (1, True), (how, failed.stderr)
                assert (versions(node), node.written("db")) == ({"db": "1"}, ["1"])
        Liar.how = ""
        node.nova("deploy", "db=2")
        assert versions(node) == {"db": "2"}


@pytest.mark.slow
def test_deployment_with_an_occupied_port_is_rolled_back(
        registry: Registry, tmp_path: pathlib.Path) -> None:  # noqa: F811
    with socket.create_server(("127.0.0.1", 0)) as taken, running(tmp_path, registry.host, f"""
[components.web]
image = "HOST/toy"
version = "2"
ports = [{{container = 80, node = {taken.getsockname()[1]}}}]
volumes = [{{name = "state", destination = "/data"}}]
stop_timeout = 1
""") as node:
        failed = node.nova("deploy", check=False)
        assert (failed.returncode, "The previous state was restored" in failed.stderr) == (1, True), failed.stderr
        assert "address already in use" in failed.stderr
        assert versions(node) == {}
        taken.close()
        node.nova("deploy")
        assert versions(node) == {"db": "1", "web": "2"}


@pytest.mark.slow
def test_frozen_podman_service_is_reported_and_replaced(registry: Registry,  # noqa: F811
                                                              tmp_path: pathlib.Path) -> None:
    with running(tmp_path, registry.host) as node:
        node.nova("deploy")
        pid = int((PodmanService(node.data / "podman").run / "podman.pid").read_text())
        os.kill(pid, signal.SIGSTOP)
        frozen = node.nova("platform-info", check=False)
        assert (frozen.returncode, "podman" in frozen.stderr) == (4, True), frozen.stderr
        assert "deploy" in node.nova("history").stdout
        wait_for(lambda: node.nova("platform-info", check=False).returncode == 0,
                 "podman's service has been restarted", node.log, 180)
        assert not pathlib.Path(f"/proc/{pid}/stat").exists()
        node.nova("deploy", "db=2")
        assert (versions(node), node.written("db")) == ({"db": "2"}, ["1", "2"])


@pytest.mark.slow
def test_health_checks_leave_no_processes(registry: Registry,  # noqa: F811
                                                         tmp_path: pathlib.Path) -> None:
    """conmon exits two seconds after its command, and a command beyond its timeout is killed."""
    with running(tmp_path, registry.host) as node:
        node.nova("deploy")
        runtime = Podman(str(PodmanService(node.data / "podman").run / "podman.sock"))
        name = f"{node.name}-db"  # type: ignore[attr-defined]
        for number in range(100):
            assert runtime.execute(name, ("/bin/busybox", "echo", str(number)), 10) == (0, f"{number}\n")
        assert runtime.execute(name, ("/bin/busybox", "sleep", "1000"), 0.5)[0] == 124
        code, output = runtime.execute(name, ("/bin/busybox", "yes"), 0.5)
        assert (code, len(output)) == (124, 1 << 16)
        # podman's service, the container's conmon, and two processes for each recent health check
        wait_for(lambda: len(processes(node)) <= 14, "all health check commands have exited",
                 lambda: str(processes(node)))
        inside = node.podman("exec", name, "/bin/busybox", "ps")
        assert "sleep 1000" not in inside
        assert "yes" not in inside


def processes(node: Node) -> list[str]:
    """Return podman's processes on this node."""
    run = str(PodmanService(node.data / "podman").run)
    found = []
    for place in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if run in command or f"{node.data}/podman" in command:
                found.append(command[:60])
    return found


def test_backup_and_restore_do_not_follow_links_in_volumes(tmp_path: pathlib.Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("of others")
    data = Data(tmp_path / "data")
    volume = data.volume("db", "rows")
    volume.mkdir(parents=True)
    (volume / "up").symlink_to(outside)
    (volume / "file").symlink_to(outside / "secret")
    (volume / "circle").symlink_to(volume)
    os.link(outside / "secret", volume / "hard")
    (volume / "one").write_text("same")
    os.link(volume / "one", volume / "two")
    os.mkfifo(volume / "pipe")
    os.mknod(volume / "null", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(volume / "socket"))
    with open(volume / "sparse", "wb") as file:
        file.truncate(1 << 33)
    os.mkdir(os.fsencode(volume) + b"/\xff\n -rf")
    assert data.size("db", VOLUMES) < 1 << 20

    place, size = data.back_up("db", VOLUMES, 1)
    assert size < 1 << 20
    for path in volume.iterdir():
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
    (volume / "up").mkdir()
    (volume / "up/new").write_text("new")
    (volume / "one").symlink_to(outside / "secret")
    data.restore("db", place)
    kinds = {path.name: stat.S_IFMT(path.lstat().st_mode) for path in volume.iterdir()}
    assert (kinds["pipe"], kinds["null"], kinds["socket"], kinds["up"]) == (
        stat.S_IFIFO, stat.S_IFCHR, stat.S_IFSOCK, stat.S_IFLNK)
    assert (volume / "one").samefile(volume / "two")
    assert (volume / "sparse").stat().st_size == 1 << 33
    data.remove("db")
    data.drop_backup(place)
    assert {path.name: path.read_text() for path in outside.iterdir()} == {"secret": "of others"}
    assert list((tmp_path / "data/volumes").iterdir()) == []


VOLUMES = (Volume(name="rows", destination="/rows"),)


@contextlib.contextmanager
def small_disk(path: pathlib.Path, mebibytes: int, *, lazy: bool = True) -> Iterator[pathlib.Path]:
    """Mount a disk of this size. ``lazy``: files may be open at the end."""
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "none", path], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", *(["-l"] if lazy else []), path], check=True)


def test_disk_that_fills_up_during_a_backup_loses_no_data(tmp_path: pathlib.Path,
                                                          monkeypatch: pytest.MonkeyPatch) -> None:
    with small_disk(tmp_path / "small", 24, lazy=False) as small:
        monkeypatch.setattr(data_module, "_MARGIN", 0)
        node = FakeNode(small)
        node.deploy()
        rows = small / "volumes/db/rows/rows"
        rows.write_bytes(os.urandom(6 << 20))
        content = rows.read_bytes()

        def fill(verb: str, name: str) -> None:
            if (verb, name) == ("stop", "suite-db") and not (small / "filler").exists():
                (small / "filler").write_bytes(b"x" * (14 << 20))
        node.runtime.before = fill
        with pytest.raises(Failed, match=r"No space left on device.* The previous state was restored"):
            node.deploy(db="2", conductor="2")
        assert (node.versions(), rows.read_bytes() == content) == ({"db": "1", "conductor": "1", "api": "1"}, True)
        assert list((small / "backups").glob("*/*")) == []
        node.runtime.before = lambda _verb, _name: None
        (small / "filler").unlink()
        assert node.deploy(db="2").state == "done"
        assert rows.read_bytes() == content
        node.deployer.journal.close()


@pytest.mark.parametrize("rest", [0, 1 << 20])
def test_component_that_fills_the_disk_is_rolled_back(tmp_path: pathlib.Path, rest: int,
                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    """Restored data need the space of the new data, and the journal needs space, too."""
    with small_disk(tmp_path / "small", 32) as small:
        monkeypatch.setattr(data_module, "_MARGIN", 0)
        node = FakeNode(small)
        node.runtime.registry["registry/db:sick"] = "sick"
        node.deploy()
        rows = small / "volumes/db/rows/rows"
        rows.write_bytes(os.urandom(6 << 20))
        content = rows.read_bytes()

        def fill(verb: str, name: str) -> None:
            if (verb, name) == ("start", "suite-db") and node.runtime.images[
                    node.runtime.made[name].image][0].endswith(":sick"):
                with contextlib.suppress(OSError), open(small / "volumes/db/rows/junk", "wb", buffering=0) as file:
                    while os.statvfs(small).f_bavail * 4096 > rest:
                        file.write(bytes(4096))
        node.runtime.before = fill
        with pytest.raises(Failed, match=r"The previous state was restored"):
            node.deploy(db="sick")
        assert (node.versions(), rows.read_bytes() == content) == ({"db": "1", "conductor": "1", "api": "1"}, True)
        assert node.deployer.journal.unfinished() == []
        assert node.deploy(db="2").state == "done"
        node.deployer.journal.close()


def test_novad_starts_and_rolls_back_while_the_disk_is_full(tmp_path: pathlib.Path,
                                                            monkeypatch: pytest.MonkeyPatch) -> None:
    """A component fills the disk while novad is stopped in the middle of a deployment."""
    with small_disk(tmp_path / "small", 32) as small:
        monkeypatch.setattr(data_module, "_MARGIN", 0)
        node = FakeNode(small)
        node.deploy()

        def kill(verb: str, name: str) -> None:
            if (verb, name) == ("start", "suite-db"):
                raise Killed
        node.runtime.before = kill
        with pytest.raises(Killed):
            node.deploy(db="2")
        node.deployer.journal.close()
        with contextlib.suppress(OSError), open(small / "volumes/db/rows/junk", "wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        node.start()
        assert [deployment.state for deployment in node.recover()] == ["running"]
        assert (node.versions()["db"], node.deployer.journal.unfinished()) == ("1", [])
        node.deployer.journal.close()


@pytest.mark.parametrize("how", ["mount", "link"])
def test_volume_on_its_own_disk_is_backed_up_and_restored(tmp_path: pathlib.Path, how: str) -> None:
    data = Data(tmp_path / "data")
    volume, disk = data.volume("db", "rows"), tmp_path / "disk"
    disk.mkdir()
    volume.parent.mkdir(parents=True)
    if how == "link":
        volume.symlink_to(disk)
    else:
        volume.mkdir()
        subprocess.run(["mount", "--bind", disk, volume], check=True)
    try:
        (disk / "deep").mkdir()
        (disk / "deep/row").write_text("one")
        place, _size = data.back_up("db", VOLUMES, 1)
        assert (tmp_path / "data" / place / "rows/deep/row").read_text() == "one"
        (volume / "deep/row").write_text("two")
        (volume / "later").symlink_to(tmp_path)
        data.restore("db", place)
        assert [path.name for path in volume.iterdir()] == ["deep"]
        assert ((volume / "deep/row").read_text(), (disk / "deep/row").read_text()) == ("one", "one")
        data.clear("db", "rows")
        assert (list(volume.iterdir()) if volume.exists() else [], list(tmp_path.glob("disk/*"))) == ([], [])
    finally:
        if how == "mount":
            subprocess.run(["umount", volume], check=True)
