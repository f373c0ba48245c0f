"""Encrypted volumes of a real Cinder with keys in a real Barbican, used by real guests that are moved."""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Iterator

import pytest

from nova.virt.images.qemuimg import Qcow2Header
from tests.integration.databases import Server
from tests.integration.hosts.two_hosts import RealHosts, needs_hosts, real_hosts
from tests.integration.processes import eventually
from tests.integration.rabbit import Rabbit
from tests.integration.real_cloud import BOOT, RealCloud
from tests.integration.volumes.barbican_server import needs_barbican
from tests.integration.volumes.cinder_cloud import cinder_cloud
from tests.integration.volumes.real_cinder import RealCinder, needs_cinder, real_cinder
from tests.integration.volumes.test_cinder_snapshots import ALWAYS_OPEN, wait_for_volume

pytestmark = [needs_hosts, needs_cinder, needs_barbican, pytest.mark.root]

# qemu-img measures the speed of key derivation, which fails at random on virtual machines.
_TRIES = 10
_TEXT = "this was written by a guest"
_READ = "head -n 1 /dev/vdb"


@pytest.fixture(name="cinder", scope="module")
def cinder_fixture(rabbitmq: Rabbit, mariadb: Server) -> Iterator[RealCinder]:
    with real_cinder(rabbitmq, mariadb, keys=True) as made:
        yield made


@pytest.fixture(name="hosts", scope="module")
def hosts_fixture() -> Iterator[RealHosts]:
    with real_hosts(2) as made:
        yield made


@pytest.fixture(name="cloud")
def cloud_fixture(rabbitmq: Rabbit, hosts: RealHosts, guest_image: pathlib.Path,
                  cinder: RealCinder) -> Iterator[RealCloud]:
    with cinder_cloud(rabbitmq, hosts, guest_image, cinder, **cinder.keys()) as made:
        made.nova.flavor("more", ram=192, disk=1)
        yield made


def made_as(cinder: RealCinder, volume: str) -> str:
    """Return the status of a volume whose creation has ended, or ""."""
    status = str(cinder.volume(volume)["status"])
    return status if status in ("available", "error") else ""


def encrypted(cinder: RealCinder) -> str:
    for _ in range(_TRIES):
        made = cinder.ask("POST", "/volumes", {"volume": {"size": 1, "volume_type": "nfs-luks"}})["volume"]["id"]
        status = eventually(functools.partial(made_as, cinder, made), 120, "the volume is created", interval=0.3)
        if status == "available":
            return str(made)
        cinder.drop(made)
    pytest.fail(f"no encrypted volume is made: {cinder.tail()}")


def text_of(cloud: RealCloud, server: str) -> str:
    with cloud.shell(server) as shell:
        wait_for_volume(shell)
        return shell.run(_READ).splitlines()[-1]


def secrets(hosts: RealHosts) -> list[list[str]]:
    """Return the lines of secrets listed by each host's libvirt."""
    return [host.virsh("secret-list").split("\n")[:-1] for host in hosts.hosts]


def test_guest_data_on_an_encrypted_cinder_volume_is_encrypted(cloud: RealCloud, cinder: RealCinder) -> None:
    volume = encrypted(cinder)
    server = cloud.boot("guest", cloud.trio, user_data=ALWAYS_OPEN)
    cloud.api.wait(server, "ACTIVE", BOOT)
    cloud.wait_for_login(server, "guest")
    path = f"/servers/{server}/os-volume_attachments"
    cloud.api.post(path, {"volumeAttachment": {"volumeId": volume}})
    cinder.wait(volume, "in-use")
    with cloud.shell(server) as shell:
        wait_for_volume(shell)
        assert "1048576 vdb" in shell.run("cat /proc/partitions"), "the guest does not see the whole size"
        shell.run(f"echo {_TEXT} > /dev/vdb; sync")
    file = cinder.files()[f"volume-{volume}"]
    header = Qcow2Header(str(file))  # the format that Cinder creates
    assert header.luks
    assert _TEXT.encode() not in file.read_bytes()
    cloud.api.delete(f"{path}/{volume}")
    cinder.wait(volume, "available")
    with cloud.shell(server) as shell:
        eventually(lambda: "vdb" not in shell.run("cat /proc/partitions"), 30, "the volume is unplugged from the guest")
    assert secrets(cloud.hosts) == [[], []]
    cloud.api.post(path, {"volumeAttachment": {"volumeId": volume}})
    cinder.wait(volume, "in-use")
    assert text_of(cloud, server) == _TEXT
    cloud.nothing_left()
    assert cinder.attachments() == []
    assert secrets(cloud.hosts) == [[], []]
    cinder.wait(volume, "available")
    cinder.drop(volume)
    assert cinder.files() == {}


def test_encrypted_cinder_volume_follows_migrations_of_its_server(cloud: RealCloud, cinder: RealCinder) -> None:
    volume = encrypted(cinder)
    first, second = cloud.hosts.hosts
    server = cloud.boot("guest", cloud.trio, on=first, user_data=ALWAYS_OPEN, block_device_mapping_v2=[
        {"source_type": "volume", "uuid": volume, "destination_type": "volume"}])
    cloud.api.wait(server, "ACTIVE", BOOT)
    cloud.wait_for_login(server, "guest")
    with cloud.shell(server) as shell:
        wait_for_volume(shell)
        shell.run(f"echo {_TEXT} > /dev/vdb; sync")
    cloud.api.action(server, "os-migrateLive", {"host": second.name, "block_migration": "auto"})
    cloud.api.wait(server, "ACTIVE", BOOT)
    assert cloud.host_of(server) is second
    assert text_of(cloud, server) == _TEXT
    assert secrets(cloud.hosts)[0] == []
    cloud.api.action(server, "resize", {"flavorRef": "more"})
    cloud.api.wait(server, "VERIFY_RESIZE", BOOT)
    cloud.wait_for_login(server, "guest")
    assert text_of(cloud, server) == _TEXT
    cloud.api.action(server, "confirmResize")
    cloud.api.wait(server, "ACTIVE", BOOT)
    here = cloud.host_of(server)
    assert [bool(known) for known in secrets(cloud.hosts)] == [host is here for host in cloud.hosts.hosts]
    assert [each["instance"] for each in cinder.attachments()] == [server]
    cloud.nothing_left()
    assert secrets(cloud.hosts) == [[], []]
    cinder.wait(volume, "available")
    cinder.drop(volume)
