"""The files of volumes with snapshots under running guests: a new file to write to, or fewer backing files.

libvirt changes the persistent definition together with the live one. Only libvirt's own list of a disk's files is used,
whatever the files themselves name; names in files have no directories, for the hosts that read them next."""

from __future__ import annotations

import logging
import os
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterable

import libvirt

from nova import exception
from nova.objects.servers.instance import BlockDevice, Instance
from nova.operations.framework import guest_driver
from nova.operations.framework.guest_driver import Cancelled
from nova.virt.libvirt.guests import Guests, Role
from nova.virt.libvirt.hotplug import definitions, end_block_job
from nova.virt.libvirt.snapshots import Snapshots
from nova.virt.libvirt.xml.definition import KnownDisk
from nova.virt.libvirt.xml.layout import serial_of
from nova.virt.libvirt.xml.xmltree import element
from nova.virt.volume_files import NOT_ON_IT, files_of, is_merged, was_merged

LOG = logging.getLogger(__name__)

# Seconds between two polls of QEMU's job.
_POLL_INTERVAL = 0.5
# The file already exists, and libvirt keeps no list of snapshots.
_TAKE = (libvirt.VIR_DOMAIN_SNAPSHOT_CREATE_DISK_ONLY | libvirt.VIR_DOMAIN_SNAPSHOT_CREATE_REUSE_EXT
         | libvirt.VIR_DOMAIN_SNAPSHOT_CREATE_NO_METADATA)


class VolumeFiles(Role, guest_driver.VolumeFiles):
    def __init__(self, guests: Guests, snapshots: Snapshots) -> None:
        super().__init__(guests)
        self._snapshots = snapshots

    def names(self, instance: Instance, device: BlockDevice) -> list[str]:
        try:
            _running, disk = self._inspect(instance.uuid, device)
        except exception.GuestNotFound:
            return []
        return _names(disk)

    def snapshot(self, instance: Instance, new: BlockDevice) -> None:
        wanted, uuid = files_of(new), instance.uuid
        with self._guests.locks.hold(uuid):
            running, disk = self._inspect(uuid, new)
            there = _names(disk)
            if disk is None or not wanted or new.connection is None:
                raise _failed(new, "the guest does not have it" if disk is None else "it is not a file")
            if there[:1] == [wanted[0]]:
                return
            if running is None:
                raise exception.GuestNotRunning(instance_uuid=uuid)
            if there != list(wanted[1:]):
                raise _failed(new, NOT_ON_IT)
            text = snapshot_xml(disk.target, new.connection.path, running)
            try:
                with self._snapshots.quiesced(instance) as frozen:
                    self._guests.on_domain(uuid, lambda domain: domain.snapshotCreateXML(text, _TAKE))
            except libvirt.libvirtError as error:
                raise _failed(new, error.get_error_message()) from error
        LOG.info("[instance: %s] The guest now writes to file %s of volume %s%s", uuid, wanted[0], new.volume_id,
                 ", started with quiesced file systems" if frozen else "")

    def merge(self, instance: Instance, device: BlockDevice, top: str | None, base: str | None,
              cancelled: Cancelled) -> None:
        try:
            begun = False
            while not self._advance(instance.uuid, device, top, base, begun, cancelled):
                begun = True
                time.sleep(_POLL_INTERVAL)
        except libvirt.libvirtError as error:
            raise _failed(device, error.get_error_message()) from error
        LOG.info("[instance: %s] Merged files of volume %s: the guest now uses %s", instance.uuid,
                 device.volume_id, ", ".join(self.names(instance, device)))

    def cancel(self, instance: Instance, device: BlockDevice, top: str | None, base: str | None) -> bool:
        uuid = instance.uuid
        with self._guests.locks.hold(uuid):
            try:
                running, disk = self._inspect(uuid, device)
                if running is not None and disk is not None:
                    self._guests.on_domain(uuid, lambda domain: end_block_job(domain, disk.target))
            except exception.GuestNotFound:
                return False
        return was_merged(self.names(instance, device), top, base)

    # --- helpers -----------------------------------------------------------------------------------
    def _inspect(self, uuid: str, device: BlockDevice) -> tuple[list[str] | None, KnownDisk | None]:
        """Return the disks of the running guest (None: stopped), and the disk of the device. Raises GuestNotFound."""
        live, config = definitions(self._guests, uuid)
        targets = None if live is None else [
            target.get("dev", "") for target in live.devices.iterfind("disk/target")]
        return targets, (live or config).disks.get(serial_of(device))

    def _advance(self, uuid: str, device: BlockDevice, top: str | None, base: str | None, begun: bool,
                 cancelled: Cancelled) -> bool:
        """Execute the next step; return True at the end. The guest's lock is free between steps. ``begun``: a job was
        started. Raises GuestNotRunning, VolumeSnapshotFailed."""
        with self._guests.locks.hold(uuid):
            running, disk = self._inspect(uuid, device)
            works = running is not None and disk is not None and self._works(uuid, disk.target)
            if not works:  # The job may have ended after its files were checked.
                running, disk = self._inspect(uuid, device)
            if not works and is_merged(device.volume_id or "", _names(disk), top, base):
                return True
            if running is None or disk is None:
                raise exception.GuestNotRunning(instance_uuid=uuid)
            if cancelled.is_set():
                self._guests.on_domain(uuid, lambda domain: end_block_job(domain, disk.target))
                raise _failed(device, "it was cancelled")
            if begun and not works:
                raise _failed(device, "QEMU aborted the block job")
            if not works:
                self._guests.on_domain(uuid, _begin(disk, top, base))
                LOG.info("[instance: %s] Started merging files of disk %s", uuid, disk.target)
            return False

    def _works(self, uuid: str, target: str) -> bool:
        return bool(self._guests.on_domain(uuid, lambda domain: domain.blockJobInfo(target)))


