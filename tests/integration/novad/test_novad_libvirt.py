"""The shipped etc/novad/nova-libvirt.yaml with real guests on the libvirt of the node.

The node is a separate host (tools/hosts) with libvirtd, podman and novad. The test changes only what an operator may
change: it has its own platform file, based on the shipped one.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from websockets.sync.client import connect

from nova.network.linux import netns
from tests.integration.hosts.two_hosts import RealHost, needs_hosts, real_hosts
from tests.integration.novad import novad_node
from tests.integration.novad.novad_node import Node
from tests.integration.novad.novad_suite import LONG, START, Images, Suite, build
from tests.integration.port_relay import PortRelay
from tests.integration.processes import eventually
from tests.paths import ROOT

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.timeout(3600), needs_hosts,
              pytest.mark.skipif(bool(novad_node.missing()), reason=novad_node.missing())]

# Guests are emulated, and the host has no external network.
_OWN = """\
base: {repo}/etc/novad/nova-libvirt.yaml
name: {name}
components:
  nova-compute:
    files:
      /etc/nova/test.conf: |
        [DEFAULT]
        reserved_host_memory_mb = 0
        shutdown_timeout = 20
        [libvirt]
        virt_type = qemu
        [network]
        nat = False
"""
_STATE = "/var/lib/nova"


class RealSuite(Suite):
    """The deployment on a host with libvirt."""

    def __init__(self, node: Node, name: str, host: RealHost) -> None:
        super().__init__(node, name, namespace=host.host.netns)
        self.host = host

    def manage(self, *words: str) -> str:
        return self.node.podman("exec", f"{self.name}-nova-conductor", "nova-manage", *words)

    def container(self, component: str) -> str:
        return self.node.podman("inspect", "-f", "{{.Id}}", f"{self.name}-{component}").strip()

    def console(self, server: str) -> str:
        return str(self.ask(lambda cloud: cloud.compute.get_server_console_output(server)["output"]))

    def wait_for_login(self, server: str, name: str, count: int) -> None:
        """Wait for the ``count``th login prompt of the guest, with the host name from nova-metadata."""
        eventually(lambda: self.console(server).count(f"{name} login:") >= count, LONG, f"{name} shows a login prompt",
                   interval=2.0)

    def wait(self, server: str, status: str) -> None:
        self.ask(lambda cloud: cloud.compute.wait_for_server(cloud.compute.get_server(server), status, wait=LONG))

    def guests(self) -> list[int]:
        """Return the PIDs of QEMU processes on the host."""
        return [pid for pid, each in self.host.host.processes().items() if each.startswith("qemu-system")]

    def serves_addresses(self) -> bool:
        """Return True if the container of nova-compute has a dnsmasq."""
        return "dnsmasq" in self.node.podman("exec", f"{self.name}-nova-compute", "ps", "-e", "-o", "comm=").split()


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealSuite]:
    build()
    name = f"l{os.getpid()}"
    with contextlib.ExitStack() as stack:
        images = Images(tmp_path_factory.mktemp("registry"))
        stack.callback(images.stop)
        images.derive("nova-compute", "next", f"{START}# the next release\n")
        host = stack.enter_context(real_hosts(1, own=_STATE)).hosts[0]
        stack.callback(PortRelay(host.host.netns, "127.0.0.1", 5050, int(images.host.rpartition(":")[2])).close)
        node = stack.enter_context(novad_node.node(
            tmp_path_factory.mktemp("node"), _OWN.format(repo=ROOT, name=name), "yaml", host.host.command()))
        print(node.nova("deploy", timeout=LONG).stdout)
        yield RealSuite(node, name, host)


@pytest.fixture(scope="module")
def server(suite: RealSuite, guest_image: pathlib.Path) -> str:
    """Boot a guest once and return its id."""
    suite.manage("network", "create", "--name", "lan", "--cidr", "10.77.0.0/24")

    def boot(cloud: Any) -> str:
        image = cloud.image.create_image(name="guest", disk_format="qcow2", container_format="bare",
                                         data=(guest_image / "nova-guest.qcow2").read_bytes())
        flavor = cloud.compute.create_flavor(name="small", ram=128, vcpus=1, disk=1)
        return str(cloud.compute.create_server(name="real", image_id=image.id, flavor_id=flavor.id,
                                               networks="auto").id)

    server = str(suite.ask(boot))
    suite.wait(server, "ACTIVE")
    suite.wait_for_login(server, "real", 1)
    return server


def test_guest_boots_with_address_and_host_name(suite: RealSuite, server: str) -> None:
    assert len(suite.host.domains()) == len(suite.guests()) == 1
    assert suite.serves_addresses()
    address = suite.ask(lambda cloud: next(iter(cloud.compute.get_server(server).addresses.values()))[0]["addr"])
    assert address.startswith("10.77.0.")
    assert f"hostname=real ip={address}" in suite.console(server)
    assert re.search(r"source=(metadata-service|ec2)\b", suite.console(server))


def test_novnc_proxy_transmits_the_guest_screen(suite: RealSuite, server: str) -> None:
    """QEMU's screen is transmitted through nova-novncproxy to a client on the node."""
    url = suite.ask(lambda cloud: cloud.compute.create_server_remote_console(
        server, protocol="vnc", type="novnc")["url"])
    [token] = re.findall(r"%3D([0-9a-f-]{36})", url)
    greeting = b"RFB 003.008\n\x01\x01"

    def look() -> bytes:
        with connect(f"ws://127.0.0.1:6080/?token={token}", compression=None, proxy=None) as console:
            console.send(greeting + b"\x01")
            heard = b""
            while len(heard) < len(greeting) + 4 + 24:  # up to the screen size in QEMU's ServerInit message
                heard += bytes(console.recv(timeout=60, decode=False))
            return heard

    heard = netns.call(suite.host.host.netns, look)
    assert heard.startswith(greeting)
    width, height = struct.unpack_from(">HH", heard, len(greeting) + 4)
    assert (width, height) >= (640, 400)


