"""Devices of guests: attachment of volumes and interfaces; extension, replacement and files of volumes.

The running guest is changed first, then its persistent definition; a repeated call completes a change that a crash
interrupted between them. Extension: QEMU grows a file to the requested size; an RBD image already has that size. A
stopped guest sees the new size when it starts. Replacement: QEMU mirrors the volume, then switches to the new volume;
during the copy, writes of the guest go to both volumes. Snapshots: only libvirt's list of a volume's files is trusted.
The backing file names inside these files are relative, since directories differ between hosts. libvirt changes the live
and the persistent definition at the same time, so a guest that stops at any moment starts with the same files."""

import copy
import logging
import os
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterable

import libvirt

from nova import exception
from nova.conf import CONF
from nova.objects.networks.network import VIF
from nova.objects.servers.instance import BlockDevice, Instance
from nova.operations.framework import guest_driver
from nova.operations.framework.guest_driver import Cancelled
from nova.virt.libvirt import errors
from nova.virt.libvirt.guests import Guests, Role
from nova.virt.libvirt.snapshots import Snapshots
from nova.virt.libvirt.xml import device_xml
from nova.virt.libvirt.xml.definition import Definition, KnownDisk
from nova.virt.libvirt.xml.layout import serial_of, volume_disk
from nova.virt.libvirt.xml.xmltree import attribute, element
from nova.virt.volume_files import NOT_AN_OVERLAY, files_of, is_merged, was_merged

LOG = logging.getLogger(__name__)

# A function that returns a device of a definition, or None.
Finder = Callable[[Definition], ET.Element | None]

_LIVE, _CONFIG = libvirt.VIR_DOMAIN_AFFECT_LIVE, libvirt.VIR_DOMAIN_AFFECT_CONFIG
# Errors of a repeated removal request: the guest has released the device, or is still releasing it.
_REMOVAL_RUNS = frozenset({libvirt.VIR_ERR_DEVICE_MISSING, libvirt.VIR_ERR_OPERATION_FAILED,
                           libvirt.VIR_ERR_OPERATION_INVALID})
_GIB = 1 << 30
# Maximum bytes of an encrypted volume's header; a larger one fails an extension. Real headers have 2 to 16 MiB.
_LARGEST_HEADER = 64 << 20
_BYTES = libvirt.VIR_DOMAIN_BLOCK_RESIZE_BYTES
# Seconds between two polls of a running copy or merge.
_POLL_INTERVAL = 0.5
# Copy to a volume that exists already (REUSE_EXT), by a job that ends with the guest's process (TRANSIENT_JOB).
_COPY = libvirt.VIR_DOMAIN_BLOCK_COPY_REUSE_EXT | libvirt.VIR_DOMAIN_BLOCK_COPY_TRANSIENT_JOB
_PIVOT = libvirt.VIR_DOMAIN_BLOCK_JOB_ABORT_PIVOT
# Attributes of a <source> that identify the data of a disk.
_SOURCE_ATTRIBUTES = ("file", "dev", "protocol", "name")
# Use an existing overlay file (REUSE_EXT), and store no snapshot metadata in libvirt (NO_METADATA).
_TAKE = (libvirt.VIR_DOMAIN_SNAPSHOT_CREATE_DISK_ONLY | libvirt.VIR_DOMAIN_SNAPSHOT_CREATE_REUSE_EXT
         | libvirt.VIR_DOMAIN_SNAPSHOT_CREATE_NO_METADATA)


