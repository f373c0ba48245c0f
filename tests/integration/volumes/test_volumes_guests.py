"""Volumes of real guests: data survive re-attachment, and guests boot from volumes."""

from __future__ import annotations

import base64
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.hosts.two_hosts import RealHosts, needs_hosts, real_hosts
from tests.integration.processes import eventually
from tests.integration.rabbit import Rabbit
from tests.integration.real_cloud import BOOT, RealCloud, real_cloud

pytestmark = [needs_hosts, pytest.mark.root]

# The last microversion with /os-volumes.
_OLD = "2.35"
# Digest of the first 16 MiB.
_DIGEST = "head -c 16777216 /dev/vdb | md5sum"
# Only root may open disks, and the console user is not root.
OPEN = base64.b64encode(b"""#!/bin/sh
(while :; do chmod 666 /dev/vd[b-z]; usleep 200000; done) > /dev/null 2>&1 &
""").decode()


@pytest.fixture(scope="module")
def hosts() -> Iterator[RealHosts]:
    with real_hosts(1) as made:
        yield made


@pytest.fixture(params=["raw", pytest.param("qcow2", marks=pytest.mark.slow)])
def cloud(request: pytest.FixtureRequest, rabbitmq: Rabbit, hosts: RealHosts,
          guest_image: pathlib.Path) -> Iterator[RealCloud]:
    options = {"volume": {"format": request.param, "allow_swap": True}}
    with real_cloud(rabbitmq, hosts, guest_image, options=options) as made:
        yield made


def make(cloud: RealCloud, size: int = 1) -> str:
    return str(cloud.api.post("/os-volumes", {"volume": {"size": size}}, _OLD)["volume"]["id"])


def wait_status(cloud: RealCloud, volume: str, status: str) -> None:
    eventually(lambda: cloud.api.get(f"/os-volumes/{volume}", _OLD)["volume"]["status"] == status, 60,
               f"volume {volume} is {status}")


def attach(cloud: RealCloud, server: str, volume: str) -> None:
    cloud.api.post(f"/servers/{server}/os-volume_attachments", {"volumeAttachment": {"volumeId": volume}})
    wait_status(cloud, volume, "in-use")


def detach(cloud: RealCloud, server: str, volume: str) -> None:
    cloud.api.delete(f"/servers/{server}/os-volume_attachments/{volume}")
    wait_status(cloud, volume, "available")


def started(cloud: RealCloud, name: str, image: str, **fields: Any) -> str:
    uuid = cloud.boot(name, image, user_data=OPEN, **fields)
    cloud.api.wait(uuid, "ACTIVE", BOOT)
    cloud.wait_for_login(uuid, name)
    return uuid


@pytest.mark.slow
def test_data_on_a_volume_survive_attachment_to_another_server(cloud: RealCloud) -> None:
    volume = make(cloud)
    first = started(cloud, "first", cloud.trio)
    attach(cloud, first, volume)
    with cloud.shell(first) as shell:
        eventually(lambda: "1048576 vdb" in shell.run("cat /proc/partitions"), 30, "the guest sees its volume")
        assert volume.replace("-", "")[:16] in shell.run("cat /sys/block/vdb/serial").replace("-", "")
        eventually(lambda: "rw-rw-rw-" in shell.run("ls -l /dev/vdb"), 30,
                   "the volume is writable for the guest's user")
        shell.run("echo precious > /dev/vdb; sync")
    detach(cloud, first, volume)
    with cloud.shell(first) as shell:
        eventually(lambda: "vdb" not in shell.run("cat /proc/partitions"), 30, "the volume is unplugged from the guest")
    cloud.api.delete(f"/servers/{first}")
    cloud.api.wait_gone([first], 60)

    second = started(cloud, "second", cloud.trio, block_device_mapping_v2=[
        {"source_type": "volume", "uuid": volume, "delete_on_termination": True}])
    with cloud.shell(second) as shell:
        assert shell.run("head -c 8 /dev/vdb") == "precious"
    cloud.api.action(second, "reboot", {"type": "HARD"})
    cloud.api.wait(second, "ACTIVE", BOOT)
    with cloud.shell(second) as shell:
        assert "1048576 vdb" in shell.run("cat /proc/partitions")
    cloud.nova.audit()
    cloud.nothing_left()
    eventually(lambda: not cloud.api.get("/os-volumes", _OLD)["volumes"], 30, "the volume is deleted with its server")


