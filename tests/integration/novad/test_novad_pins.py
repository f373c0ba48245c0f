"""A local registry that serves another image for a tag, as a process that takes over its port could."""

from __future__ import annotations

import json
import os
import pathlib

import pytest

from tests.integration.novad import novad_node
from tests.integration.novad.novad_node import Node, Registry

pytestmark = [pytest.mark.root, pytest.mark.skipif(bool(novad_node.missing()), reason=novad_node.missing())]

_PLATFORM = """\
name = "{name}"
[components.db]
image = "{host}/toy"
volumes = [{{name = "state", destination = "/data"}}]
health = {{command = ["/bin/busybox", "test", "-s", "/data/written"], interval = 0.5, timeout = 5, start = 20}}
stop_timeout = 1
"""


def planned(node: Node) -> dict[str, str]:
    [row] = json.loads(node.nova("plan", "-f", "json").stdout)
    return {key: row[key] for key in ("Action", "Digest")}


def test_changed_image_of_a_tag_is_refused_until_its_digest_is_given(tmp_path: pathlib.Path) -> None:
    registry = Registry(tmp_path)
    try:
        registry.push("toy", "stable")
        with novad_node.node(tmp_path / "node", _PLATFORM.format(name=f"d{os.getpid()}", host=registry.host)) as node:
            node.nova("deploy")
            deployed = json.loads(node.nova("platform-info", "-f", "json").stdout)[0]["Digest"]
            assert planned(node) == {"Action": "keep, unless its image is another", "Digest": deployed}
            registry.push("toy", "stable", program='echo "{version} exchanged"\n' + novad_node._PROGRAM)
            shown = planned(node)
            before, fresh = shown["Digest"].split(" -> ")
            assert (shown["Action"], before) == ("refuse: name the digest", deployed)
            refused = node.nova("deploy", check=False)
            assert (refused.returncode, f"nova deploy db=stable@{fresh}" in refused.stderr) == (1, True), refused.stderr
            node.podman("rm", "-f", f"d{os.getpid()}-db")
            node.nova("restart")
            assert json.loads(node.nova("platform-info", "-f", "json").stdout)[0]["Digest"] == deployed
            node.nova("deploy", f"db=stable@{fresh}")
            assert json.loads(node.nova("platform-info", "-f", "json").stdout)[0]["Digest"] == fresh
            assert "there was nothing to do" in node.nova("deploy").stdout
            node.nova("rollback")
            assert json.loads(node.nova("platform-info", "-f", "json").stdout)[0]["Digest"] == deployed
            assert "is not the image" in node.nova("deploy", check=False).stderr
    finally:
        registry.stop()