class HotplugRole(Role):
    """A role that attaches and detaches devices. Both methods are idempotent."""

    def _attach(self, uuid: str, name: str, find: Finder, build: Callable[[list[Definition]], ET.Element],
                *volumes: BlockDevice) -> None:
        """Attach the device that ``build`` creates, unless ``find`` finds the device in the current definitions.
        ``volumes``: connected volumes whose keys libvirt needs. Raises DeviceAttachFailed."""
        with self._guests.locks.hold(uuid):
            self._guests.give_keys(uuid, volumes)
            live, config = definitions(self._guests, uuid)
            try:
                if live is not None and find(live) is None:
                    item = build([live, config])
                    self._attach_live(uuid, item)
                    live, config = definitions(self._guests, uuid)
                if find(config) is None:
                    there = find(live) if live is not None else None
                    # Use the address that the device has in the running guest, so that the address never changes.
                    item = lasting(there) if there is not None else build([config])
                    self._guests.on_domain(uuid, lambda domain: domain.attachDeviceFlags(text_of(item), _CONFIG))
            except libvirt.libvirtError as error:
                self._guests.forget_keys(uuid)
                raise exception.DeviceAttachFailed(device=name, reason=error.get_error_message()) from error

    def _attach_live(self, uuid: str, item: ET.Element) -> None:
        self._guests.on_domain(uuid, lambda domain: domain.attachDeviceFlags(text_of(item), _LIVE))

    def _detach(self, uuid: str, name: str, find: Finder) -> None:
        """Detach a device. Succeeds if the device or the guest does not exist. Raises DeviceDetachFailed."""
        try:
            self._detach_live(uuid, name, find)
            with self._guests.locks.hold(uuid):
                _live, config = definitions(self._guests, uuid)
                item = find(config)
                if item is not None:
                    self._guests.on_domain(uuid, lambda domain: domain.detachDeviceFlags(text_of(item), _CONFIG))
        except exception.GuestNotFound:
            LOG.debug("[instance: %s] The instance has no guest to detach %s from", uuid, name)
        except libvirt.libvirtError as error:
            raise exception.DeviceDetachFailed(device=name, reason=error.get_error_message()) from error

    def _detach_live(self, uuid: str, name: str, find: Finder) -> None:
        """Request the removal repeatedly until the guest releases the device. The guest's lock is held only during a
        request, so that a delete or hard reboot need not wait."""
        attempts = CONF.libvirt.device_detach_attempts
        with self._guests.host.changes_of(uuid) as wait:
            for attempt in range(1, attempts + 1):
                with self._guests.locks.hold(uuid):
                    live, _config = definitions(self._guests, uuid)
                    item = find(live) if live is not None else None
                    if item is None:
                        return
                    self._request_removal(uuid, item)
                if self._released(uuid, find, wait, CONF.libvirt.device_detach_timeout):
                    return
                LOG.warning("[instance: %s] The guest did not release %s within %d s (attempt %d of %d)", uuid, name,
                            CONF.libvirt.device_detach_timeout, attempt, attempts)
        raise exception.DeviceDetachFailed(device=name, reason=f"the guest ignored {attempts} requests")

    def _request_removal(self, uuid: str, item: ET.Element) -> None:
        try:
            self._guests.on_domain(uuid, lambda domain: domain.detachDeviceFlags(text_of(item), _LIVE))
        except libvirt.libvirtError as error:
            if errors.is_disconnect(error) or error.get_error_code() not in _REMOVAL_RUNS:
                raise
            LOG.debug("[instance: %s] The removal of the device is in progress: %s", uuid, error)

    def _released(self, uuid: str, find: Finder, wait: Callable[[float], bool], seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while True:
            live, _config = definitions(self._guests, uuid)
            if live is None or find(live) is None:
                return True
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            wait(min(left, 1.0))


class Interfaces(HotplugRole, guest_driver.Interfaces):
    def attach(self, instance: Instance, vif: VIF) -> None:
        if not device_xml.is_plugged(vif):
            return
        config = self._guests.config(instance)
        self._attach(instance.uuid, f"interface {vif.mac}", lambda current: current.interface(vif.mac),
                     lambda current: device_xml.add_interface(ET.Element("devices"), vif, config))

    def detach(self, instance: Instance, vif: VIF) -> None:
        self._detach(instance.uuid, f"interface {vif.mac}", lambda current: current.interface(vif.mac))


def definitions(guests: Guests, uuid: str) -> tuple[Definition | None, Definition]:
    """Return the live definition (None if stopped) and the persistent definition. Raises GuestNotFound."""
    def query(domain: libvirt.virDomain) -> tuple[Definition | None, Definition]:
        live = Definition(domain.XMLDesc(0)) if domain.isActive() else None
        return live, Definition(domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE))

    return guests.on_domain(uuid, query)


