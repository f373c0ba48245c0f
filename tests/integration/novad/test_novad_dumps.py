"""Backup and restore with a component's dump command, with real containers."""

from __future__ import annotations

import os
import pathlib

import pytest

from tests.integration.novad import novad_node
from tests.integration.novad.novad_node import Registry
from tests.integration.novad.test_novad import registry, versions  # noqa: F401 (a fixture)

pytestmark = [pytest.mark.root, pytest.mark.skipif(bool(novad_node.missing()), reason=novad_node.missing())]

_PLATFORM = """\
name = "{name}"
[components.db]
image = "{host}/toy"
version = "1"
volumes = [{{name = "state", destination = "/data"}}]
health = {{command = ["/bin/busybox", "test", "-s", "/data/written"], interval = 0.5, timeout = 5, start = 20}}
dump = ["/bin/busybox", "tar", "-c", "-C", "/data", "."]
restore = ["/bin/busybox", "tar", "-x", "-C", "/data"]
stop_timeout = 1
"""


def test_running_component_is_dumped_and_restored_with_its_image(
        registry: Registry, tmp_path: pathlib.Path) -> None:  # noqa: F811
    with novad_node.node(tmp_path, _PLATFORM.format(name=f"d{os.getpid()}", host=registry.host)) as node:
        node.nova("deploy")
        large = node.data / "volumes/db/state/large"
        content = os.urandom(20 << 20)
        large.write_bytes(content)
        out = node.nova("backup", "create").stdout
        assert "db: dumping its data" in out
        assert "stopping" not in out
        assert node.written("db") == ["1"]  # the component was not restarted
        dump, = (node.data / "backups/db").glob("*/.dump")
        assert len(content) < dump.stat().st_size < len(content) + (1 << 20)

        node.nova("deploy", "db=2")
        large.unlink()
        node.nova("backup", "restore", "1")
        assert (versions(node), node.written("db")) == ({"db": "1"}, ["1"])
        assert large.read_bytes() == content
