"""A cloud of two hosts, each with its own libvirtd, network, disk and real guests (emulated CPU)."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest

from tests.integration.hosts.two_hosts import RealHosts, needs_hosts, real_hosts
from tests.integration.rabbit import Rabbit
from tests.integration.real_cloud import BOOT, RealCloud, real_cloud

pytestmark = [needs_hosts, pytest.mark.root]


@pytest.fixture(scope="module")
def hosts() -> Iterator[RealHosts]:
    with real_hosts(2) as made:
        yield made


@pytest.fixture(params=["own disks", pytest.param("shared disks", marks=pytest.mark.slow)])
def cloud(request: pytest.FixtureRequest, rabbitmq: Rabbit, hosts: RealHosts,
          guest_image: pathlib.Path) -> Iterator[RealCloud]:
    with real_cloud(rabbitmq, hosts, guest_image, shared=request.param == "shared disks") as made:
        yield made


def test_server_boots_on_the_requested_host(cloud: RealCloud) -> None:
    first, second = cloud.hosts.hosts
    known = {node["hypervisor_hostname"] for node in cloud.api.get("/os-hypervisors/detail")["hypervisors"]}
    assert known == {"nova-host1", "nova-host2"}
    servers = {host.name: cloud.boot(f"on-{host.name}", cloud.trio, on=host) for host in (first, second)}
    for host in (first, second):
        uuid = servers[host.name]
        shown = cloud.api.wait(uuid, "ACTIVE", BOOT)
        assert shown["OS-EXT-SRV-ATTR:host"] == host.name
        assert host.domains() == [shown["OS-EXT-SRV-ATTR:instance_name"]]
    for name, uuid in servers.items():
        cloud.wait_for_login(uuid, f"on-{name}")
        with cloud.shell(uuid) as shell:
            assert shell.run("hostname") == f"on-{name}\n"
    cloud.nova.audit()
    cloud.nothing_left()
