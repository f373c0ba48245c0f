"""Rescue: guests that are started from another disk, so that a user can repair their own disks.

The properties of the image decide: its disk comes before the guest's disks, and the guest has the image's hardware; or
(hw_rescue_device, hw_rescue_bus) it comes after them, and disks and guest stay unchanged."""

import contextlib
import dataclasses
import os

import msgspec

from nova import exception
from nova.objects.images.image import Image
from nova.objects.requirements.hardware_values import BLOCK_BUSES
from nova.objects.requirements.properties import choice
from nova.objects.servers.instance import Instance
from nova.operations.framework import guest_driver
from nova.operations.framework.guest_driver import BootFiles
from nova.virt.images import qemuimg
from nova.virt.libvirt import power
from nova.virt.libvirt.files import directories, disk_making, disks
from nova.virt.libvirt.files.disks import LocalDisk, LocalDisks
from nova.virt.libvirt.guests import Role, define_domain
from nova.virt.libvirt.xml import domain_xml
from nova.virt.libvirt.xml.guest_config import GuestConfig
from nova.virt.libvirt.xml.layout import GuestDisk, rescue_layout

_DEVICE, _BUS = "hw_rescue_device", "hw_rescue_bus"


class Rescue(Role, guest_driver.Rescue):
    def begin(self, instance: Instance, image: Image, files: BootFiles, timeout: int = 0) -> None:
        uuid, guests = instance.uuid, self._guests
        config = guests.config(_hardware(instance, image), is_new=not _is_stable(image))
        kind, bus = _kind(image), _bus(image, config)
        guests.shut_down_if_present(uuid, timeout)
        with guests.locks.hold(uuid):
            guests.give_keys(uuid, instance.block_devices)
            disk_making.make_rescue(instance, image, files, guests.definition_now(uuid), guests.name)
            local = _files(instance, kind)
            disk = GuestDisk(disks.RESCUE, bus, device=kind, local=local.root, boot_order=1)
            previous = guests.previous(uuid)
            own = disks.inspect_disks(instance)
            drive = local.config_drive or own.config_drive
            laid = rescue_layout(config, dataclasses.replace(own, config_drive=drive), instance.block_devices,
                                 previous, disk, _is_stable(image))
            xml = domain_xml.domain_xml(_hardware(instance, image), guests.with_ports(instance, config), local, laid,
                                        guests.settings, previous)
            name = instance.name_by(guests.settings.names)
            with contextlib.suppress(exception.GuestNotFound):
                guests.on_domain(uuid, power.stop)
            guests.call(lambda connection: define_domain(connection, name, xml), uuid)
            guests.on_domain(uuid, power.start)

    def end(self, instance: Instance) -> None:
        uuid, guests = instance.uuid, self._guests
        with guests.locks.hold(uuid):
            if not os.path.exists(os.path.join(directories.directory(uuid), disks.BEFORE_RESCUE)):
                return
            with contextlib.suppress(exception.GuestNotFound):
                guests.on_domain(uuid, power.stop)
            guests.redefine(instance)


def _is_stable(image: Image) -> bool:
    return bool(image.properties.get(_DEVICE) or image.properties.get(_BUS))


def _hardware(instance: Instance, image: Image) -> Instance:
    return instance if _is_stable(image) else msgspec.structs.replace(instance, image=image)


def _files(instance: Instance, kind: str) -> LocalDisks:
    """Return the files of a rescued guest, which replace its own boot files."""
    place = directories.directory(instance.uuid)

    def path(name: str) -> str | None:
        candidate = os.path.join(place, name)
        return candidate if os.path.exists(candidate) else None

    root, drive = os.path.join(place, disks.RESCUE), path(disks.RESCUE_DRIVE)
    return dataclasses.replace(
        disks.inspect_disks(instance), root=LocalDisk(root, device=kind, base=disks.base_of(root)),
        config_drive=LocalDisk(drive, "raw", "cdrom" if qemuimg.is_iso(drive) else "disk") if drive else None,
        kernel=path(disks.RESCUE_KERNEL), ramdisk=path(disks.RESCUE_RAMDISK))


def _kind(image: Image) -> str:
    usual = "cdrom" if image.disk_format == "iso" else "disk"
    return choice(_DEVICE, image.properties.get(_DEVICE), ("disk", "cdrom")) or usual


def _bus(image: Image, config: GuestConfig) -> str:
    usual = config.cdrom_bus if _kind(image) == "cdrom" else config.disk_bus
    return choice(_BUS, image.properties.get(_BUS), BLOCK_BUSES[_kind(image)]) or usual
