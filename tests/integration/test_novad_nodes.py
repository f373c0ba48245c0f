"""Two nodes as namespaces of the network, with a novad, podman and TLS each: they find each other by mDNS."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator

import pytest

from tests.certificates import authority
from tests.integration import novad_node
from tests.integration.novad_node import Node, Registry, wait_for
from tests.integration.port_relay import PortRelay

pytestmark = [pytest.mark.root, pytest.mark.skipif(
    bool(novad_node.missing()) or shutil.which("nsenter") is None, reason=novad_node.missing() or "no nsenter")]

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
_SECRET = "known to both"


def sh(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, timeout=30)


@contextlib.contextmanager
def _bridge(addresses: dict[str, str]) -> Iterator[None]:
    """Namespaces by name, with one address each, on a bridge of their own."""
    bridge = f"nvb{os.getpid()}"
    sh("ip", "link", "add", bridge, "type", "bridge")
    try:
        sh("ip", "link", "set", bridge, "up")
        for number, (name, address) in enumerate(addresses.items()):
            port = f"{bridge}-{number}"
            sh("ip", "netns", "add", name)
            sh("ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", name)
            sh("ip", "link", "set", port, "master", bridge, "up")
            sh("ip", "-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
            sh("ip", "-n", name, "link", "set", "eth0", "up")
            sh("ip", "-n", name, "link", "set", "lo", "up")
        yield
    finally:
        for name in addresses:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
        sh("ip", "link", "del", bridge)


class Pair:
    def __init__(self, control: Node, compute: Node) -> None:
        self.control, self.compute = control, compute

    def states(self) -> dict[tuple[str, str], str]:
        """{(node, component): version} of what runs."""
        return {(one["Node"], one["Component"]): one["Image"].rpartition(":")[2]
                for one in json.loads(self.control.nova("platform-info", "-f", "json").stdout)
                if one["State"] == "running"}

    def log(self) -> str:
        return self.control.log() + self.compute.log()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    directory = tmp_path_factory.mktemp("nodes")
    (directory / "secret").write_text(_SECRET)
    pid = os.getpid()
    addresses = {f"nvn{pid}b": "10.213.7.2", f"nvn{pid}a": "10.213.7.1"}  # the control node is stopped first
    with contextlib.ExitStack() as stack:
        ca = stack.enter_context(authority())
        registry = Registry(directory)
        stack.callback(registry.stop)
        for version in "12":
            registry.push("toy", version)
        stack.enter_context(_bridge(addresses))
        made = []
        for (space, address), name, options in zip(addresses.items(), ("compute", "control"), (
                'roles = ["compute"]\n', 'roles = ["control"]\ndiscover_nodes = true\n'), strict=True):
            stack.callback(PortRelay(space, "127.0.0.1", int(registry.host.rpartition(":")[2])).close)
            pair = ca.issue(name, [address])
            node = Node(
                directory / name, _PLATFORM.format(name=f"t{pid}", host=registry.host) if name == "control" else "",
                address=f"tls://{address}:18080",
                options=f'{options}node = "{name}"\nsecret_file = "{directory}/secret"\n'
                f'tls_cert = "{pair.certificate}"\ntls_key = "{pair.key}"\nclient_ca = "{ca.file}"\n',
                inside=("nsenter", f"--net=/run/netns/{space}"), variables={
                    "NOVA_SHARED_SECRET": _SECRET, "NOVA_CACERT": ca.file, "NOVA_CERT": pair.certificate,
                    "NOVA_KEY": pair.key})
            stack.callback(node.stop)
            node.start()
            made.insert(0, node)
        yield Pair(*made)


def ready(pair: Pair) -> bool:
    listed = pair.control.nova("nodes", "list", "-f", "json", check=False)
    return listed.returncode == 0 and {one["Node"]: one["State"] for one in json.loads(listed.stdout)} == {
        "control": "this one", "compute": "ready"}


def test_the_control_node_finds_the_other_and_brings_its_role_there(pair: Pair) -> None:
    wait_for(lambda: ready(pair), "the other node", pair.log)
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
def test_whoever_is_killed_in_the_middle_both_end_as_they_were(pair: Pair, victim: str, moment: str) -> None:
    wait_for(lambda: ready(pair), "the other node", pair.log)
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

    wait_for(settled, "the former versions", pair.log)
    # the one before may have been started again on its data, the other one has left nothing
    assert {*pair.control.written("db"), *pair.compute.written("agent")} == {"1"}


def test_an_upgrade_and_the_way_back_are_those_of_both(pair: Pair) -> None:
    wait_for(lambda: ready(pair), "the other node", pair.log)
    pair.control.nova("deploy")
    pair.control.nova("deploy", "db=2", "agent=2")
    assert pair.states() == {("control", "db"): "2", ("compute", "agent"): "2"}
    pair.control.nova("rollback")
    assert pair.states() == {("control", "db"): "1", ("compute", "agent"): "1"}
    assert "2" not in pair.control.written("db") + pair.compute.written("agent")
    pair.control.nova("remove", "--yes")
    assert pair.states() == {}
