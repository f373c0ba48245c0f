"""The block devices of a create request: local disks of the flavor, and existing or new volumes."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from nova import exception
from nova.api.request import is_true, whole
from nova.api.validation.formats import is_uuid
from nova.conf import CONF
from nova.conf.storage import EMBEDDED
from nova.objects.images.image import Image
from nova.objects.requirements import hardware
from nova.objects.requirements.local_disks import FILE_SYSTEMS
from nova.objects.servers.instance import BlockDevice, root_volume
from nova.objects.servers.volume_image import devices_of as devices_of_image

_INVALID = "Block Device Mapping is Invalid: "
_BAD_BOOT = "Boot sequence for the instance and image/block device mapping combination is not valid."
_ROOT_NAMES = ("vda", "/dev/vda")


def devices_of(wanted: Mapping[str, Any], most: int) -> list[BlockDevice]:
    """Return the disks of a request. Raises InvalidInput for invalid disks."""
    old, new = wanted.get("block_device_mapping"), wanted.get("block_device_mapping_v2")
    if old and new:
        raise exception.InvalidInput(
            "Using different block_device_mapping syntaxes is not allowed in the same request.")
    if new:
        devices = [_device(item, wanted) for item in new if not is_true(item.get("no_device"))]
    else:
        devices = [_old_device(item) for item in old or () if not is_true(item.get("no_device"))]
        _choose_root(devices, wanted)
    _check(devices, wanted, most)
    return devices


def with_devices_of(image: Image, requested: Sequence[BlockDevice], most: int) -> list[BlockDevice]:
    """Return the disks of a server that boots from an image of volumes: those of the image and those of the request. A
    disk of the request replaces the image's disk with the same device name. Raises InvalidInput, ImageUnacceptable."""
    instead = {device.device_name for device in requested if device.device_name}
    described = []
    for item in devices_of_image(image):
        try:
            described.append(_device({name: value for name, value in msgspec.to_builtins(item).items()
                                      if value is not None}, {}))
        except exception.InvalidInput as error:
            raise exception.ImageUnacceptable(image_id=image.id, reason=error.message) from error
    # Drop the request's local disk with source_type image: the image has no data of its own, but volumes.
    devices = [*(device for device in described if device.device_name not in instead),
               *(device for device in requested if device.is_volume or device.source != "image")]
    if root_volume(devices) is None:
        raise exception.ImageUnacceptable(image_id=image.id, reason="the image describes no volume to boot from")
    _check(devices, {}, most)
    return devices


def _device(item: Mapping[str, Any], wanted: Mapping[str, Any]) -> BlockDevice:
    source = item.get("source_type")
    if source is None:
        raise exception.InvalidInput(_INVALID + "source_type is missing.")
    destination = item.get("destination_type") or ("local" if source in ("blank", "image") else "volume")
    if item.get("volume_type") and (destination == "local" or source == "volume"):
        raise exception.InvalidInput(_INVALID + "volume_type is not supported for a local disk or an existing volume.")
    device = BlockDevice(
        source=source, destination=destination, boot_index=_boot_index(item.get("boot_index")),
        device_name=_name(item.get("device_name")),
        image_id=_id_of(item, "image_id") if source == "image" else None,
        volume_id=_id_of(item, "volume_id") if source == "volume" else None,
        snapshot_id=_id_of(item, "snapshot_id") if source == "snapshot" else None,
        size_gb=whole(item["volume_size"]) if "volume_size" in item else None,
        guest_format=item.get("guest_format"), disk_bus=item.get("disk_bus"), device_type=item.get("device_type"),
        volume_type=item.get("volume_type") or None, tag=item.get("tag"),
        # A local disk is always deleted with its server.
        delete_on_termination=destination == "local" or is_true(item.get("delete_on_termination", False)))
    try:
        hardware.check_disk(device.device_type, device.disk_bus)
    except exception.InvalidInput as error:
        raise exception.InvalidInput(_INVALID + str(error.kwargs.get("reason", error.message)) + ".") from error
    if destination == "volume":
        _check_volume(device)
    else:
        _check_local(device, wanted)
    return device


def _id_of(item: Mapping[str, Any], name: str) -> str | None:
    return item.get("uuid") or item.get(name)


def _name(given: str | None) -> str | None:
    """Return a device name in the form /dev/vda, also if the request contains only vda."""
    return f"/dev/{given.removeprefix('/dev/')}" if given else None


def _check_volume(device: BlockDevice) -> None:
    # Hosts connect volumes of Cinder only as files (NFS) or over RBD, so SCSI commands (lun) are impossible.
    if device.device_type == "lun" and CONF.volume.driver in (*EMBEDDED, "cinder"):
        raise exception.InvalidInput(_INVALID + "device_type=lun is not supported: the volumes of this cloud are files "
                                     "or RBD images, which do not support SCSI commands.")
    if device.source == "snapshot":
        _check_snapshot(device)
        return
    if device.source == "volume":
        if device.volume_id is None or not is_uuid(device.volume_id):
            raise exception.InvalidInput(_INVALID + "the uuid of the volume is missing or not a uuid.")
        return
    if not device.size_gb:
        raise exception.InvalidInput(_INVALID + (
            "Blank volumes need a non-zero volume_size." if device.source == "blank" else
            "Images with destination_type 'volume' need to have a non-zero size specified"))
    if device.source == "image" and not device.image_id:
        raise exception.InvalidInput(_INVALID + "the uuid of the image is missing.")
    if device.volume_type and CONF.volume.driver in EMBEDDED:
        raise exception.InvalidInput(_INVALID + f"volume type {device.volume_type} could not be found.")


