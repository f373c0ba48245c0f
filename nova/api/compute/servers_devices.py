"""The block devices of a create request. Volumes need a volume service, which there is none of yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nova import exception
from nova.api.fields import is_true
from nova.api.request import whole
from nova.objects.instance import BlockDevice

_NO_VOLUMES = "Volumes are not available in this cloud: {what}."
_BAD_BOOT = ("Boot sequence for the instance and image/block device mapping combination is not valid.")


def devices_of(wanted: Mapping[str, Any], most: int) -> list[BlockDevice]:
    """The disks that a request names. Raises InvalidInput for what cannot be, and for volumes."""
    old, new = wanted.get("block_device_mapping"), wanted.get("block_device_mapping_v2")
    if old and new:
        raise exception.InvalidInput(
            "Using different block_device_mapping syntaxes is not allowed in the same request.")
    if new:
        return _checked([_device(item, wanted, most) for item in new if not is_true(item.get("no_device"))], new)
    found = [_old_device(item, most) for item in old or () if not is_true(item.get("no_device"))]
    return _checked([device for device in found if device is not None], [])


def _volume(what: str, most: int) -> exception.InvalidInput:
    if most > 1:
        return exception.InvalidInput("Cannot attach one or more volumes to multiple instances")
    return exception.InvalidInput(_NO_VOLUMES.format(what=what))


def _device(item: Mapping[str, Any], wanted: Mapping[str, Any], most: int) -> BlockDevice:
    source = item.get("source_type")
    if source is None:
        raise exception.InvalidInput("Block Device Mapping is Invalid: source_type is missing.")
    destination = item.get("destination_type") or ("local" if source in ("blank", "image") else "volume")
    _check_volume_type(item, source, destination)
    if source in ("blank", "image") and destination == "volume" and not item.get("volume_size"):
        raise exception.InvalidInput(
            "Block Device Mapping is Invalid: Blank volumes and images that become volumes need a volume_size."
            if source == "blank" else
            "Block Device Mapping is Invalid: Images with destination_type 'volume' need to have a non-zero size "
            "specified")
    if source in ("volume", "snapshot") and destination == "local":
        raise exception.InvalidInput(f"Block Device Mapping is Invalid: Mapping {source} to local is not supported.")
    if destination == "volume":
        raise _volume(f"block_device_mapping_v2 with source_type {source} and destination_type volume", most)
    boot_index = _boot_index(item.get("boot_index"))
    image_id = item.get("uuid") or item.get("image_id")
    if source == "image":
        if boot_index != 0:
            raise exception.InvalidInput("Block Device Mapping is Invalid: Mapping image to local is not supported.")
        if image_id != wanted.get("imageRef"):
            raise exception.InvalidInput("Block Device Mapping is Invalid: a local disk from an image can only be the "
                                         "root disk, of the image that imageRef names.")
    elif boot_index == 0:
        raise exception.InvalidInput(_BAD_BOOT)
    return BlockDevice(
        source=source, destination="local", boot_index=boot_index, device_name=item.get("device_name"),
        image_id=image_id if source == "image" else None,
        size_gb=whole(item["volume_size"]) if "volume_size" in item else None,
        guest_format=item.get("guest_format"), disk_bus=item.get("disk_bus"), device_type=item.get("device_type"),
        delete_on_termination=True, tag=item.get("tag"))


def _check_volume_type(item: Mapping[str, Any], source: str, destination: str) -> None:
    if item.get("volume_type") and (destination == "local" or source == "volume"):
        raise exception.InvalidInput("Block Device Mapping is Invalid: volume_type is not supported for a local disk "
                                     "or an existing volume.")


def _boot_index(value: Any) -> int | None:
    """None and negative numbers mean: not to boot from."""
    if value is None:
        return None
    text = str(value)
    return None if text.startswith("-") else whole(text)


def _old_device(item: Mapping[str, Any], most: int) -> BlockDevice | None:
    """The first syntax: volumes, or the flavor's own "swap" and "ephemeralN" disks by name."""
    if item.get("volume_id") or item.get("snapshot_id"):
        raise _volume("block_device_mapping with volume_id or snapshot_id", most)
    name = item.get("virtual_name") or ""
    if name == "swap":
        return BlockDevice(source="blank", guest_format="swap", device_name=item.get("device_name"))
    if name.startswith("ephemeral"):
        return BlockDevice(source="blank", device_name=item.get("device_name"))
    raise exception.InvalidInput("Block Device Mapping is Invalid: neither volume_id nor snapshot_id is given.")


def _checked(devices: Sequence[BlockDevice], given: Sequence[Mapping[str, Any]]) -> list[BlockDevice]:
    indexes = sorted(device.boot_index for device in devices if device.boot_index is not None)
    # With devices there must be a disk to boot from, and the order must have no gaps.
    if indexes and indexes != list(range(len(indexes))):
        raise exception.InvalidInput(_BAD_BOOT)
    if sum(device.guest_format == "swap" for device in devices) > 1:
        raise exception.InvalidInput("Block Device Mapping is Invalid: More than one swap drive requested.")
    names = [device.device_name for device in devices if device.device_name]
    if len(set(names)) != len(names):
        raise exception.InvalidInput("Block Device Mapping is Invalid: the same device_name is given twice.")
    tags = [item["tag"] for item in given if item.get("tag")]
    if len(set(tags)) != len(tags):
        raise exception.InvalidInput("Block Device Mapping is Invalid: the same tag is given twice.")
    return list(devices)