@pytest.mark.slow
def test_server_boots_from_the_volume_of_a_deleted_server(cloud: RealCloud) -> None:
    first = started(cloud, "first", "", block_device_mapping_v2=[
        {"source_type": "image", "uuid": cloud.disk, "destination_type": "volume", "volume_size": 2, "boot_index": 0}])
    volume = cloud.api.show(first)["os-extended-volumes:volumes_attached"][0]["id"]
    with cloud.shell(first) as shell:
        assert "2097152 vda" in shell.run("cat /proc/partitions")
        shell.run("echo remembered > /home/nova/note; sync")
    cloud.api.delete(f"/servers/{first}")
    cloud.api.wait_gone([first], 60)
    wait_status(cloud, volume, "available")
    second = started(cloud, "second", "", block_device_mapping_v2=[
        {"source_type": "volume", "uuid": volume, "boot_index": 0, "delete_on_termination": True}])
    with cloud.shell(second) as shell:
        assert shell.run("cat /home/nova/note").strip() == "remembered"
    cloud.nova.audit()
    cloud.nothing_left()
    eventually(lambda: not cloud.api.get("/os-volumes", _OLD)["volumes"], 30, "the volume is deleted with its server")


@pytest.mark.slow
def test_guest_data_survive_a_volume_swap(cloud: RealCloud) -> None:
    old, new = make(cloud), make(cloud)
    server = started(cloud, "guest", cloud.trio)
    attach(cloud, server, old)
    with cloud.shell(server) as shell:
        eventually(lambda: "rw-rw-rw-" in shell.run("ls -l /dev/vdb || true"), 30,
                   "the volume is writable for the guest's user")
        shell.run("dd if=/dev/urandom of=/dev/vdb bs=1M count=16 2> /dev/null; sync", 120)
        digest = shell.run(_DIGEST, 120).split()[-2]  # after a possible message of the kernel
        asked = cloud.api.request("PUT", f"/servers/{server}/os-volume_attachments/{old}",
                                  {"volumeAttachment": {"volumeId": new}})
        assert asked.status_code == 202, asked.text
        wait_status(cloud, new, "in-use")
        wait_status(cloud, old, "available")
        shell.run("echo later | dd of=/dev/vdb bs=512 seek=1000000 conv=sync 2> /dev/null; sync")
        assert old.replace("-", "")[:16] in shell.run("cat /sys/block/vdb/serial").replace("-", ""), "the same disk"
        # Attach again, so that the guest has no cached data.
        detach(cloud, server, new)
        eventually(lambda: "vdb" not in shell.run("cat /proc/partitions"), 30, "the volume is unplugged from the guest")
        attach(cloud, server, new)
        eventually(lambda: "rw-rw-rw-" in shell.run("ls -l /dev/vdb || true"), 30,
                   "the volume is readable for the guest's user")
        assert new.replace("-", "")[:16] in shell.run("cat /sys/block/vdb/serial").replace("-", ""), "another disk"
        assert shell.run(_DIGEST, 120).split()[-2] == digest
        assert shell.run("dd if=/dev/vdb bs=512 skip=1000000 count=1 2> /dev/null | head -c 5").endswith("later")
    detach(cloud, server, new)
    cloud.nova.audit()
    cloud.api.delete(f"/servers/{server}")
    cloud.api.wait_gone([server], 60)
    cloud.nothing_left()