def end_block_job(domain: libvirt.virDomain, target: str, flags: int = 0) -> None:
    """End the block job of a disk. ``flags``: flags of blockJobAbort. Succeeds if the disk has no job."""
    try:
        domain.blockJobAbort(target, flags)
    except libvirt.libvirtError as error:
        if not errors.is_missing_job(error):
            raise
        LOG.debug("[instance: %s] Disk %s has no block job to end: %s", domain.UUIDString(), target, error)


def lasting(item: ET.Element) -> ET.Element:
    """Return a device of a running guest without its runtime-only parts."""
    lasting_item = copy.deepcopy(item)
    for tag in ("alias", "backingStore", "privateData"):
        for child in lasting_item.findall(tag):
            lasting_item.remove(child)
    source = lasting_item.find("source")
    if source is not None:
        source.attrib.pop("index", None)
    return lasting_item


def text_of(item: ET.Element) -> str:
    return ET.tostring(item, encoding="unicode")


# --- volumes -------------------------------------------------------------------------------------------
class Volumes(HotplugRole, guest_driver.Volumes):
    def attach(self, instance: Instance, device: BlockDevice) -> None:
        if device.connection is None:
            raise exception.InvalidDiskInfo(reason=f"volume {device.volume_id} is not connected to the host")
        config = self._guests.config(instance)

        def build(current: list[Definition]) -> ET.Element:
            disk = volume_disk(config, device, current)
            return device_xml.add_disk(ET.Element("devices"), disk, config, self._guests.settings)

        self._attach(instance.uuid, f"volume {device.volume_id}", lambda current: current.disk(serial_of(device)),
                     build, device)

    def detach(self, instance: Instance, device: BlockDevice) -> None:
        self._detach(instance.uuid, f"volume {device.volume_id}", lambda current: current.disk(serial_of(device)))
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

    def _target(self, uuid: str, device: BlockDevice) -> str | None:
        """Return the disk's name in the running guest (None: stopped). Raises GuestNotFound, VolumeExtendFailed."""
        live, _config = definitions(self._guests, uuid)
        disk = live.disks.get(serial_of(device)) if live is not None else None
        if live is not None and disk is None:
            raise exception.VolumeExtendFailed(volume_id=device.volume_id, reason="the guest does not have the volume")
        return disk.target if disk is not None else None

    def _size(self, uuid: str, target: str) -> int:
        """Return the size of the disk in the guest, in bytes."""
        return int(self._guests.on_domain(uuid, lambda domain: domain.blockInfo(target))[0])


def _wanted(device: BlockDevice, there: int, size_gb: int) -> int:
    """Return the new size of the guest's disk in bytes: ``size_gb``, minus the header of an encrypted volume. The
    current size ``there`` and the header's size add up to whole GiB. Raises VolumeExtendFailed."""
    header = -there % _GIB if device.encryption else 0
    if header > _LARGEST_HEADER:
        raise exception.VolumeExtendFailed(
            volume_id=device.volume_id, reason=f"the size of the encrypted disk is unexpected: {there} bytes")
    return size_gb * _GIB - header


