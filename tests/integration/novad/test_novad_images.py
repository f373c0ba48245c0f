"""Images that do not fit on a small disk, with a real podman and a real registry."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import subprocess
import threading
from collections.abc import Iterator

import pytest

from tests.integration.novad import novad_node
from tests.integration.novad.novad_node import Node, Registry, wait_for
from tests.integration.novad.test_novad import versions

pytestmark = [pytest.mark.root, pytest.mark.skipif(bool(novad_node.missing()), reason=novad_node.missing())]

_DISK = 128 << 20  # size of podman's disk in bytes
_PLATFORM = """\
name = "{name}"
[secrets.key]
[components.db]
image = "{host}/toy"
version = "1"
env = {{KEY = "${{secret:key}}"}}
volumes = [{{name = "state", destination = "/data"}}]
stop_timeout = 1
"""


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    """Start a registry with images of a program, one larger than the disk, and one too large when unpacked."""
    made = Registry(tmp_path_factory.mktemp("registry"))
    try:
        made.push("toy", "1")
        place = made.directory / "build"
        (place / "Dockerfile").write_text("FROM scratch\nCOPY content /content\n")
        for version, content in (("large", os.urandom(_DISK - (50 << 20))), ("bomb", bytes(2 * _DISK))):
            (place / "content").write_bytes(content)
            made.build(place, "toy", version)
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="module")
def node(registry: Registry, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """Start a novad whose podman has its own small disk. Each test restores the node."""
    directory = tmp_path_factory.mktemp("node")
    small = directory / "data/podman"
    small.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={_DISK}", "none", small], check=True)
    try:
        text = _PLATFORM.format(name=f"i{os.getpid()}", host=registry.host)
        with novad_node.node(directory, text) as made:
            made.nova("deploy")
            yield made
    finally:
        subprocess.run(["umount", "-l", small], check=False, capture_output=True)  # if the node did not stop


def free(node: Node) -> int:
    return shutil.disk_usage(node.data / "podman").free


@contextlib.contextmanager
def kept_full(node: Node, filling: pathlib.Path) -> Iterator[None]:
    """Keep podman's disk full, including the space freed by the replaced container."""
    started, done = threading.Event(), threading.Event()

    def fill() -> None:
        with filling.open("ab", buffering=0) as file:
            while not done.is_set():
                with contextlib.suppress(OSError):
                    file.write(bytes(free(node)))
                started.set()
                done.wait(0.002)

    thread = threading.Thread(target=fill)
    thread.start()
    started.wait(20)
    try:
        yield
    finally:
        done.set()
        thread.join()


def test_image_larger_than_the_disk_is_refused_before_the_pull(node: Node) -> None:
    before = free(node)
    failed = node.nova("deploy", "db=large", check=False)
    assert (failed.returncode, "toy:large has layers of 78 MiB, which take more" in failed.stderr) == (1, True), (
        failed.stderr)
    assert abs(free(node) - before) < 1 << 20
    assert versions(node) == {"db": "1"}


def test_pull_is_cancelled_when_the_unpacked_image_fills_the_disk(node: Node) -> None:
    before = free(node)
    failed = node.nova("deploy", "db=bomb", check=False)
    assert (failed.returncode, "the pull was cancelled, since less than 64 MiB" in failed.stderr) == (1, True), (
        failed.stderr)
    wait_for(lambda: abs(free(node) - before) < 1 << 20, "podman has freed the disk space", node.log)
    assert versions(node) == {"db": "1"}
    assert node.written("db") == ["1"]


def test_full_disk_is_reported_when_a_container_cannot_be_created(node: Node) -> None:
    filling = node.data / "podman/filling"
    with kept_full(node, filling):
        failed = node.nova("secrets", "rotate", "key", check=False)
    assert failed.returncode != 0
    assert "no space left on device" in failed.stderr, failed.stderr
    assert f"the disk of {node.data}/podman/storage is full: 0 MiB are free" in failed.stderr, failed.stderr
    filling.unlink()
    wait_for(lambda: versions(node) == {"db": "1"}, "the component is running", node.log)