def _check_snapshot(device: BlockDevice) -> None:
    """Check a new volume from a snapshot. Its default size is that of the snapshot's volume."""
    if CONF.volume.driver in EMBEDDED:
        raise exception.InvalidInput(_INVALID + "snapshots of volumes are not available in this cloud.")
    if device.snapshot_id is None or not is_uuid(device.snapshot_id):
        raise exception.InvalidInput(_INVALID + "the uuid of the snapshot is missing or not a uuid.")


def _check_local(device: BlockDevice, wanted: Mapping[str, Any]) -> None:
    if device.source in ("volume", "snapshot"):
        raise exception.InvalidInput(_INVALID + f"Mapping {device.source} to local is not supported.")
    if device.device_type not in (None, "", "disk", "cdrom" if device.source == "image" else "disk"):
        raise exception.InvalidInput(_INVALID + f"device_type={device.device_type} is not supported for a local disk.")
    if device.source == "blank":
        if device.boot_index == 0:
            raise exception.InvalidInput(_BAD_BOOT)
        if device.guest_format not in (None, "", "swap", *FILE_SYSTEMS):
            raise exception.InvalidInput(_INVALID + f"guest_format={device.guest_format} is not supported, use swap or "
                                         f"one of {', '.join(FILE_SYSTEMS)}.")
    elif device.boot_index != 0:
        raise exception.InvalidInput(_INVALID + "Mapping image to local is not supported.")
    elif device.image_id != wanted.get("imageRef"):
        raise exception.InvalidInput(_INVALID + "a local disk from an image can only be the root disk, from the "
                                     "image in imageRef.")


def _boot_index(value: Any) -> int | None:
    """Return the boot index, or None for null and negative numbers, which mean "not bootable"."""
    if value is None:
        return None
    text = str(value)
    return None if text.startswith("-") else whole(text)


def _old_device(item: Mapping[str, Any]) -> BlockDevice:
    """Parse a device of block_device_mapping: a volume, a snapshot, or the flavor's disk "swap" or "ephemeralN"."""
    name, virtual = _name(item.get("device_name")), item.get("virtual_name") or ""
    ends = is_true(item.get("delete_on_termination", False))
    if item.get("snapshot_id"):
        made = BlockDevice(source="snapshot", destination="volume", snapshot_id=item["snapshot_id"], device_name=name,
                           size_gb=whole(item["volume_size"]) if "volume_size" in item else None,
                           delete_on_termination=ends)
        _check_snapshot(made)
        return made
    if item.get("volume_id"):
        return BlockDevice(source="volume", destination="volume", volume_id=item["volume_id"], device_name=name,
                           delete_on_termination=ends)
    if virtual == "swap":
        return BlockDevice(source="blank", guest_format="swap", device_name=name)
    if virtual.startswith("ephemeral"):
        return BlockDevice(source="blank", device_name=name)
    raise exception.InvalidInput(_INVALID + "neither volume_id nor snapshot_id is given.")


def _choose_root(devices: Sequence[BlockDevice], wanted: Mapping[str, Any]) -> None:
    """Set boot_index, which block_device_mapping does not have. If the request has no image, the root disk is the
    volume with the device name vda, or else the first volume."""
    volumes = [device for device in devices if device.is_volume]
    if volumes and not wanted.get("imageRef"):
        root = next((device for device in volumes if device.device_name in _ROOT_NAMES), volumes[0])
        root.boot_index = 0


def _check(devices: Sequence[BlockDevice], wanted: Mapping[str, Any], most: int) -> None:
    if most > 1 and any(device.volume_id for device in devices):
        raise exception.InvalidInput("Cannot attach one or more volumes to multiple instances")
    indexes = sorted(device.boot_index for device in devices if device.boot_index is not None)
    if wanted.get("imageRef") and root_volume(devices) is None and 0 not in indexes:
        indexes = [0, *indexes]
    # One disk must be bootable, and the boot order must have no gaps.
    if (devices or wanted.get("imageRef")) and indexes != list(range(len(indexes) or 1)):
        raise exception.InvalidInput(_BAD_BOOT)
    if sum(device.guest_format == "swap" for device in devices) > 1:
        raise exception.InvalidInput(_INVALID + "More than one swap drive requested.")
    for what, given in (("device_name", [device.device_name for device in devices if device.device_name]),
                        ("tag", [device.tag for device in devices if device.tag]),
                        ("volume", [device.volume_id for device in devices if device.volume_id])):
        if len(set(given)) != len(given):
            raise exception.InvalidInput(_INVALID + f"the same {what} is given twice.")
