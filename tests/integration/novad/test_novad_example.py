"""The shipped etc/novad/platform.toml, with a private registry in place of docker.io."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator

import pytest

from nova.novad import platform
from tests.certificates import authority
from tests.integration.novad import novad_node
from tests.integration.novad.novad_node import Node, Registry
from tests.paths import ROOT

SHIPPED = ROOT / "etc/novad/platform.toml"

pytestmark = [pytest.mark.root, pytest.mark.skipif(bool(novad_node.missing()), reason=novad_node.missing())]


def _busybox(registry: Registry, version: str) -> None:
    """Push Debian's busybox as the image library/busybox of docker.io."""
    place = registry.directory / version
    (place / "bin").mkdir(parents=True)
    (place / "release").write_text(version)
    program = shutil.which("busybox") or ""
    shutil.copy(program, place / "bin/busybox")
    for name in subprocess.run([program, "--list"], capture_output=True, text=True, check=True).stdout.split():
        if name != "busybox":
            (place / "bin" / name).symlink_to("busybox")
    (place / "Dockerfile").write_text('FROM scratch\nCOPY bin /bin\nCOPY release /release\nCMD ["sh"]\n')
    registry.build(place, "library/busybox", version)


@pytest.fixture
def node(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    text = SHIPPED.read_text().replace('name = "example"', f'name = "e{os.getpid()}"')
    port = novad_node.free_port()
    with authority() as ca:
        pair = ca.issue("registry")
        registry = Registry(tmp_path, (pair.certificate, pair.key))
        try:
            for version in ("1.36", "1.37"):
                _busybox(registry, version)
            (tmp_path / "registries.conf").write_text(
                f'[[registry]]\nprefix = "docker.io"\nlocation = "{registry.host}"\n')
            monkeypatch.setenv("CONTAINERS_REGISTRIES_CONF", str(tmp_path / "registries.conf"))
            monkeypatch.setenv("SSL_CERT_FILE", ca.file)
            # with the umask of the systemd unit
            with novad_node.node(tmp_path / "node", text.replace("8000", str(port)), inside=(
                    "sh", "-c", 'umask 077; exec "$@"', "sh")) as made:
                made.port = port  # type: ignore[attr-defined]
                yield made
        finally:
            registry.stop()


def visit(node: Node) -> str:
    port = node.port  # type: ignore[attr-defined]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/visits.sh", timeout=10) as answer:
        return str(answer.read().decode().strip())


def test_shipped_example_is_deployed_upgraded_and_rolled_back(node: Node) -> None:
    assert set(platform.load(SHIPPED).components) == {"store", "page"}
    node.nova("deploy")
    assert [visit(node) for _time in range(2)] == ["Visits: 1", "Visits: 2"]
    node.nova("deploy", "store=1.37")
    assert visit(node) == "Visits: 3"
    node.nova("rollback", "store", "--to", "1")
    assert visit(node) == "Visits: 3"
    name = f"e{os.getpid()}-store"
    assert node.podman("exec", name, "cat", "/release") == "1.36"
    # requests without the key are refused
    refused = node.podman("exec", name, "sh", "-c", "printf 'GET /visits.sh HTTP/1.0\\r\\n\\r\\n' | nc 127.0.0.1 8080")
    assert refused.startswith("HTTP/1.1 403")
    assert visit(node) == "Visits: 4"
