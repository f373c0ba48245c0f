"""Images of the root disk of a guest: the disk's content at one moment, without a backing file. The guest continues.

QEMU copies the disk of a running guest in a backup job; qemu-img copies the disk of a stopped one. The copy is in the
guest's directory until it is discarded, and is removed with that directory. No flavor reserves space for copies. So a
copy is refused if it would use space that running guests need: QEMU pauses a guest whose disk cannot grow."""

import contextlib
import logging
import os
import shutil
import threading
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator

import libvirt

from nova import exception
from nova.conf import CONF
from nova.objects.requirements.properties import AGENT, QUIESCE, Properties
from nova.objects.servers.guest import DiskImage
from nova.objects.servers.instance import Instance
from nova.operations.framework import guest_driver
from nova.operations.framework.guest_driver import Cancelled
from nova.virt.guest_files import directories
from nova.virt.images import qemuimg
from nova.virt.libvirt import errors
from nova.virt.libvirt.files import disks
from nova.virt.libvirt.guests import Guests, Role
from nova.virt.libvirt.xml.xmltree import attribute, element

# Minimum number of bytes that copies leave free, even if [DEFAULT]reserved_host_disk_mb is less.
_SPARE = 256 << 20


class CopyRoom:
    """The disk space that this process has reserved for running copies."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Path of the target of a copy in progress -> bytes reserved for it. Copies of unknown size are missing.
        self._promised: dict[str, int] = {}

    def check(self, place: str) -> None:
        """Raise DiskFull if copies may not use more space in the directory ``place``."""
        with self._lock:
            self._check(place, 0)

    @contextlib.contextmanager
    def take(self, path: str, size: int) -> Iterator[None]:
        """Reserve ``size`` bytes for the new file ``path``. Raises DiskFull."""
        with self._lock:
            self._check(os.path.dirname(path), size)
            self._promised[path] = size
        try:
            yield
        finally:
            with self._lock:
                del self._promised[path]

    def _check(self, place: str, size: int) -> None:
        spare = max(int(CONF.reserved_host_disk_mb) << 20, _SPARE)
        coming = sum(max(0, promised - _written(path)) for path, promised in self._promised.items())
        if shutil.disk_usage(place).free - spare - coming <= size:
            raise exception.DiskFull(reason="no space for a copy of the server's disk")


def _written(path: str) -> int:
    try:
        return os.stat(path).st_blocks * 512
    except FileNotFoundError:
        return 0


LOG = logging.getLogger(__name__)

# Prefix of files in the guest's directory, followed by the id of the image.
NAME = "snapshot-"
FORMAT = "qcow2"
# Seconds between two polls of a running copy.
_POLL_INTERVAL = 0.2
# Timeout in seconds of a request to the guest agent, a program of a tenant, to freeze or thaw file systems.
AGENT_TIMEOUT = 30


class Snapshots(Role, guest_driver.Snapshots):
    def __init__(self, guests: Guests) -> None:
        super().__init__(guests)
        self._room = CopyRoom()
        # Guests between quiesce() and unquiesce().
        self._quiesced: set[str] = set()

    def take(self, instance: Instance, image_id: str, cancelled: Cancelled) -> DiskImage:
        place, name = directories.directory(instance.uuid), NAME + image_id
        with directories.full_disk():
            directories.once(place, name, lambda path: self._copy(instance, path, cancelled))
        return DiskImage(path=os.path.join(place, name), format=FORMAT)

    def discard(self, instance: Instance) -> None:
        uuid = instance.uuid
        with contextlib.suppress(exception.GuestNotFound):
            self._guests.on_domain(uuid, _end_backup)
            if Properties.of(instance).image_flag(AGENT):
                self._guests.on_domain(uuid, _thaw)
        clear(directories.directory(uuid))

    def quiesce(self, instance: Instance) -> None:
        uuid = instance.uuid
        with self._guests.locks.hold(uuid):
            self._quiesced.discard(uuid)
            self._guests.on_domain(uuid, _thaw)  # The agent refuses to freeze file systems that are frozen already.
            reason = self._freeze_by_agent(uuid)
            if not reason:
                self._quiesced.add(uuid)
        if reason:
            raise exception.InstanceQuiesceFailed(instance_id=uuid, reason=reason)

    def unquiesce(self, instance: Instance) -> None:
        self._quiesced.discard(instance.uuid)
        self._guests.on_domain_or(instance.uuid, _thaw, None)

    # --- copying -----------------------------------------------------------------------------------
    def _copy(self, instance: Instance, path: str, cancelled: Cancelled) -> None:
        """Copy the root disk to ``path``. The guest's lock is not held during the backup job of a running guest."""
        root = disks.inspect_disks(instance).root
        if root is None:
            raise exception.InvalidDiskInfo(reason="the server has no root disk on its host")
        clear(os.path.dirname(path))  # left over from a crash of the host
        uuid = instance.uuid
        with self._guests.locks.hold(uuid):
            running = self._guests.is_active(uuid)
            if running:
                self._room.check(os.path.dirname(path))
                self._guests.on_domain(uuid, _end_backup)  # a backup job of a previous nova-compute
                xml = _backup_of(self._guests.on_domain(uuid, lambda domain: domain.XMLDesc()), root.path, path)
                with self.quiesced(instance) as frozen:
                    self._guests.on_domain(uuid, lambda domain: domain.backupBegin(xml, None))
                LOG.info("[instance: %s] Started the backup of the running guest's disk%s", uuid,
                         ", with quiesced file systems" if frozen else "")
        if running:
            self._wait(uuid, os.path.dirname(path), cancelled)
            return
        with self._room.take(path, qemuimg.flat_size(root.path, root.format)):
            qemuimg.flatten(root.path, path, root.format)

    @contextlib.contextmanager
    def quiesced(self, instance: Instance) -> Iterator[bool]:
        """Quiesce the file systems of the running guest during the block; yield True, or False if this failed or the
        image has no agent. Raises InstanceQuiesceFailed if os_require_quiesce is set. Never undoes quiesce()."""
        if instance.uuid in self._quiesced:
            yield True
            return
        frozen = self._freeze(instance)
        try:
            yield frozen
        finally:
            if frozen:
                self._guests.on_domain(instance.uuid, _thaw)

    def _freeze(self, instance: Instance) -> bool:
        """Quiesce the guest's file systems; return True on success. Raises InstanceQuiesceFailed, see quiesced()."""
        needed = Properties.of(instance).image_flag(QUIESCE)
        reason = "its image does not have the property hw_qemu_guest_agent"
        if Properties.of(instance).image_flag(AGENT):
            reason = self._freeze_by_agent(instance.uuid)
            if not reason:
                return True
            LOG.warning("[instance: %s] Cannot quiesce the file systems of the guest, %s: %s", instance.uuid,
                        "the operation fails (os_require_quiesce)" if needed else "continuing without", reason)
        if needed:
            raise exception.InstanceQuiesceFailed(instance_id=instance.uuid, reason=reason)
        return False

    def _freeze_by_agent(self, uuid: str) -> str:
        """Quiesce the file systems by the guest's agent; return the reason of a failure, or ""."""
        try:
            self._guests.on_domain(uuid, _freeze_file_systems)
            return ""
        except libvirt.libvirtError as error:
            reason = str(error.get_error_message()) or "the guest agent did not freeze them"
        with contextlib.suppress(exception.NovaException, libvirt.libvirtError):
            self._guests.on_domain(uuid, _thaw)  # The agent may execute the freeze after its timeout.
        return reason

    def _wait(self, uuid: str, place: str, cancelled: Cancelled) -> None:
        """Wait until the backup job, which writes in ``place``, has ended. Raises SnapshotFailed, DiskFull."""
        copying = True
        while copying:
            copying = self._guests.on_domain(uuid, _has_backup_job)
            if cancelled.is_set():
                self._guests.on_domain(uuid, _end_backup)
            try:
                self._room.check(place)
            except exception.DiskFull:
                self._guests.on_domain(uuid, _end_backup)
                raise
            if copying:
                time.sleep(_POLL_INTERVAL)
        reason = self._guests.on_domain(uuid, _failure) or ("the snapshot was cancelled" if cancelled.is_set() else "")
        if reason:
            raise exception.SnapshotFailed(instance_id=uuid, reason=reason)


