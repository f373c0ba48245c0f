"""Layout of a guest's disks: order, bus and device names.

A disk keeps its name from the guest's previous definition. A new disk gets the requested name of its block device, or
else the first free name."""

import dataclasses
import itertools
import re
import string
import uuid
from collections.abc import Iterator, Sequence
from xml.etree.ElementTree import Element

from nova import exception
from nova.objects.requirements.hardware_values import BLOCK_BUSES, DEVICE_TYPES
from nova.objects.servers.instance import BlockDevice
from nova.objects.volumes.volume import VolumeConnection
from nova.virt.libvirt.files.disks import LocalDisk, LocalDisks
from nova.virt.libvirt.xml.definition import Definition
from nova.virt.libvirt.xml.guest_config import GuestConfig

_SECRETS = uuid.UUID("0f2c7f8e-6f0b-4e0e-9a43-6f1d8a1c52e7")
_PREFIXES = {"virtio": "vd", "ide": "hd", "fdc": "fd"}
_NAME = re.compile(r"(?:/dev/)?(?:xvd|[vshf]d)([a-z]+)")


@dataclasses.dataclass(frozen=True)
class GuestDisk:
    """A disk of a guest: a local file, a connected volume, or the ``unchanged`` element of the previous definition.
    ``target``: name in the guest (initially the requested name). ``boot_index``: requested position in the boot order
    (None: not bootable); ``boot_order``: resulting position, from 1 (0: none). ``secret``: libvirt's id of the key."""

    key: str
    bus: str
    target: str = ""
    device: str = "disk"
    local: LocalDisk | None = None
    volume: VolumeConnection | None = None
    unchanged: Element | None = None
    boot_index: int | None = None
    boot_order: int = 0
    secret: str = ""


def layout(config: GuestConfig, local: LocalDisks, block_devices: Sequence[BlockDevice],
           previous: Definition) -> tuple[GuestDisk, ...]:
    """Return all disks with their positions in the boot order, the boot disk first. Raises InvalidDiskInfo for a volume
    that is not connected to this host."""
    wanted = list(_wanted(config, local, block_devices, previous))
    sequence = sorted((disk for disk in wanted if disk.boot_index is not None), key=lambda disk: disk.boot_index or 0)
    order = {disk.key: place for place, disk in enumerate(sequence, 1)}
    return _named([dataclasses.replace(disk, boot_order=order.get(disk.key, 0)) for disk in wanted], previous)


def rescue_layout(config: GuestConfig, local: LocalDisks, block_devices: Sequence[BlockDevice], previous: Definition,
                  rescue: GuestDisk, stable: bool) -> tuple[GuestDisk, ...]:
    """Return the layout of a rescued guest. ``stable``: the rescue disk is the last disk, and the guest's own disks
    keep their names. Otherwise the rescue disk is the first disk and the guest's root disk the second."""
    wanted = list(_wanted(config, local, block_devices, previous))
    if stable:
        return _named([*wanted, rescue], previous)
    first = [rescue, *wanted]
    for place, disk in enumerate(first[:2]):
        first[place] = dataclasses.replace(disk, target=f"{_PREFIXES.get(disk.bus, 'sd')}{'ab'[place]}")
    return _named(first, Definition())


def _named(wanted: Sequence[GuestDisk], previous: Definition) -> tuple[GuestDisk, ...]:
    names: dict[str, str] = {}
    taken: set[str] = set()

    def give(disk: GuestDisk, name: str) -> None:
        if name and name not in taken and disk.key not in names:
            names[disk.key] = name
            taken.add(name)

    for disk in wanted:
        previous_disk = previous.disks.get(disk.key)
        if previous_disk is not None and previous_disk.bus == disk.bus:
            give(disk, previous_disk.target)
    for disk in wanted:
        give(disk, _with_prefix(disk))
    for disk in wanted:
        for name in _names(_PREFIXES.get(disk.bus, "sd")):
            if disk.key in names:
                break
            give(disk, name)
    return tuple(dataclasses.replace(disk, target=names[disk.key]) for disk in wanted)


