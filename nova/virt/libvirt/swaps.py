"""Replacement of a volume of a running guest: QEMU mirrors the volume, then switches to the new volume.

Writes of the guest during the copy go to both. libvirt changes the persistent definition together with the live one, so
a guest that stops at any moment starts with the volume that it had last."""

from __future__ import annotations

import logging
import time
import xml.etree.ElementTree as ET

import libvirt

from nova import exception
from nova.objects.servers.instance import BlockDevice, Instance
from nova.operations.framework import guest_driver
from nova.operations.framework.guest_driver import Cancelled
from nova.virt.libvirt.guests import Role
from nova.virt.libvirt.hotplug import definitions, end_block_job, lasting, text_of
from nova.virt.libvirt.xml import device_xml
from nova.virt.libvirt.xml.definition import KnownDisk
from nova.virt.libvirt.xml.layout import serial_of, volume_disk
from nova.virt.libvirt.xml.xmltree import attribute

LOG = logging.getLogger(__name__)

# Seconds between two polls of a running copy.
_POLL_INTERVAL = 0.5
# The new volume already exists, and no libvirt job outlives the guest's process.
_COPY = libvirt.VIR_DOMAIN_BLOCK_COPY_REUSE_EXT | libvirt.VIR_DOMAIN_BLOCK_COPY_TRANSIENT_JOB
_PIVOT = libvirt.VIR_DOMAIN_BLOCK_JOB_ABORT_PIVOT
# Attributes of a source that locate the data of a disk.
_PLACES = ("file", "dev", "protocol", "name")


class VolumeSwaps(Role, guest_driver.VolumeSwaps):
    def swap(self, instance: Instance, old: BlockDevice, new: BlockDevice, cancelled: Cancelled) -> None:
        if new.connection is None:
            raise exception.InvalidDiskInfo(reason=f"volume {new.volume_id} is not connected to the host")
        uuid, key, wanted = instance.uuid, serial_of(new), self._wanted(instance, new)
        with self._guests.locks.hold(uuid):
            self._guests.give_keys(uuid, [new])
        try:
            begun = False
            while not self._advance(uuid, wanted, key, begun, cancelled):
                begun = True
                time.sleep(_POLL_INTERVAL)
            self._define(uuid, key)
        except libvirt.libvirtError as error:
            raise exception.VolumeSwapFailed(volume_id=old.volume_id, reason=error.get_error_message()) from error
        LOG.info("[instance: %s] Replaced a volume of the guest: volume %s instead of %s", instance.uuid, new.volume_id,
                 old.volume_id)

    def cancel(self, instance: Instance, new: BlockDevice) -> bool:
        uuid, wanted = instance.uuid, self._wanted(instance, new)
        with self._guests.locks.hold(uuid):
            try:
                live, config = definitions(self._guests, uuid)
                disk = (live or config).disks.get(serial_of(new))
                if live is not None and disk is not None:
                    self._end(uuid, disk, 0)
                    live, config = definitions(self._guests, uuid)
                    disk = (live or config).disks.get(serial_of(new))
                self._guests.forget_keys(uuid)
            except exception.GuestNotFound:
                return False
        return disk is not None and _place(disk.element) == _place(wanted)

    # --- helpers -----------------------------------------------------------------------------------
    def _wanted(self, instance: Instance, new: BlockDevice) -> ET.Element:
        """Return the disk with the new volume."""
        if new.connection is None:
            return ET.Element("disk")
        config = self._guests.config(instance)
        return device_xml.add_disk(ET.Element("devices"), volume_disk(config, new, []), config, self._guests.settings)

    def _advance(self, uuid: str, wanted: ET.Element, key: str, begun: bool, cancelled: Cancelled) -> bool:
        """Execute the next step; return True if the guest has the new volume. The guest's lock is free between steps.
        ``begun``: a copy was started. Raises GuestNotRunning, VolumeSwapFailed."""
        with self._guests.locks.hold(uuid):
            live, config = definitions(self._guests, uuid)
            disk = (live or config).disks.get(key)
            if disk is None:
                raise exception.VolumeSwapFailed(volume_id=key, reason="the guest does not have the volume")
            if _place(disk.element) == _place(wanted):
                return True
            if live is None:
                raise exception.GuestNotRunning(instance_uuid=uuid)
            mirror = disk.element.find("mirror")
            copies = mirror is not None and _place(mirror) == _place(wanted)
            if cancelled.is_set():
                self._end(uuid, disk, 0)
                raise exception.VolumeSwapFailed(volume_id=key, reason="the swap was cancelled")
            if not copies and begun:
                raise exception.VolumeSwapFailed(volume_id=key, reason="the copy of the volume's data was aborted")
            if not copies:
                self._begin(uuid, disk, wanted)
            elif mirror is not None and mirror.get("ready") == "yes":
                self._end(uuid, disk, _PIVOT)
            return False

    def _begin(self, uuid: str, disk: KnownDisk, wanted: ET.Element) -> None:
        self._end(uuid, disk, 0)  # A copy to another volume.
        text = text_of(wanted)
        self._guests.on_domain(uuid, lambda domain: domain.blockCopy(disk.target, text, None, _COPY))
        LOG.info("[instance: %s] Started copying disk %s to another volume", uuid, disk.target)

    def _end(self, uuid: str, disk: KnownDisk, flags: int) -> None:
        """End the copy with the present volume or (_PIVOT) the new one; succeed if there is no copy."""
        if disk.element.find("mirror") is not None:
            self._guests.on_domain(uuid, lambda domain: end_block_job(domain, disk.target, flags))

    def _define(self, uuid: str, key: str) -> None:
        """Update the persistent definition of the disk to match the live definition, and remove unused secrets."""
        with self._guests.locks.hold(uuid):
            live, config = definitions(self._guests, uuid)
            there, defined = (live or config).disks.get(key), config.disks.get(key)
            if there is not None and (defined is None or _place(defined.element) != _place(there.element)):
                item = text_of(lasting(there.element))
                self._guests.on_domain(uuid, lambda domain: domain.updateDeviceFlags(
                    item, libvirt.VIR_DOMAIN_AFFECT_CONFIG))
            self._guests.forget_keys(uuid)


def _place(item: ET.Element) -> list[str]:
    """Return the attributes that identify the source of a disk or of its mirror."""
    return [attribute(item, "source", name) for name in _PLACES]
