"""The shipped etc/novad/nova-nodes.yaml on two nodes: control on one node, compute on both."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from nova.network.linux import netns
from tests.integration.novad import novad_pair
from tests.integration.novad.novad_node import wait_for
from tests.integration.novad.novad_pair import ADDRESSES, Pair, needs_pair
from tests.integration.novad.novad_suite import IMAGES, LONG, Images, Suite, build, left
from tests.paths import ROOT

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.timeout(3600), needs_pair]

_OPTIONS = {"control": f'roles = ["control", "compute"]\nnodes = [{{address = "tls://{ADDRESSES["compute"]}:'
            '18080", node = "compute", roles = ["compute"]}]\n',
            "compute": 'roles = ["compute"]\n'}
# Downloads an image as nova-compute does; the fake driver has no disks.
_DOWNLOAD = """\
import glob, os, sys
from nova import conf, context, image
conf.load([f"--config-file={file}" for file in sorted(glob.glob("/etc/nova/*.conf"))], command=True)
image.store().download(context.admin(), sys.argv[1], "/tmp/image", lambda size: None)
print(os.path.getsize("/tmp/image"))
"""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    build()
    images = Images(tmp_path_factory.mktemp("registry"))
    try:
        with novad_pair.pair(
                tmp_path_factory.mktemp("nodes"), f"base: {ROOT}/etc/novad/nova-nodes.yaml\nname: m{os.getpid()}\n",
                "yaml", options=_OPTIONS, ports={5050: int(images.host.rpartition(":")[2])}) as made:
            wait_for(made.ready, "the other node is ready", made.log)
            yield made
    finally:
        images.stop()


@pytest.fixture(scope="module")
def suite(pair: Pair) -> Suite:
    print(pair.control.nova("deploy", timeout=LONG).stdout)
    return Suite(pair.control, f"m{os.getpid()}", namespace=pair.spaces["control"])


@pytest.fixture(scope="module")
def image(suite: Suite) -> str:
    return str(suite.ask(lambda cloud: cloud.image.create_image(
        name="blank", disk_format="raw", container_format="bare", data=bytes(1 << 20)).id))


def test_deployment_places_control_on_one_node_and_compute_on_both(pair: Pair, suite: Suite) -> None:
    assert set(pair.states()) == {*(("control", name) for name in IMAGES), ("compute", "nova-compute")}
    told = json.loads(pair.control.nova("platform-info", "-f", "json").stdout)
    assert len({one["Version"] for one in told if one["Component"].startswith("nova-")}) == 1
    hypervisors = suite.ask(lambda cloud: [(one.name, one.state) for one in cloud.compute.hypervisors(details=True)])
    assert sorted(hypervisors) == [("compute", "up"), ("control", "up")]


@pytest.mark.parametrize("host", ["compute", "control"])
def test_server_boots_on_either_node(suite: Suite, image: str, host: str) -> None:
    def boot(cloud: Any) -> Any:
        flavor = cloud.compute.create_flavor(name=host, ram=64, vcpus=1, disk=1)
        made = cloud.compute.create_server(name=f"on-{host}", image_id=image, flavor_id=flavor.id, networks="none",
                                           availability_zone=f"nova:{host}")
        return cloud.compute.wait_for_server(made, wait=300)

    server = suite.ask(boot)
    assert (server.status, server.compute_host, server.hypervisor_hostname) == ("ACTIVE", host, host)


def test_compute_node_downloads_images_from_the_control_node(pair: Pair, suite: Suite, image: str) -> None:
    assert pair.compute.podman("exec", f"{suite.name}-nova-compute", "python", "-c", _DOWNLOAD, image) == "1048576\n"


def reached(pair: Pair) -> list[int]:
    """Return the ports of the control node that the compute node reaches."""
    def answers(port: int) -> bool:
        with contextlib.closing(socket.socket()) as asked:
            asked.settimeout(3)
            return asked.connect_ex((ADDRESSES["control"], port)) == 0

    ports = (3306, 5000, 5672, 6080, 6082, 6083, 8774, 8775, 9292, 11211)
    return netns.call(pair.spaces["compute"], lambda: [port for port in ports if answers(port)])


def filtered(pair: Pair, *words: str) -> None:
    netns.call(pair.spaces["control"], lambda: subprocess.run(["nft", *words], check=True, timeout=30))


def test_other_nodes_reach_only_required_and_unfiltered_ports(pair: Pair, suite: Suite) -> None:
    assert reached(pair) == [5000, 5672, 9292]
    [rules] = re.findall(r"^\$ nft '(.*)'$", (ROOT / "doc/novad.md").read_text(), re.MULTILINE)
    for address, answer in ((ADDRESSES["compute"], [5000, 5672, 9292]), ("10.213.7.3", [])):
        filtered(pair, rules.replace("10.0.0.2", address).replace("10.0.0.1", ADDRESSES["control"]))
        try:
            assert reached(pair) == answer
        finally:
            filtered(pair, "delete table inet suite")


def test_removed_deployment_leaves_nothing_on_either_node(pair: Pair, suite: Suite) -> None:
    pair.control.nova("remove", "--yes", "--remove-volumes", "--remove-secrets", timeout=LONG)
    assert pair.states() == {}
    assert [left(node, suite.name) for node in (pair.control, pair.compute)] == [[], []]
