# ruff: noqa: F811 - fixtures of other modules
"""Servers with volumes that Cinder creates from snapshots."""

import pytest

from tests.cinder_service import Snapshot
from tests.functional.several_hosts import refused
from tests.functional.volumes.test_cinder import MEMBER, boot, cinder, outside  # noqa: F401 (fixtures)


@pytest.fixture
def snapshot(cinder):
    """Create a snapshot of a bootable volume of 2 GiB."""
    origin = cinder.new(MEMBER, bootable=True, size=2, image={"image_id": "i", "hw_disk_bus": "scsi"})
    made = Snapshot(cinder.volumes[origin])
    cinder.snapshots[made.id] = made
    yield made.id
    cinder.snapshots.clear()


def restored(uuid, **values):
    return {"source_type": "snapshot", "uuid": uuid, "destination_type": "volume", **values}


def made_from(cinder, snapshot):
    volume, = [volume for volume in cinder.volumes.values() if volume.snapshot == snapshot]
    return volume


def test_server_boots_from_a_volume_snapshot(admin, member, flavor, cinder, driver, snapshot):
    uuid = boot(member, flavor, restored(snapshot, boot_index=0, delete_on_termination=True))
    shown = admin.wait(uuid, "ACTIVE", seconds=60)
    volume = made_from(cinder, snapshot)
    assert (volume.project, volume.size, volume.name, volume.status) == (MEMBER, 2, "", "in-use")
    assert (shown["image"], dict(driver.guest(uuid).volumes)) == ("", {"/dev/vda": volume.id})
    admin.delete(f"/servers/{uuid}")
    admin.wait_gone(uuid)
    assert volume.id not in cinder.volumes


def test_servers_booted_from_a_snapshot_have_separate_volumes(admin, member, flavor, cinder, snapshot):
    boot(member, flavor, restored(snapshot, boot_index=0, volume_size=3), min_count=2, max_count=2)
    servers = [server["id"] for server in admin.get("/servers")["servers"]]
    for uuid in servers:
        admin.wait(uuid, "ACTIVE", seconds=60)
    made = [volume for volume in cinder.volumes.values() if volume.snapshot == snapshot]
    assert sorted(cinder.servers_of(volume.id)[0] for volume in made) == sorted(servers)
    assert [volume.size for volume in made] == [3, 3]


def test_legacy_block_device_mapping_accepts_snapshots(admin, member, flavor, image_id, cinder, driver, snapshot):
    uuid = member.boot(flavor, image_id, block_device_mapping=[{"snapshot_id": snapshot, "device_name": "vdb"}])
    admin.wait(uuid, "ACTIVE", seconds=60)
    assert dict(driver.guest(uuid).volumes) == {"/dev/vdb": made_from(cinder, snapshot).id}


@pytest.mark.parametrize("how", ["error after", "silence"])
def test_volume_of_a_snapshot_is_created_once_despite_cinder_failures(admin, member, flavor, cinder, snapshot, how):
    cinder.fail("create_volume", how)
    uuid = boot(member, flavor, restored(snapshot, boot_index=0))
    admin.wait(uuid, "ACTIVE", seconds=60)
    assert cinder.servers_of(made_from(cinder, snapshot).id) == [uuid]


def test_invalid_boot_from_snapshot_is_refused(member, flavor, cinder, snapshot):
    other = "11111111-1111-4111-8111-111111111111"
    for device, text in (
            (restored(snapshot, boot_index=0, volume_size=1), "at least 2 GiB"),
            (restored(other, boot_index=0), f"Snapshot {other} could not be found"),
            (restored("none", boot_index=0), "not a uuid"),
            ({**restored(snapshot), "destination_type": "local"}, "to local is not supported")):
        code, message = refused(lambda device=device: boot(member, flavor, device))
        assert (code, text in message) == (400, True), message
    cinder.snapshots[snapshot].status, cinder.snapshots[snapshot].looks = "creating", 99
    code, message = refused(lambda: boot(member, flavor, restored(snapshot, boot_index=0)))
    assert (code, "must be available" in message) == (400, True)
    cinder.snapshots[snapshot].status = "available"
    cinder.snapshots[snapshot].volume.bootable = False
    code, message = refused(lambda: boot(member, flavor, restored(snapshot, boot_index=0)))
    assert (code, "is not bootable" in message) == (400, True)
