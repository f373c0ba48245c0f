"""The buses of a server's disks: how many disks a bus takes, and the hardware that a bus needs."""

import collections
from collections.abc import Iterator

from nova import exception
from nova.objects.accounts.flavor import Flavor
from nova.objects.images.image import Image
from nova.objects.requirements import local_disks
from nova.objects.requirements.hardware import Hardware, hardware, is_i440fx
from nova.objects.requirements.properties import Properties
from nova.objects.servers.instance import Instance, root_volume

# An i440FX board has one IDE controller of two channels and one floppy controller; libvirt cannot add another one.
_MAX_DISKS = {"ide": 4, "fdc": 2}


def check(instance: Instance, flavor: Flavor, image: Image | None) -> None:
    """Check the buses of all disks that a new guest gets. Raises InvalidInput naming the bus."""
    wanted = hardware(Properties(flavor, image))
    counts = collections.Counter(_buses(instance, flavor, wanted))
    if counts["usb"] and wanted.usb_model == "none":
        raise exception.InvalidInput(reason="disks on the bus usb and hw_usb_model=none exclude each other")
    if counts["ide"] and "q35" in wanted.requested_machine:
        raise exception.InvalidInput(reason="disks on the bus ide and hw_machine_type="
                                            f"{wanted.requested_machine} exclude each other")
    for bus, most in _MAX_DISKS.items():
        if counts[bus] > most:
            raise exception.InvalidInput(
                reason=f"the server has {counts[bus]} disks on the bus {bus}, which takes {most}")


def _buses(instance: Instance, flavor: Flavor, wanted: Hardware) -> Iterator[str]:
    """Return the bus of each disk, "" if the host chooses it."""
    cdrom_bus = wanted.cdrom_bus or ("ide" if is_i440fx(wanted.requested_machine) else "")
    usual = {"disk": wanted.disk_bus, "cdrom": cdrom_bus, "floppy": wanted.floppy_bus}
    root_type = "cdrom" if wanted.iso else "disk"
    devices = instance.block_devices
    for device in devices:
        is_image = device.source == "image" and not device.is_volume
        kind = device.device_type or (root_type if is_image else "disk")
        yield device.disk_bus or usual.get(kind, "")
    local = [device for device in devices if not device.is_volume]
    if root_volume(devices) is None and not any(device.source == "image" for device in local):
        yield usual[root_type]
    unlisted = len(local_disks.ephemerals(devices, flavor)) - sum(device.is_ephemeral for device in local)
    unlisted += int(flavor.swap > 0 and not any(device.guest_format == "swap" for device in local))
    yield from [wanted.disk_bus] * unlisted
    if instance.config_drive:
        yield cdrom_bus
