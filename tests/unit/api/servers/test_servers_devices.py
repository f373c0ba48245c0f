"""The block devices of a create request: both syntaxes and their validation."""

import pytest

from nova import exception
from nova.api.compute.servers.servers_devices import devices_of
from nova.objects.servers.instance import root_volume

IMAGE, VOLUME, OTHER = (f"{digit * 8}-f747-4d71-a389-46d078ebf047" for digit in "123")
BOOT = "Boot sequence for the instance and image/block device mapping combination is not valid."


def new(*items, image=IMAGE, most=1):
    return devices_of({"imageRef": image, "block_device_mapping_v2": list(items)}, most)


def old(*items, image=IMAGE):
    return devices_of({"imageRef": image, "block_device_mapping": list(items)}, 1)


def volume(**changes):
    return {"source_type": "volume", "uuid": VOLUME, **changes}


def blank(**changes):
    return {"source_type": "blank", "destination_type": "volume", "volume_size": 1, **changes}


def from_image(**changes):
    return {"source_type": "image", "destination_type": "volume", "uuid": IMAGE, "volume_size": 1, **changes}


def test_existing_volume_is_not_deleted_on_termination_by_default():
    found, = new(volume(device_name="vdb", tag="data", disk_bus="scsi"))
    assert (found.source, found.destination, found.volume_id, found.boot_index) == ("volume", "volume", VOLUME, None)
    assert (found.device_name, found.tag, found.disk_bus) == ("/dev/vdb", "data", "scsi")
    assert found.delete_on_termination is False
    assert new(volume(delete_on_termination="true"))[0].delete_on_termination is True


@pytest.mark.parametrize("item", [volume(boot_index=0), blank(boot_index="0"), from_image(boot_index=0)])
def test_volume_with_boot_index_zero_is_the_root_volume(item):
    devices = new(item, blank(boot_index=-1), image="")
    root = root_volume(devices)
    assert root is devices[0]
    assert (root.image_id, root.volume_id, root.size_gb) == (
        item.get("uuid") if item["source_type"] == "image" else None,
        item.get("uuid") if item["source_type"] == "volume" else None, item.get("volume_size"))


def test_local_disks_are_deleted_on_termination():
    image, ephemeral = new({"source_type": "image", "destination_type": "local", "uuid": IMAGE, "boot_index": 0},
                           {"source_type": "blank", "destination_type": "local", "delete_on_termination": False})
    assert (image.boot_index, image.image_id, ephemeral.delete_on_termination) == (0, IMAGE, True)


def test_devices_with_no_device_are_omitted():
    assert new({"source_type": "volume", "no_device": True}) == []
    assert old({"volume_id": VOLUME, "no_device": "1"}) == []


def test_legacy_block_device_mapping_accepts_volumes_swap_and_ephemerals():
    first, swap, ephemeral = old({"volume_id": VOLUME, "device_name": "/dev/vdb", "delete_on_termination": "1"},
                                 {"virtual_name": "swap"}, {"virtual_name": "ephemeral0"})
    assert (first.volume_id, first.boot_index, first.device_name, first.delete_on_termination) == (
        VOLUME, None, "/dev/vdb", True)
    assert (swap.guest_format, ephemeral.destination) == ("swap", "local")


@pytest.mark.parametrize(("names", "root"), [(("vdb", "vda"), OTHER), ((None, None), VOLUME)])
def test_legacy_block_device_mapping_boots_from_vda_or_the_first_volume(names, root):
    items = [{"volume_id": ident, **({"device_name": name} if name else {})}
             for ident, name in zip((VOLUME, OTHER), names, strict=True)]
    assert root_volume(old(*items, image="")).volume_id == root
    assert root_volume(old(*items)) is None


@pytest.mark.parametrize(("items", "image", "message"), [
    ([volume(boot_index=0), volume(uuid=OTHER, boot_index=0)], IMAGE, BOOT), ([volume()], "", BOOT),
    ([volume(boot_index=1)], "", BOOT),
    ([volume(boot_index=2)], IMAGE, BOOT), ([blank(boot_index=0), volume(boot_index=0)], "", BOOT),
    ([{"source_type": "blank", "boot_index": 0}], "", BOOT),
    ([blank(volume_size=None)], IMAGE, "non-zero volume_size"), ([from_image(volume_size=0)], IMAGE, "non-zero size"),
    ([from_image(uuid=None)], IMAGE, "uuid of the image"), ([volume(uuid=None)], IMAGE, "uuid of the volume"),
    ([volume(uuid="x")], IMAGE, "uuid of the volume"), ([volume(destination_type="local")], IMAGE, "to local"),
    ([{"source_type": "snapshot", "uuid": VOLUME}], IMAGE, "snapshots"), ([{}], IMAGE, "source_type"),
    ([blank(volume_type="ssd")], IMAGE, "ssd"), ([volume(volume_type="ssd")], IMAGE, "volume_type"),
    ([{"source_type": "blank", "volume_type": "ssd"}], IMAGE, "volume_type"),
    ([volume(), volume()], IMAGE, "same volume"), ([blank(tag="a"), volume(tag="a")], IMAGE, "same tag"),
    ([blank(device_name="vdb"), volume(device_name="/dev/vdb")], IMAGE, "same device_name"),
    ([{"source_type": "blank", "guest_format": "zfs"}], IMAGE, "guest_format=zfs"),
    ([{"source_type": "blank", "guest_format": "swap"}] * 2, IMAGE, "swap"),
    ([{"source_type": "image", "destination_type": "local", "uuid": OTHER, "boot_index": 0}], IMAGE, "imageRef"),
    ([{"source_type": "image", "destination_type": "local", "uuid": IMAGE, "boot_index": 1}], IMAGE, "to local"),
])
def test_invalid_block_device_mappings_are_refused_with_the_reason(items, image, message):
    given = [{name: value for name, value in item.items() if value is not None} for item in items]
    with pytest.raises(exception.InvalidInput, match=message):
        new(*given, image=image)


def test_multi_create_allows_new_volumes_but_no_existing_volume():
    with pytest.raises(exception.InvalidInput, match="multiple instances"):
        new(volume(), most=2)
    assert len(new(blank(), most=2)) == 1


@pytest.mark.parametrize("item", [{"snapshot_id": VOLUME}, {}])
def test_legacy_block_device_mapping_without_a_volume_id_is_refused(item):
    with pytest.raises(exception.InvalidInput):
        old(item)
    with pytest.raises(exception.InvalidInput, match="different block_device_mapping syntaxes"):
        devices_of({"block_device_mapping": [{"volume_id": VOLUME}], "block_device_mapping_v2": [blank()]}, 1)
