"""Images of volume-backed servers on a real Cinder, and servers booted from these images."""

from __future__ import annotations

import json
import pathlib
import subprocess

import pytest

from tests.integration.hosts.two_hosts import needs_hosts
from tests.integration.processes import eventually
from tests.integration.real_cloud import BOOT, RealCloud
from tests.integration.volumes.cinder_cloud import cloud_fixture, hosts_fixture  # noqa: F401 (fixtures)
from tests.integration.volumes.real_cinder import RealCinder, cinder_fixture, needs_cinder  # noqa: F401 (fixture)
from tests.integration.volumes.test_cinder_snapshots import ALWAYS_OPEN

pytestmark = [needs_hosts, needs_cinder, pytest.mark.root]

# The last microversion with /images.
_OLD = "2.35"


def system_volume(cinder: RealCinder, image: pathlib.Path) -> str:
    """Create a volume with the bootable disk of the guest image."""
    volume = cinder.new()
    file = cinder.files()[f"volume-{volume}"]
    size = file.stat().st_size
    subprocess.run(["qemu-img", "convert", "-f", "qcow2", "-O", "raw", str(image / "nova-guest.qcow2"), str(file)],
                   check=True, timeout=60)
    with file.open("ab") as end:
        end.truncate(size)
    cinder.ask("POST", f"/volumes/{volume}/action", {"os-set_bootable": {"bootable": True}})
    return volume


def booted(cloud: RealCloud, name: str, image: str = "", **fields: object) -> str:
    server = cloud.boot(name, image, user_data=ALWAYS_OPEN, **fields)
    cloud.api.wait(server, "ACTIVE", BOOT)
    cloud.wait_for_login(server, name)
    return server


def saved(cloud: RealCloud, server: str, name: str) -> str:
    """Create an image of the server, wait until it is active, and return its id."""
    image = str(cloud.api.action(server, "createImage", {"name": name})["image_id"])

    def look() -> bool:
        answer = cloud.api.request("GET", f"/images/{image}", version=_OLD)
        assert answer.status_code == 200, cloud.api.get(f"/servers/{server}/os-instance-actions")
        return bool(answer.json()["image"]["status"] == "ACTIVE")

    eventually(look, 120, "the image is active", interval=0.5)
    return image


def test_server_boots_from_an_image_of_a_volume_backed_server(cloud: RealCloud, cinder: RealCinder,
                                                              guest_image: pathlib.Path) -> None:
    system, data = system_volume(cinder, guest_image), cinder.new()
    first = booted(cloud, "first", block_device_mapping_v2=[
        {"source_type": "volume", "uuid": system, "destination_type": "volume", "boot_index": 0},
        {"source_type": "volume", "uuid": data, "destination_type": "volume"}])
    with cloud.shell(first) as shell:
        shell.run("echo before > /home/nova/note; echo before > /dev/vdb; sync")
    image = saved(cloud, first, "saved")
    told = cloud.api.get(f"/images/{image}", _OLD)["image"]["metadata"]
    devices = json.loads(told["block_device_mapping"])
    assert [(device["source_type"], device["device_name"], device["boot_index"]) for device in devices] == [
        ("snapshot", "/dev/vda", 0), ("snapshot", "/dev/vdb", -1)]
    snapshots = {each["id"]: each for each in cinder.ask("GET", "/snapshots/detail")["snapshots"]}
    assert [(snapshots[device["snapshot_id"]]["volume_id"], snapshots[device["snapshot_id"]]["status"])
            for device in devices] == [(system, "available"), (data, "available")]
    with cloud.shell(first) as shell:
        shell.run("echo after > /home/nova/note; echo after > /dev/vdb; sync")

    second = booted(cloud, "second", image)
    made = [each["id"] for each in cloud.api.show(second)["os-extended-volumes:volumes_attached"]]
    assert len({system, data, *made}) == 4
    with cloud.shell(second) as shell:
        assert shell.run("cat /home/nova/note; head -n 1 /dev/vdb").split() == ["before", "before"]
    cloud.api.delete(f"/servers/{second}")
    cloud.api.wait_gone([second], 60)
    for volume in made:
        cinder.wait(volume, "available")
        cinder.drop(volume)

    # After the deletion of the snapshots, the first guest still has all its data, also after a reboot.
    assert cloud.api.request("DELETE", f"/images/{image}", version=_OLD).status_code == 204
    for snapshot in snapshots:
        cinder.drop_snapshot(snapshot)
    asked = cloud.console(first).count("first login:")
    cloud.api.action(first, "reboot", {"type": "HARD"})
    cloud.api.wait(first, "ACTIVE", BOOT)
    cloud.wait_for_login(first, "first", asked + 1)
    with cloud.shell(first) as shell:
        assert shell.run("cat /home/nova/note; head -n 1 /dev/vdb").split() == ["after", "after"]
    cloud.nothing_left()
    assert cinder.attachments() == []
    for volume in (system, data):
        cinder.wait(volume, "available")
        cinder.drop(volume)
    assert cinder.files() == {}