class VolumeSwaps(Role, guest_driver.VolumeSwaps):
    def swap(self, instance: Instance, old: BlockDevice, new: BlockDevice, cancelled: Cancelled) -> None:
        if new.connection is None:
            raise exception.InvalidDiskInfo(reason=f"volume {new.volume_id} is not connected to the host")
        uuid, key, wanted = instance.uuid, serial_of(new), self._disk_with(instance, new)
        with self._guests.locks.hold(uuid):
            self._guests.give_keys(uuid, [new])
        try:
            begun = False
            while not self._advance(uuid, wanted, key, begun, cancelled):
                begun = True
                time.sleep(_POLL_INTERVAL)
            with self._guests.locks.hold(uuid):
                # Copy the live definition of the disk to the persistent one, and remove unused secrets.
                live, config = definitions(self._guests, uuid)
                there, defined = (live or config).disks.get(key), config.disks.get(key)
                if there is not None and (defined is None or _source(defined.element) != _source(there.element)):
                    item = text_of(lasting(there.element))
                    self._guests.on_domain(uuid, lambda domain: domain.updateDeviceFlags(
                        item, libvirt.VIR_DOMAIN_AFFECT_CONFIG))
                self._guests.forget_keys(uuid)
        except libvirt.libvirtError as error:
            raise exception.VolumeSwapFailed(volume_id=old.volume_id, reason=error.get_error_message()) from error
        LOG.info("[instance: %s] Replaced a volume of the guest: volume %s instead of %s", instance.uuid, new.volume_id,
                 old.volume_id)

    def cancel(self, instance: Instance, new: BlockDevice) -> bool:
        uuid, wanted = instance.uuid, self._disk_with(instance, new)
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
        return disk is not None and _source(disk.element) == _source(wanted)

    def _disk_with(self, instance: Instance, new: BlockDevice) -> ET.Element:
        if new.connection is None:
            return ET.Element("disk")
        config = self._guests.config(instance)
        return device_xml.add_disk(ET.Element("devices"), volume_disk(config, new, []), config, self._guests.settings)

    def _advance(self, uuid: str, wanted: ET.Element, key: str, begun: bool, cancelled: Cancelled) -> bool:
        """Start, poll or complete the swap; return True if the guest uses the new volume. The guest's lock is not held
        between two calls. ``begun``: a previous call has started a copy. Raises GuestNotRunning, VolumeSwapFailed."""
        with self._guests.locks.hold(uuid):
            live, config = definitions(self._guests, uuid)
            disk = (live or config).disks.get(key)
            if disk is None:
                raise exception.VolumeSwapFailed(volume_id=key, reason="the guest does not have the volume")
            if _source(disk.element) == _source(wanted):
                return True
            if live is None:
                raise exception.GuestNotRunning(instance_uuid=uuid)
            mirror = disk.element.find("mirror")
            copies = mirror is not None and _source(mirror) == _source(wanted)
            if cancelled.is_set():
                self._end(uuid, disk, 0)
                raise exception.VolumeSwapFailed(volume_id=key, reason="the swap was cancelled")
            if not copies and begun:
                raise exception.VolumeSwapFailed(volume_id=key, reason="the copy of the volume's data was aborted")
            if not copies:
                self._end(uuid, disk, 0)  # end a copy to another volume, if there is one
                self._guests.on_domain(uuid, lambda domain: domain.blockCopy(disk.target, text_of(wanted), None, _COPY))
                LOG.info("[instance: %s] Started copying disk %s to another volume", uuid, disk.target)
            elif mirror is not None and mirror.get("ready") == "yes":
                self._end(uuid, disk, _PIVOT)
            return False

    def _end(self, uuid: str, disk: KnownDisk, flags: int) -> None:
        """End a copy, if one runs. The guest then uses the old volume (``flags`` is 0) or the new one (_PIVOT)."""
        if disk.element.find("mirror") is not None:
            self._guests.on_domain(uuid, lambda domain: end_block_job(domain, disk.target, flags))