def volume_disk(config: GuestConfig, device: BlockDevice, definitions: Sequence[Definition]) -> GuestDisk:
    """Return the disk of a volume to attach, with a name that is free in the ``definitions`` (live and persistent)."""
    wanted = _volume(config, device, Definition())
    taken = {disk.target for definition in definitions for disk in definition.disks.values()}
    names = itertools.chain([_with_prefix(wanted)], _names(_PREFIXES.get(wanted.bus, "sd")))
    return dataclasses.replace(wanted, target=next(name for name in names if name and name not in taken))


def serial_of(device: BlockDevice) -> str:
    """Return the serial number that identifies a volume in the guest and in Nova."""
    return device.serial or (device.connection.serial if device.connection else "") or device.volume_id or ""


TPM = "tpm"  # used in place of a volume id for the secret of a TPM


def secret_of(server: str, volume: str) -> str:
    """Return libvirt's id of the secret of a server's encrypted volume, or of its TPM. It is the same on all hosts."""
    return str(uuid.uuid5(_SECRETS, f"{server}/{volume}"))


def _wanted(config: GuestConfig, local: LocalDisks, block_devices: Sequence[BlockDevice],
            previous: Definition) -> Iterator[GuestDisk]:
    volumes = [device for device in block_devices if device.is_volume and device.volume_id]
    volumes.sort(key=lambda device: device.boot_index != 0)
    own = [device for device in block_devices if not device.is_volume]
    blank = [device for device in own if device.is_ephemeral]
    if local.root is not None:
        root = next((device for device in own if device.source == "image"), None)
        yield dataclasses.replace(_file(config, local.root, root), target="", boot_index=0)
    elif volumes and volumes[0].boot_index == 0:
        yield _volume(config, volumes.pop(0), previous)
    for ephemeral, requested in itertools.zip_longest(local.ephemerals, blank[:len(local.ephemerals)]):
        yield _file(config, ephemeral, requested)
    if local.swap is not None:
        swap = next((device for device in own if device.guest_format == "swap"), None)
        yield dataclasses.replace(_file(config, local.swap, swap), target="")
    for device in volumes:
        yield _volume(config, device, previous)
    if local.config_drive is not None:
        yield _file(config, local.config_drive, None)


def _file(config: GuestConfig, disk: LocalDisk, requested: BlockDevice | None) -> GuestDisk:
    """Return a local disk, with the bus and boot position that its block device requests."""
    kind = disk.device
    if requested is not None and requested.device_type in DEVICE_TYPES and kind == "disk":
        kind = requested.device_type
    index = requested.boot_index if requested is not None else None
    target = (requested.device_name or "") if requested is not None else ""
    return GuestDisk(disk.name, _bus(config, kind, requested), target, kind, local=disk, boot_index=index)


def _volume(config: GuestConfig, device: BlockDevice, previous: Definition) -> GuestDisk:
    key = serial_of(device)
    kind = device.device_type if device.device_type in DEVICE_TYPES else "disk"
    previous_disk = previous.disks.get(key)
    if device.connection is None:
        if previous_disk is None:
            raise exception.InvalidDiskInfo(reason=f"volume {device.volume_id} is not connected to the host")
        return GuestDisk(key, previous_disk.bus, previous_disk.target, kind, unchanged=previous_disk.element,
                         boot_index=device.boot_index)
    secret = secret_of(config.uuid, device.volume_id or "") if device.connection.key else ""
    return GuestDisk(key, _bus(config, kind, device), device.device_name or "", kind, volume=device.connection,
                     boot_index=device.boot_index, secret=secret)


def _bus(config: GuestConfig, kind: str, requested: BlockDevice | None) -> str:
    if requested is not None and requested.disk_bus:
        return requested.disk_bus
    usual = {"cdrom": config.cdrom_bus, "floppy": config.floppy_bus}
    if kind == "lun" and config.disk_bus not in BLOCK_BUSES["lun"]:
        return "scsi"
    return usual.get(kind, config.disk_bus)


def _with_prefix(disk: GuestDisk) -> str:
    """Return the requested name with the prefix of this bus: /dev/vdc becomes sdc."""
    match = _NAME.fullmatch(disk.target)
    return _PREFIXES.get(disk.bus, "sd") + match[1] if match else ""


def _names(prefix: str) -> Iterator[str]:
    for length in (1, 2):
        for letters in itertools.product(string.ascii_lowercase, repeat=length):
            yield prefix + "".join(letters)
