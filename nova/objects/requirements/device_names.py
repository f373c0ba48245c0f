"""The device names of a server's disks in the API and in guests, which never change once assigned."""

import itertools
import re
import string
from collections.abc import Iterator, Sequence

from nova import exception
from nova.objects.requirements import local_disks
from nova.objects.servers.instance import BlockDevice, Instance

_PREFIXES = {"virtio": "vd", "ide": "hd", "fdc": "fd"}
_NAME = re.compile(r"/dev/(?:xvd|[vsh]d)([a-z]+)")


def assign(instance: Instance, devices: Sequence[BlockDevice]) -> None:
    """Assign a name to each of these new volumes of the server: the requested one, or the next free one. Names have the
    prefix of the bus: /dev/sdc becomes /dev/vdc on virtio. Raises DevicePathInUse."""
    properties = instance.image.properties if instance.image else {}
    bus = str(properties.get("hw_disk_bus") or "virtio")
    new = {id(device) for device in devices}
    taken = {device.device_name for device in instance.volumes if id(device) not in new}
    taken |= set(_local_names(instance, bus))
    unnamed = []
    for device in sorted(devices, key=lambda device: device.boot_index != 0):
        usual = str(properties.get("hw_cdrom_bus") or "ide") if device.device_type == "cdrom" else bus
        prefix = _PREFIXES.get(device.disk_bus or ("fdc" if device.device_type == "floppy" else usual), "sd")
        match = _NAME.fullmatch(device.device_name or "")
        if device.boot_index == 0:
            name = f"/dev/{prefix}a"
        elif match:
            name = f"/dev/{prefix}{match[1]}"
        else:
            unnamed.append((device, prefix))
            continue
        if name in taken:
            raise exception.DevicePathInUse(path=device.device_name or name, instance_uuid=instance.uuid)
        device.device_name = name
        taken.add(name)
    for device, prefix in unnamed:
        device.device_name = next(name for name in _names(prefix) if name not in taken)
        taken.add(device.device_name)


def _local_names(instance: Instance, bus: str) -> Iterator[str]:
    """Return the names of the server's local disks: root, ephemeral disks, swap, in this order."""
    ephemerals = len(local_disks.ephemerals(instance.block_devices, instance.flavor))
    for disk in instance.block_devices:
        if disk.source == "image" and not disk.is_volume and disk.disk_bus:
            yield f"/dev/{_PREFIXES.get(disk.disk_bus, 'sd')}a"
    # The boot disk has the first name, even if it is a volume.
    yield from itertools.islice(_names(_PREFIXES.get(bus, "sd")), int(instance.volume_backed),
                                1 + ephemerals + int(instance.flavor.swap > 0))


def _names(prefix: str) -> Iterator[str]:
    for length in itertools.count(1):
        for letters in itertools.product(string.ascii_lowercase, repeat=length):
            yield f"/dev/{prefix}{''.join(letters)}"
