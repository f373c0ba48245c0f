"""Evacuation from a failed host to a host with the same shared disk: the guest never runs on both hosts."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest

from tests.integration.hosts.two_hosts import RealHosts, needs_hosts, real_hosts
from tests.integration.processes import eventually
from tests.integration.rabbit import Rabbit
from tests.integration.real_cloud import BOOT, RealCloud, real_cloud

pytestmark = [needs_hosts, pytest.mark.root]


@pytest.fixture(scope="module")
def hosts() -> Iterator[RealHosts]:
    with real_hosts(2) as made:
        yield made


@pytest.fixture
def cloud(rabbitmq: Rabbit, hosts: RealHosts, guest_image: pathlib.Path) -> Iterator[RealCloud]:
    with real_cloud(rabbitmq, hosts, guest_image, shared=True) as made:
        yield made


def after_evacuation(cloud: RealCloud, uuid: str) -> None:
    """Check that only the second host has the guest, and that the guest is intact after a hard reboot."""
    first, second = cloud.hosts.hosts
    cloud.nova.wait_ready()
    eventually(lambda: first.domains() == [], 60, "the returned host has removed the guest")
    assert cloud.host_of(uuid) is second
    with cloud.shell(uuid) as shell:
        shell.run("echo later > later; sync")
    cloud.api.action(uuid, "reboot", {"type": "HARD"})
    cloud.api.wait(uuid, "ACTIVE", BOOT)
    with cloud.shell(uuid) as shell:
        assert shell.run("cat later") == "later\n"
    cloud.nothing_left()


@pytest.mark.slow
def test_evacuated_guest_is_intact_after_its_old_host_returns(cloud: RealCloud) -> None:
    first, second = cloud.hosts.hosts
    uuid = cloud.booted("saved", cloud.trio)
    cloud.lose_power(first)
    cloud.wait_down(first)
    cloud.api.action(uuid, "evacuate", {}, version="2.94")  # later microversions leave the server stopped
    cloud.api.wait(uuid, "ACTIVE", BOOT)
    assert cloud.host_of(uuid) is second
    assert cloud.note(uuid) == "saved"
    cloud.return_power(first)
    after_evacuation(cloud, uuid)


@pytest.mark.slow
def test_host_that_returns_during_an_evacuation_does_not_start_the_guest(cloud: RealCloud) -> None:
    first, _second = cloud.hosts.hosts
    uuid = cloud.booted("between", cloud.trio)
    cloud.lose_power(first)
    cloud.wait_down(first)
    cloud.api.action(uuid, "evacuate", {})
    cloud.return_power(first)
    cloud.api.wait(uuid, "SHUTOFF", BOOT)
    cloud.api.action(uuid, "os-start")
    cloud.api.wait(uuid, "ACTIVE", BOOT)
    assert cloud.note(uuid) == "between"
    after_evacuation(cloud, uuid)