def snapshot_xml(target: str, path: str, targets: Iterable[str]) -> str:
    """Return the XML of an external snapshot of one disk to ``path`` that excludes the rest of ``targets``."""
    root = ET.Element("domainsnapshot")
    disks = element(root, "disks")
    for other in targets:
        if other != target:
            element(disks, "disk", name=other, snapshot="no")
    disk = element(disks, "disk", name=target, snapshot="external", type="file")
    element(disk, "driver", type="qcow2")
    element(disk, "source", file=path)
    return ET.tostring(root, encoding="unicode")


def paths_of(disk: ET.Element) -> list[str]:
    """Return the files of a disk in libvirt's list from the active one on, up to the first entry that is no file."""
    paths: list[str] = []
    item: ET.Element | None = disk
    while item is not None and (source := item.find("source")) is not None and source.get("file"):
        paths.append(source.get("file", ""))
        item = item.find("backingStore")
    return paths


def _names(disk: KnownDisk | None) -> list[str]:
    return [] if disk is None else [os.path.basename(path) for path in paths_of(disk.element)]


def _begin(disk: KnownDisk, top: str | None, base: str | None) -> Callable[[libvirt.virDomain], object]:
    """Return a function that merges files by QEMU, named as in libvirt's list."""
    paths = {os.path.basename(path): path for path in paths_of(disk.element)}
    if base is not None:
        return lambda domain: domain.blockCommit(
            disk.target, paths[base], paths[top or ""], 0, libvirt.VIR_DOMAIN_BLOCK_COMMIT_RELATIVE)
    if top is not None:
        return lambda domain: domain.blockRebase(disk.target, paths[top], 0, libvirt.VIR_DOMAIN_BLOCK_REBASE_RELATIVE)
    return lambda domain: domain.blockPull(disk.target, 0)


def _failed(device: BlockDevice, reason: object) -> exception.VolumeSnapshotFailed:
    return exception.VolumeSnapshotFailed(volume_id=device.volume_id, reason=reason)