def clear(place: str) -> None:
    """Remove the copies in a directory."""
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir(place):
            if name.startswith(NAME):
                os.unlink(os.path.join(place, name))


def _backup_of(definition: str, disk: str, path: str) -> str:
    """Return the XML of the backup job that copies only this disk of the guest to ``path``."""
    backup = ET.Element("domainbackup", mode="push")
    wanted = element(backup, "disks")
    for item in ET.fromstring(definition).findall("devices/disk"):  # noqa: S314 - libvirt's own output
        name = attribute(item, "target", "dev")
        if attribute(item, "source", "file") == disk:
            copied = element(wanted, "disk", name=name, backup="yes", type="file")
            element(copied, "target", file=path)
            element(copied, "driver", type=FORMAT)
        else:
            element(wanted, "disk", name=name, backup="no")
    return ET.tostring(backup, encoding="unicode")


def _has_backup_job(domain: libvirt.virDomain) -> bool:
    if not domain.isActive():
        return False
    stats = domain.jobStats()
    return bool(stats.get("type", libvirt.VIR_DOMAIN_JOB_NONE) != libvirt.VIR_DOMAIN_JOB_NONE
                and stats.get("operation") == libvirt.VIR_DOMAIN_JOB_OPERATION_BACKUP)


def _failure(domain: libvirt.virDomain) -> str:
    """Return the reason why the finished backup failed, or "" if it succeeded."""
    if not domain.isActive():
        return "the guest was powered off during the copy"
    stats = domain.jobStats(libvirt.VIR_DOMAIN_JOB_STATS_COMPLETED)
    if stats.get("operation") != libvirt.VIR_DOMAIN_JOB_OPERATION_BACKUP:
        return "the result of the disk copy is unknown, since libvirtd was restarted during the copy"
    if stats.get("type") == libvirt.VIR_DOMAIN_JOB_COMPLETED:
        return ""
    return str(stats.get("errmsg") or "the disk copy was aborted")


def _end_backup(domain: libvirt.virDomain) -> None:
    """Cancel the backup job, if one runs, and wait for its end."""
    while _has_backup_job(domain):
        try:
            domain.abortJob()
        except libvirt.libvirtError as error:
            if errors.is_disconnect(error) or errors.is_missing(error):
                raise
        time.sleep(_POLL_INTERVAL)


def _freeze_file_systems(domain: libvirt.virDomain) -> None:
    domain.agentSetResponseTimeout(AGENT_TIMEOUT)
    domain.fsFreeze()


def _thaw(domain: libvirt.virDomain) -> None:
    try:
        domain.agentSetResponseTimeout(AGENT_TIMEOUT)
        domain.fsThaw()
    except libvirt.libvirtError as error:
        if errors.is_disconnect(error):
            raise
        LOG.debug("Cannot thaw the file systems of guest %s: %s", domain.UUIDString(), error)
