"""Real guests (QEMU, emulated CPU) through the API and all services, on RabbitMQ and each database."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.cluster import Cluster
from tests.integration.compute_room import ComputeRoom
from tests.integration.databases import mariadb, postgresql  # noqa: F401 (fixtures)
from tests.integration.libvirt_fixtures import (  # noqa: F401 (fixtures)
    PrivateLibvirt,
    guest_image_fixture,
    libvirt_daemon_fixture,
    needs_libvirt,
)
from tests.integration.linuxnet_lab import needs_root
from tests.integration.processes import eventually
from tests.integration.rabbit import Rabbit

pytestmark = [needs_libvirt, needs_root, pytest.mark.root]
# An emulated CPU on a loaded machine.
_BOOT = 120.0


class Cloud:
    """A cluster with one real compute host, and the images of the small guest."""

    def __init__(self, nova: Cluster, room: ComputeRoom, image: pathlib.Path) -> None:
        self.nova, self.room, self.api = nova, room, nova.api
        nova.flavor("guest", ram=128, disk=1)
        kernel = nova.import_image(image / "vmlinuz", "kernel", "aki")
        ramdisk = nova.import_image(image / "initrd.gz", "ramdisk", "ari")
        self.trio = nova.import_image(image / "rootfs.img", "trio", "ami", kernel_id=kernel, ramdisk_id=ramdisk)
        self.disk = nova.import_image(image / "nova-guest.qcow2", "disk", "qcow2")

    def boot(self, name: str, image: str, **fields: Any) -> str:
        return self.api.boot(name, imageRef=image, flavorRef="guest", **fields)

    def console(self, uuid: str) -> str:
        return str(self.api.action(uuid, "os-getConsoleOutput", {})["output"])

    def wait_for_login(self, uuid: str, name: str, count: int = 1) -> None:
        """The guest took its host name from the metadata and asks for a login, for the ``count``th time."""
        eventually(lambda: self.console(uuid).count(f"{name} login:") >= count, _BOOT, f"{name} asks for a login",
                   interval=0.5)

    def nothing_left(self) -> None:
        self.nova.delete_all(60)
        instances = self.nova.directory / "instances"
        eventually(lambda: not self.room.leftovers(instances), 10, "everything of the guests is gone")
        self.nova.audit()


@pytest.fixture(scope="session")
def room(rabbitmq: Rabbit, libvirt_daemon: PrivateLibvirt) -> Iterator[ComputeRoom]:
    made = ComputeRoom(libvirt_daemon, rabbitmq.port)
    yield made
    made.close()


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def cloud(request: pytest.FixtureRequest, rabbitmq: Rabbit, room: ComputeRoom,
          guest_image: pathlib.Path) -> Iterator[Cloud]:
    database = None if request.param == "sqlite" else request.getfixturevalue(request.param).new_database()
    options = {
        "DEFAULT": {"compute_driver": "libvirt", "reserved_host_memory_mb": 0, "shutdown_timeout": 20},
        "libvirt": {"virt_type": "qemu", "connection_uri": room.daemon.uri},
        "network": {"driver": "linuxnet", "nat": False},
    }
    try:
        with Cluster(rabbitmq.new_vhost(), database, conductors=1, schedulers=1, options=options,
                     host_prefix=room.prefix, parent=room.daemon.place) as nova:
            yield Cloud(nova, room, guest_image)
    finally:
        room.clear()


@pytest.mark.parametrize("cloud", ["sqlite"], indirect=True)
def test_a_real_guest_lives_through_its_power_states(cloud: Cloud) -> None:
    uuid = cloud.boot("real", cloud.trio)
    cloud.api.wait(uuid, "ACTIVE", _BOOT)
    cloud.wait_for_login(uuid, "real")
    for name, argument, status in [
        ("pause", None, "PAUSED"), ("unpause", None, "ACTIVE"), ("suspend", None, "SUSPENDED"),
        ("resume", None, "ACTIVE"), ("os-stop", None, "SHUTOFF"), ("os-start", None, "ACTIVE"),
    ]:
        cloud.api.action(uuid, name, argument)
        cloud.api.wait(uuid, status, _BOOT)
    cloud.wait_for_login(uuid, "real", 2)
    cloud.api.action(uuid, "reboot", {"type": "HARD"})
    cloud.api.wait(uuid, "ACTIVE", _BOOT)
    cloud.wait_for_login(uuid, "real", 3)
    cloud.nova.audit()
    cloud.nothing_left()


def test_a_killed_compute_finishes_its_boots_after_a_restart(cloud: Cloud) -> None:
    """Each database: two guests under way when nova-compute dies; both come up, once."""
    names = {cloud.boot("from-kernel", cloud.trio): "from-kernel",
             cloud.boot("from-disk", cloud.disk, config_drive=True): "from-disk"}
    eventually(cloud.room.domains, 60, "the first guest is defined", interval=0.05)
    cloud.nova.kill("compute-1")
    cloud.nova.start("compute-1")
    cloud.nova.all_active(list(names), _BOOT)
    assert len(cloud.room.domains()) == 2
    for uuid, name in names.items():
        cloud.wait_for_login(uuid, name)
    cloud.nova.audit()
    cloud.nothing_left()
