"""Device names of a server's disks: local disks first, then volumes."""

import pytest

from nova import exception
from nova.objects.accounts.flavor import Flavor
from nova.objects.base import utcnow
from nova.objects.images.image import Image
from nova.objects.requirements import device_names
from nova.objects.servers.instance import BlockDevice, Instance


def server(*devices, bus=None, **flavor):
    return Instance(uuid="u", project_id="p", user_id="u", display_name="n", hostname="n", created_at=utcnow(),
                    flavor=Flavor(flavorid="1", name="m1", memory_mb=128, vcpus=1, **flavor),
                    image=Image(id="i", properties={"hw_disk_bus": bus} if bus else {}), block_devices=list(devices))


def volume(name=None, **changes):
    return BlockDevice(source="volume", destination="volume", volume_id="v", device_name=name, **changes)


def named(instance, *devices):
    device_names.assign(instance, devices)
    return [device.device_name for device in devices]


@pytest.mark.parametrize(("flavor", "first"), [
    ({}, "/dev/vdb"), ({"swap": 64}, "/dev/vdc"), ({"ephemeral_gb": 1}, "/dev/vdc"),
    ({"ephemeral_gb": 1, "swap": 64}, "/dev/vdd")])
def test_volume_is_named_after_the_local_disks(flavor, first):
    assert named(server(**flavor), volume()) == [first]


def test_requested_ephemeral_disks_have_distinct_device_names():
    blank = [BlockDevice(source="blank", size_gb=1) for _ in range(3)]
    assert named(server(*blank, ephemeral_gb=3), volume()) == ["/dev/vde"]


def test_root_volume_gets_the_first_device_name():
    root, other = volume(boot_index=0), volume()
    assert named(server(other, root, swap=64), other, root) == ["/dev/vdc", "/dev/vda"]


def test_used_device_names_are_not_assigned_again():
    assert named(server(volume("/dev/vdb"), volume("/dev/vdd")), volume(), volume()) == ["/dev/vdc", "/dev/vde"]


@pytest.mark.parametrize(("asked", "name"), [
    ("/dev/vdf", "/dev/vdf"), ("/dev/sdf", "/dev/vdf"), ("/dev/xvdf", "/dev/vdf"), ("/dev/vdaa", "/dev/vdaa"),
    ("/dev/vdf1", "/dev/vdb"), ("/dev/disk", "/dev/vdb"), (None, "/dev/vdb")])
def test_requested_device_name_gets_the_prefix_of_its_bus(asked, name):
    assert named(server(), volume(asked)) == [name]


@pytest.mark.parametrize(("bus", "name"), [("scsi", "/dev/sdb"), ("ide", "/dev/hdb"), ("virtio", "/dev/vdb")])
def test_device_name_prefix_follows_the_disk_bus_of_the_image(bus, name):
    assert named(server(bus=bus), volume()) == [name]
    assert named(server(bus=bus), volume(disk_bus="sata"))[0].startswith("/dev/sd")


@pytest.mark.parametrize("asked", ["/dev/vda", "/dev/vdb", "/dev/sdc"])
def test_requested_device_name_in_use_is_refused(asked):
    with pytest.raises(exception.DevicePathInUse, match=asked):
        named(server(volume("/dev/vdc"), swap=64), volume(asked))


def test_requested_device_names_have_priority_and_continue_after_vdz():
    wanted = [volume(), volume("/dev/vdb"), *(volume() for _ in range(30))]
    names = named(server(), *wanted)
    assert names[:2] == ["/dev/vdc", "/dev/vdb"]
    assert len(set(names)) == len(names)
    assert names[-1] == "/dev/vdag"


def test_root_disk_and_device_types_determine_the_device_name_prefix():
    root = BlockDevice(source="image", boot_index=0, disk_bus="scsi")
    assert named(server(root), volume(disk_bus="scsi")) == ["/dev/sdb"]
    assert named(server(), volume(device_type="cdrom")) == ["/dev/hda"]
    assert named(server(), volume(device_type="floppy")) == ["/dev/fda"]
