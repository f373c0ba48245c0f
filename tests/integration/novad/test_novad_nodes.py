"""Two nodes as network namespaces, each with novad, podman and TLS, which discover each other by mDNS."""

from __future__ import annotations

import json
import os
import pathlib
import re
import signal
import subprocess
from collections.abc import Iterator

import pytest

from tests.integration.novad import novad_pair
from tests.integration.novad.novad_node import Node, Registry, wait_for
from tests.integration.novad.novad_pair import Pair, needs_pair

pytestmark = [pytest.mark.root, needs_pair]

_PLATFORM = """\
name = "{name}"
[secrets.key]
[components.db]
image = "{host}/toy"
version = "1"
roles = ["control"]
env = {{KEY = "${{secret:key}}"}}
volumes = [{{name = "state", destination = "/data"}}]
health = {{command = ["/bin/busybox", "test", "-s", "/data/written"], interval = 0.5, timeout = 5, start = 20}}
stop_timeout = 2
[components.agent]
image = "{host}/toy"
version = "1"
roles = ["compute"]
env = {{KEY = "${{secret:key}}", DB = "${{address:db}}"}}
volumes = [{{name = "state", destination = "/data"}}]
health = {{command = ["/bin/busybox", "test", "-s", "/data/written"], interval = 0.5, timeout = 5, start = 20}}
version_command = ["/bin/busybox", "sh", "-c", "echo $DB"]
stop_timeout = 2
"""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    directory = tmp_path_factory.mktemp("nodes")
    registry = Registry(directory)
    try:
        for version in "12":
            registry.push("toy", version)
        port = int(registry.host.rpartition(":")[2])
        with novad_pair.pair(directory, _PLATFORM.format(name=f"t{os.getpid()}", host=registry.host), options={
                "control": 'roles = ["control"]\ndiscover_nodes = true\n', "compute": 'roles = ["compute"]\n'},
                ports={port: port}) as made:
            wait_for(made.discovered, "the other node is ready", made.log)
            made.control.nova("nodes", "accept", "compute")
            yield made
    finally:
        registry.stop()


def test_control_node_discovers_and_deploys_to_the_accepted_node(pair: Pair) -> None:
    wait_for(pair.ready, "the other node is ready", pair.log)
    seen = json.loads(pair.compute.nova("discover", "-t", "3", "-f", "json").stdout)
    assert {one["Node"]: one["Addresses"] for one in seen} == {
        "control": "tls://10.213.7.1:18080", "compute": "tls://10.213.7.2:18080"}
    out = pair.control.nova("deploy").stdout
    assert re.search(r"compute/agent: runs version 10\.213\.7\.1\n", out)
    assert pair.states() == {("control", "db"): "1", ("compute", "agent"): "1"}
    keys = [pathlib.Path(node.data / "secrets" / "key") for node in (pair.control, pair.compute)]
    assert keys[0].read_text() == keys[1].read_text()
    assert [path.stat().st_mode & 0o777 for path in keys] == [0o600, 0o600]
    assert (pair.control.written("db"), pair.compute.written("agent")) == (["1"], ["1"])


@pytest.mark.parametrize("victim", ["compute", "control"])
@pytest.mark.parametrize("moment", ["compute/agent: starting", *(pytest.param(moment, marks=pytest.mark.slow)
                                                                 for moment in (
    "compute/agent: fetching", "db: starting", "compute/agent: backing up", "compute/agent: waiting"))])
def test_deployment_is_rolled_back_on_both_nodes_after_novad_was_killed(pair: Pair, victim: str, moment: str) -> None:
    wait_for(pair.ready, "the other node is ready", pair.log)
    pair.control.nova("deploy")
    node: Node = getattr(pair, victim)
    with subprocess.Popen(pair.control.command("deploy", "db=2", "agent=2"), stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, text=True, env=pair.control.environment()) as client:
        assert client.stdout is not None
        assert any(moment in line for line in client.stdout)
        node.kill(signal.SIGKILL)
    node.start()

    def settled() -> bool:
        newest = [json.loads(each.nova("history", "-f", "json").stdout)[0] for each in (pair.control, pair.compute)]
        return newest[0]["State"] == "undone" and "not know" not in newest[0]["Nodes"] and newest[1]["State"] in (
            "undone", "done") and pair.states() == {("control", "db"): "1", ("compute", "agent"): "1"}

    wait_for(settled, "the previous versions are running", pair.log)
    # The old version may have been restarted with its data; the new version has left none.
    assert {*pair.control.written("db"), *pair.compute.written("agent")} == {"1"}


def test_upgrade_and_rollback_apply_to_both_nodes(pair: Pair) -> None:
    wait_for(pair.ready, "the other node is ready", pair.log)
    pair.control.nova("deploy")
    pair.control.nova("deploy", "db=2", "agent=2")
    assert pair.states() == {("control", "db"): "2", ("compute", "agent"): "2"}
    pair.control.nova("rollback")
    assert pair.states() == {("control", "db"): "1", ("compute", "agent"): "1"}
    assert "2" not in pair.control.written("db") + pair.compute.written("agent")
    pair.control.nova("remove", "--yes")
    assert pair.states() == {}