def _source(item: ET.Element) -> list[str]:
    """Return the attributes that identify the source of a disk or of its mirror."""
    return [attribute(item, "source", name) for name in _SOURCE_ATTRIBUTES]


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
                raise _failed(new, "the guest does not have the volume" if disk is None else "it is not a file volume")
            if there[:1] == [wanted[0]]:
                return
            if running is None:
                raise exception.GuestNotRunning(instance_uuid=uuid)
            if there != list(wanted[1:]):
                raise _failed(new, NOT_AN_OVERLAY)
            text = snapshot_xml(disk.target, new.connection.path, running)
            try:
                with self._snapshots.quiesced(instance) as frozen:
                    self._guests.on_domain(uuid, lambda domain: domain.snapshotCreateXML(text, _TAKE))
            except libvirt.libvirtError as error:
                raise _failed(new, error.get_error_message()) from error
        LOG.info("[instance: %s] The guest now writes to file %s of volume %s%s", uuid, wanted[0], new.volume_id,
                 ", switched while its file systems were quiesced" if frozen else "")

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

    def _inspect(self, uuid: str, device: BlockDevice) -> tuple[list[str] | None, KnownDisk | None]:
        """Return the disks of the running guest (None: stopped), and the disk of the device. Raises GuestNotFound."""
        live, config = definitions(self._guests, uuid)
        targets = None if live is None else [target.get("dev", "") for target in live.devices.iterfind("disk/target")]
        return targets, (live or config).disks.get(serial_of(device))

    def _advance(self, uuid: str, device: BlockDevice, top: str | None, base: str | None, begun: bool,
                 cancelled: Cancelled) -> bool:
        """Start or poll the merge; return True if it is complete. The guest's lock is not held between two calls.
        ``begun``: a previous call has started a job. Raises GuestNotRunning, VolumeSnapshotFailed."""
        with self._guests.locks.hold(uuid):
            running, disk = self._inspect(uuid, device)
            has_job = running is not None and disk is not None and self._has_block_job(uuid, disk.target)
            if not has_job:  # A job that ended between the two queries has changed the files.
                running, disk = self._inspect(uuid, device)
            if not has_job and is_merged(device.volume_id or "", _names(disk), top, base):
                return True
            if running is None or disk is None:
                raise exception.GuestNotRunning(instance_uuid=uuid)
            if cancelled.is_set():
                self._guests.on_domain(uuid, lambda domain: end_block_job(domain, disk.target))
                raise _failed(device, "the merge was cancelled")
            if begun and not has_job:
                raise _failed(device, "QEMU aborted the merge")
            if not has_job:
                self._guests.on_domain(uuid, _merger(disk, top, base))
                LOG.info("[instance: %s] Started merging files of disk %s", uuid, disk.target)
            return False

    def _has_block_job(self, uuid: str, target: str) -> bool:
        return bool(self._guests.on_domain(uuid, lambda domain: domain.blockJobInfo(target)))


def snapshot_xml(target: str, path: str, targets: Iterable[str]) -> str:
    """Return the XML of an external snapshot of the disk ``target`` to ``path``, excluding the other ``targets``."""
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
    """Return the files of a disk in libvirt's list, the active file first, up to the first entry that is not a file."""
    paths: list[str] = []
    item: ET.Element | None = disk
    while item is not None and (source := item.find("source")) is not None and source.get("file"):
        paths.append(source.get("file", ""))
        item = item.find("backingStore")
    return paths


def _names(disk: KnownDisk | None) -> list[str]:
    return [] if disk is None else [os.path.basename(path) for path in paths_of(disk.element)]


def _merger(disk: KnownDisk, top: str | None, base: str | None) -> Callable[[libvirt.virDomain], object]:
    """Return a function that starts the merge in QEMU. It passes the paths of libvirt's list."""
    paths = {os.path.basename(path): path for path in paths_of(disk.element)}
    if base is not None:
        return lambda domain: domain.blockCommit(
            disk.target, paths[base], paths[top or ""], 0, libvirt.VIR_DOMAIN_BLOCK_COMMIT_RELATIVE)
    if top is not None:
        return lambda domain: domain.blockRebase(disk.target, paths[top], 0, libvirt.VIR_DOMAIN_BLOCK_REBASE_RELATIVE)
    return lambda domain: domain.blockPull(disk.target, 0)


def _failed(device: BlockDevice, reason: object) -> exception.VolumeSnapshotFailed:
    return exception.VolumeSnapshotFailed(volume_id=device.volume_id, reason=reason)
