"""Two nodes as network namespaces on a private bridge, each with novad, podman and TLS."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import shutil
import subprocess
from collections.abc import Iterator, Mapping

import pytest

from nova.novad.signing import node_secret
from tests.certificates import authority
from tests.integration.novad import novad_node
from tests.integration.novad.novad_node import Node
from tests.integration.port_relay import PortRelay

ADDRESSES = {"compute": "10.213.7.2", "control": "10.213.7.1"}
_SECRET = "known to the control node"
needs_pair = pytest.mark.skipif(bool(novad_node.missing()) or shutil.which("nsenter") is None,
                                reason=novad_node.missing() or "no nsenter")


def _sh(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, timeout=30)


@contextlib.contextmanager
def _bridge(addresses: dict[str, str]) -> Iterator[None]:
    """Create network namespaces by name, with one address each, on a private bridge."""
    bridge = f"nvb{os.getpid()}"
    _sh("ip", "link", "add", bridge, "type", "bridge")
    try:
        _sh("ip", "link", "set", bridge, "up")
        for number, (name, address) in enumerate(addresses.items()):
            port = f"{bridge}-{number}"
            _sh("ip", "netns", "add", name)
            _sh("ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", name)
            _sh("ip", "link", "set", port, "master", bridge, "up")
            _sh("ip", "-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
            _sh("ip", "-n", name, "link", "set", "eth0", "up")
            _sh("ip", "-n", name, "link", "set", "lo", "up")
        yield
    finally:
        for name in addresses:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
        _sh("ip", "link", "del", bridge)


class Pair:
    """A control node with the platform file, and the compute node that it controls. ``spaces``: namespaces by node
    name."""

    def __init__(self, nodes: Mapping[str, Node], spaces: Mapping[str, str]) -> None:
        self.control, self.compute = nodes["control"], nodes["compute"]
        self.spaces = spaces

    def states(self) -> dict[tuple[str, str], str]:
        """Return {(node, component): version} of the running components."""
        return {(one["Node"], one["Component"]): one["Image"].rpartition(":")[2]
                for one in json.loads(self.control.nova("platform-info", "-f", "json").stdout)
                if one["State"] == "running"}

    def listed(self) -> dict[str, str]:
        """Return {node: state} as listed by the control node."""
        listed = self.control.nova("nodes", "list", "-f", "json", check=False)
        return {one["Node"]: one["State"] for one in json.loads(listed.stdout)} if listed.returncode == 0 else {}

    def discovered(self) -> bool:
        return self.listed().get("compute") == "discovered"

    def ready(self) -> bool:
        return self.listed() == {"control": "this one", "compute": "ready"}

    def log(self) -> str:
        return self.control.log() + self.compute.log()


@contextlib.contextmanager
def pair(directory: pathlib.Path, platform: str, kind: str = "toml", *, options: Mapping[str, str],
         ports: Mapping[int, int]) -> Iterator[Pair]:
    """Start both nodes. ``options`` are lines of novad.toml by node; ``ports`` maps ports of 127.0.0.1 inside the nodes
    to ports outside."""
    secrets = {"control": _SECRET, "compute": node_secret(_SECRET, "compute")}
    spaces = {name: f"nvn{os.getpid()}{name[:3]}" for name in ADDRESSES}
    nodes = {}
    with contextlib.ExitStack() as stack:
        ca = stack.enter_context(authority())
        stack.enter_context(_bridge({spaces[name]: address for name, address in ADDRESSES.items()}))
        for name, address in ADDRESSES.items():  # the control node is stopped first
            for inner, outer in ports.items():
                stack.callback(PortRelay(spaces[name], "127.0.0.1", inner, outer).close)
            issued = ca.issue(name, [address])
            (directory / f"{name}.secret").write_text(secrets[name])
            nodes[name] = Node(
                directory / name, platform if name == "control" else "", kind, address=f"tls://{address}:18080",
                options=f'{options[name]}node = "{name}"\nsecret_file = "{directory}/{name}.secret"\n'
                f'tls_cert = "{issued.certificate}"\ntls_key = "{issued.key}"\nclient_ca = "{ca.file}"\n',
                inside=("nsenter", f"--net=/run/netns/{spaces[name]}"), variables={
                    "NOVA_SHARED_SECRET": secrets[name], "NOVA_CACERT": ca.file, "NOVA_CERT": issued.certificate,
                    "NOVA_KEY": issued.key})
            stack.callback(nodes[name].stop)
            nodes[name].start()
        yield Pair(nodes, spaces)