def test_guest_stops_and_starts(suite: RealSuite, server: str) -> None:
    suite.ask(lambda cloud: cloud.compute.stop_server(server))
    suite.wait(server, "SHUTOFF")
    assert suite.guests() == []
    suite.ask(lambda cloud: cloud.compute.start_server(server))
    suite.wait(server, "ACTIVE")
    suite.wait_for_login(server, "real", 2)


def test_guest_survives_restart_and_upgrade_of_nova_compute(suite: RealSuite, server: str) -> None:
    guests, was = suite.guests(), suite.container("nova-compute")
    suite.node.nova("restart", "nova-compute", timeout=LONG)
    suite.node.nova("deploy", "nova-compute=next", timeout=LONG)
    assert suite.container("nova-compute") != was
    assert suite.guests() == guests
    assert suite.console(server).count("real login:") == 2
    eventually(suite.serves_addresses, 60, "DHCP serves addresses again")
    suite.ask(lambda cloud: cloud.compute.reboot_server(server, "HARD"))
    suite.wait_for_login(server, "real", 3)
    suite.wait(server, "ACTIVE")
    assert len(suite.guests()) == 1
    suite.node.nova("rollback", "nova-compute", timeout=LONG)
    assert suite.console(server).count("real login:") == 3


def test_deleted_guest_leaves_nothing_on_the_node(suite: RealSuite, server: str) -> None:
    suite.ask(lambda cloud: cloud.compute.delete_server(server))
    eventually(lambda: not suite.host.domains(), LONG, "the guest is removed")
    eventually(lambda: suite.host.host.run(["find", f"{_STATE}/instances", "-mindepth", "1", "-maxdepth", "1", "-name",
                                            "[!_]*"]) == "", 60, "the disks of the guest are removed")
    assert suite.guests() == []
    eventually(lambda: not suite.serves_addresses(), 60, "DHCP has stopped on the host")
    assert "nova-" not in suite.host.host.run(["ip", "netns", "list"])
