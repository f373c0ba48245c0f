"""Images without data that describe the volumes of a server: writing and parsing of their properties. The properties
``block_device_mapping`` (JSON), ``bdm_v2`` and ``root_device_name`` are those of other OpenStack clouds and tools, so
that images can be exchanged."""

from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from nova import exception
from nova.objects.base import Object
from nova.objects.images.image import Image
from nova.objects.servers.instance import BlockDevice, Instance
from nova.objects.volumes.volume import VolumeSnapshot

MAPPING = "block_device_mapping"
_VERSION, _ROOT = "bdm_v2", "root_device_name"
PROPERTIES = frozenset({MAPPING, _VERSION, _ROOT})


_Text = Annotated[str, Meta(max_length=255)]
_Name = Annotated[str, Meta(min_length=1, max_length=255, pattern="^[a-zA-Z0-9._/-]*$")]
_Tag = Annotated[str, Meta(min_length=1, max_length=60, pattern="^[^,/]*$")]


class DeviceOfImage(Object, kw_only=True):
    """A device in the format of a create request (block_device_mapping_v2), with the same limits, because users can
    write the properties of images."""

    source_type: Literal["volume", "image", "snapshot", "blank"]
    destination_type: Literal["local", "volume"] | None = None
    boot_index: Annotated[int, Meta(ge=-1, le=255)] | None = None
    device_name: _Name | None = None
    snapshot_id: _Text | None = None
    volume_id: _Text | None = None
    image_id: _Text | None = None
    volume_size: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    volume_type: _Text | None = None
    guest_format: _Text | None = None
    disk_bus: _Text | None = None
    device_type: _Text | None = None
    tag: _Tag | None = None
    delete_on_termination: bool | None = None
    no_device: bool | None = None


_Devices = Annotated[list[DeviceOfImage], Meta(max_length=255)]


def describes_volumes(image: Image) -> bool:
    return bool(image.properties.get(MAPPING))


def properties_of(instance: Instance, snapshots: Mapping[str, VolumeSnapshot]) -> dict[str, str]:
    """Return the properties of an image of the server. ``snapshots``: by volume id."""
    root = next((device.device_name for device in instance.block_devices if device.boot_index == 0), None)
    devices = [_described(device, snapshots) for device in instance.block_devices
               if not device.is_volume or device.volume_id in snapshots]
    return {MAPPING: msgspec.json.encode(devices).decode(), _VERSION: "True", _ROOT: root or instance.root_device_name}


def _described(device: BlockDevice, snapshots: Mapping[str, VolumeSnapshot]) -> DeviceOfImage:
    described = DeviceOfImage(
        source_type=device.source, destination_type=device.destination,  # type: ignore[arg-type]
        boot_index=-1 if device.boot_index is None else device.boot_index, device_name=device.device_name,
        volume_size=device.size_gb, volume_type=device.volume_type, guest_format=device.guest_format,
        disk_bus=device.disk_bus, device_type=device.device_type, tag=device.tag,
        delete_on_termination=device.delete_on_termination)
    if device.is_volume:
        snapshot = snapshots[device.volume_id or ""]
        described.source_type, described.snapshot_id = "snapshot", snapshot.uuid
        described.volume_size = snapshot.size_gb
    return described


def devices_of(image: Image) -> list[DeviceOfImage]:
    """Return the devices that the image describes. Raises ImageUnacceptable."""
    try:
        devices = msgspec.convert(msgspec.json.decode(image.properties[MAPPING]), _Devices, strict=False)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise exception.ImageUnacceptable(
            image_id=image.id, reason=f"its property {MAPPING} does not describe volumes: {error}") from error
    return [device for device in devices if not device.no_device]


def without_description(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties of an image that a server gets from it: without its description of volumes."""
    return {name: value for name, value in properties.items() if name not in PROPERTIES}
