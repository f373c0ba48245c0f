"""Real guests (QEMU, emulated CPU) through the API and all services, on RabbitMQ and each database."""

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
    with real_hosts(1) as made:
        yield made


@pytest.fixture(params=[pytest.param("sqlite", marks=pytest.mark.slow), "postgresql",
                        pytest.param("mariadb", marks=pytest.mark.slow)])
def cloud(request: pytest.FixtureRequest, rabbitmq: Rabbit, hosts: RealHosts,
          guest_image: pathlib.Path) -> Iterator[RealCloud]:
    database = None if request.param == "sqlite" else request.getfixturevalue(request.param).new_database()
    with real_cloud(rabbitmq, hosts, guest_image, database) as made:
        yield made


@pytest.mark.parametrize("cloud", ["sqlite"], indirect=True)
def test_guest_goes_through_all_power_states(cloud: RealCloud) -> None:
    uuid = cloud.boot("real", cloud.trio)
    cloud.api.wait(uuid, "ACTIVE", BOOT)
    cloud.wait_for_login(uuid, "real")
    for name, argument, status in [
        ("pause", None, "PAUSED"), ("unpause", None, "ACTIVE"), ("suspend", None, "SUSPENDED"),
        ("resume", None, "ACTIVE"), ("os-stop", None, "SHUTOFF"), ("os-start", None, "ACTIVE"),
    ]:
        cloud.api.action(uuid, name, argument)
        cloud.api.wait(uuid, status, BOOT)
    cloud.wait_for_login(uuid, "real", 2)
    cloud.api.action(uuid, "reboot", {"type": "HARD"})
    cloud.api.wait(uuid, "ACTIVE", BOOT)
    cloud.wait_for_login(uuid, "real", 3)
    cloud.nova.audit()
    cloud.nothing_left()


def test_boots_resume_after_compute_was_killed(cloud: RealCloud) -> None:
    """nova-compute is killed while two guests boot; afterwards each guest starts exactly once."""
    names = {cloud.boot("from-kernel", cloud.trio): "from-kernel",
             cloud.boot("from-disk", cloud.disk, config_drive=True): "from-disk"}
    eventually(cloud.hosts.hosts[0].domains, 60, "the first guest is defined", interval=0.05)
    cloud.nova.kill("compute-nova-host1")
    cloud.nova.start("compute-nova-host1")
    cloud.nova.all_active(list(names), BOOT)
    assert len(cloud.hosts.hosts[0].domains()) == 2
    for uuid, name in names.items():
        cloud.wait_for_login(uuid, name)
    cloud.nova.audit()
    cloud.nothing_left()
