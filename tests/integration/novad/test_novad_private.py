"""Access of unprivileged accounts on the node to the files of a running novad."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator

import pytest

from nova.novad.runtime.service import PodmanService
from tests.integration.novad import novad_node
from tests.integration.novad.novad_node import Node, Registry

pytestmark = [pytest.mark.root, pytest.mark.skipif(bool(novad_node.missing()), reason=novad_node.missing())]

_NOBODY = 65534
# Component "front" runs as nobody and has a secret in its file; "store" runs as root and is hostile.
_PLATFORM = """\
name = "{name}"
networks = ["inner"]
[secrets.key]
[components.store]
image = "{host}/toy"
version = "1"
networks = ["inner"]
volumes = [{{name = "state", destination = "/data"}}]
health = {{command = ["/bin/busybox", "test", "-u", "/data/root"], interval = 0.5, timeout = 5, start = 20}}
stop_timeout = 1
[components.front]
image = "{host}/toy"
version = "1"
user = "65534"
volumes = [{{name = "state", destination = "/data"}}]
files = {{"/etc/front.conf" = "key = ${{secret:key}}"}}
health = {{command = ["/bin/busybox", "grep", "-q", "key = ........", "/etc/front.conf"], interval = 0.5, timeout = 5, \
start = 20}}
stop_timeout = 1
"""
_PROGRAM = """\
/bin/busybox cp /bin/busybox /data/root && /bin/busybox chmod 6755 /data/root
/bin/busybox echo {version} >> /data/written
while true; do /bin/busybox echo alive; /bin/busybox sleep 1; done
"""
# Prints, as JSON, the paths below the roots that this account can list, read, or connect to.
_WALKER = """
import json, os, stat, sys

def reach(path):
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return
    try:
        if stat.S_ISDIR(mode):
            for name in os.listdir(path):
                if not os.path.islink(os.path.join(path, name)):
                    reach(os.path.join(path, name))
        elif stat.S_ISSOCK(mode):
            if not os.access(path, os.W_OK):  # what connect(2) asks for; the path may be too long for it
                return
        elif stat.S_ISREG(mode):
            if not mode & stat.S_ISUID:
                open(path, "rb").close()
        found.append(path)
    except OSError:
        pass

found = []
for root in sys.argv[1:]:
    reach(root)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def place() -> Iterator[pathlib.Path]:
    """Create a directory that every account of the machine can enter."""
    directory = pathlib.Path(tempfile.mkdtemp(prefix="novad-private-", dir="/var/tmp"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="module")
def node(place: pathlib.Path) -> Iterator[Node]:
    (place / "registry").mkdir()
    registry = Registry(place / "registry")
    try:
        registry.push("toy", "1", program=_PROGRAM)
        (place / "node").mkdir()
        (place / "node/data").mkdir()
        (place / "node/data").chmod(0o755)  # as left by an earlier release or an administrator
        with novad_node.node(place / "node", _PLATFORM.format(name=f"p{os.getpid()}", host=registry.host)) as made:
            made.nova("deploy")
            made.nova("backup", "create")
            yield made
    finally:
        registry.stop()


def reached(uid: int, *roots: pathlib.Path) -> list[str]:
    """Return the paths below the roots that an account can access."""
    done = subprocess.run(["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "/usr/bin/python3", "-c",
                           _WALKER, *map(str, roots)], capture_output=True, text=True, check=True, timeout=60, cwd="/")
    found: list[str] = json.loads(done.stdout)
    return found


def test_other_accounts_cannot_access_files_of_novad(node: Node, place: pathlib.Path) -> None:
    run = PodmanService(node.data / "podman").run
    made: dict[pathlib.Path, os.stat_result] = {}
    for path in (*node.data.rglob("*"), *run.rglob("*")):
        with contextlib.suppress(FileNotFoundError):  # removed by a health check that has ended
            made[path] = path.lstat()
    ours = {path: about for path, about in made.items() if "podman" not in path.parts}
    assert len([path for path, about in ours.items() if about.st_mode & stat.S_ISUID]) >= 2, "no set-uid files"
    assert {path.relative_to(node.data).parts[0] for path, about in ours.items() if about.st_uid == _NOBODY} >= {
        "volumes", "files"}
    sockets = [path for path, about in made.items() if stat.S_ISSOCK(about.st_mode)]
    assert sockets
    (place / "open").mkdir()
    (place / "open/file").write_text("")
    roots = [node.data, run, run.parent, *made]
    print(f"{len(roots)} paths of novad and podman were tried as nobody, {len(sockets)} of them sockets")
    assert reached(_NOBODY, place / "open", *roots) == [f"{place}/open/file", f"{place}/open"]
    assert reached(0, node.data / "volumes/store/state/root")
    assert f"Restricted {node.data} to its owner" in (node.directory / "novad.log").read_text()


def test_other_accounts_cannot_access_podman_files_elsewhere(node: Node) -> None:
    """podman and its helpers use some directories of the node independently of their root."""
    idents = node.podman("ps", "-a", "-q", "--no-trunc").split()
    assert len(idents) == 2
    named = []
    for top in ("/run", "/var/lib/cni", "/var/lib/containers", "/var/tmp", "/tmp", "/dev/shm", "/etc/cni"):
        for directory, names, files in os.walk(top):
            if directory.startswith((str(node.directory), "/run/user")):
                names.clear()
            named += [pathlib.Path(directory, name) for name in (*names, *files)
                      if any(ident in name for ident in idents)]
    print(f"{len(named)} paths elsewhere are named after containers")
    assert named
    assert reached(_NOBODY, *named) == []


def test_novad_mounts_are_nosuid_and_nodev(node: Node) -> None:
    for component, destinations in (("store", {"/data"}), ("front", {"/data", "/etc/front.conf"})):
        table = node.podman("exec", f"p{os.getpid()}-{component}", "/bin/busybox", "cat", "/proc/self/mountinfo")
        options = {line.split()[4]: set(line.split()[5].split(",")) for line in table.splitlines()}
        for destination in destinations:
            assert options[destination] >= {"nosuid", "nodev"}, (component, destination, options[destination])
