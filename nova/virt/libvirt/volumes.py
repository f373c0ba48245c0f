"""Volumes of guests: attaching, detaching and extension.

For an extension, QEMU grows a file to the requested size; an RBD image already has that size. A stopped guest sees the
new size at its next start."""

from __future__ import annotations

import logging
import xml.etree.ElementTree as ET

import libvirt

from nova import exception
from nova.objects.servers.instance import BlockDevice, Instance
from nova.operations.framework import guest_driver
from nova.virt.libvirt.guests import Guests, Role
from nova.virt.libvirt.hotplug import Finder, Hotplug, definitions
from nova.virt.libvirt.xml import device_xml
from nova.virt.libvirt.xml.definition import Definition
from nova.virt.libvirt.xml.layout import serial_of, volume_disk

LOG = logging.getLogger(__name__)

_GIB = 1 << 30
# The header of an encrypted volume has 2 to 16 MiB.
_LARGEST_HEADER = 64 << 20
_BYTES = libvirt.VIR_DOMAIN_BLOCK_RESIZE_BYTES


class Volumes(Role, guest_driver.Volumes):
    def __init__(self, guests: Guests) -> None:
        super().__init__(guests)
        self._hotplug = Hotplug(guests)

    def attach(self, instance: Instance, device: BlockDevice) -> None:
        if device.connection is None:
            raise exception.InvalidDiskInfo(reason=f"volume {device.volume_id} is not connected to the host")
        config = self._guests.config(instance)

        def build(current: list[Definition]) -> ET.Element:
            disk = volume_disk(config, device, current)
            return device_xml.add_disk(ET.Element("devices"), disk, config, self._guests.settings)

        self._hotplug.attach(instance.uuid, f"volume {device.volume_id}", _finder(device), build, device)

    def detach(self, instance: Instance, device: BlockDevice) -> None:
        self._hotplug.detach(instance.uuid, f"volume {device.volume_id}", _finder(device))
        with self._guests.locks.hold(instance.uuid):
            self._guests.forget_keys(instance.uuid)

    def extend(self, instance: Instance, device: BlockDevice, size_gb: int) -> bool:
        uuid = instance.uuid
        with self._guests.locks.hold(uuid):
            try:
                target = self._target(uuid, device)
                if target is None:
                    return False
                there = self._size(uuid, target)
                wanted = _wanted(device, there, size_gb)
                if there < wanted:
                    self._guests.on_domain(uuid, lambda domain: domain.blockResize(target, wanted, _BYTES))
                    LOG.info("[instance: %s] Resized disk %s of the guest to %d bytes, from %d bytes", uuid, target,
                             wanted, there)
            except exception.GuestNotFound:
                return False
            except libvirt.libvirtError as error:
                raise exception.VolumeExtendFailed(
                    volume_id=device.volume_id, reason=error.get_error_message()) from error
        return True

    def is_extended(self, instance: Instance, device: BlockDevice, size_gb: int) -> bool:
        uuid = instance.uuid
        with self._guests.locks.hold(uuid):
            try:
                target = self._target(uuid, device)
                there = self._size(uuid, target) if target else 0
                return target is not None and there >= _wanted(device, there, size_gb)
            except (exception.GuestNotFound, exception.VolumeExtendFailed):
                return False

    # --- helpers -----------------------------------------------------------------------------------
    def _target(self, uuid: str, device: BlockDevice) -> str | None:
        """Return the disk of a running guest, or None if it is stopped. Raises GuestNotFound, VolumeExtendFailed."""
        live, _config = definitions(self._guests, uuid)
        disk = live.disks.get(serial_of(device)) if live is not None else None
        if live is not None and disk is None:
            raise exception.VolumeExtendFailed(volume_id=device.volume_id, reason="the guest does not have the volume")
        return disk.target if disk is not None else None

    def _size(self, uuid: str, target: str) -> int:
        """Return the size of the disk in the guest, in bytes."""
        return int(self._guests.on_domain(uuid, lambda domain: domain.blockInfo(target))[0])


def _finder(device: BlockDevice) -> Finder:
    def find(current: Definition) -> ET.Element | None:
        existing = current.disks.get(serial_of(device))
        return existing.element if existing is not None else None

    return find


def _wanted(device: BlockDevice, there: int, size_gb: int) -> int:
    """Return the new size in bytes as the guest sees it: ``size_gb`` less the header of an encrypted volume. The header
    size is derived from the current size ``there``. Raises VolumeExtendFailed."""
    header = -there % _GIB if device.encryption else 0
    if header > _LARGEST_HEADER:
        raise exception.VolumeExtendFailed(
            volume_id=device.volume_id, reason=f"the volume is encrypted, and the disk of the guest has {there} bytes")
    return size_gb * _GIB - header
