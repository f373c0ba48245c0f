"""The roles of the driver that differ for containers."""

import contextlib
import errno
import fcntl
import logging
import os
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator

import libvirt
import libvirt_lxc

from nova import exception
from nova.common.files import text_of
from nova.conf import CONF
from nova.objects.servers.console import SERIAL, ConsoleAddress
from nova.objects.servers.guest import DiskImage
from nova.objects.servers.instance import BlockDevice, Instance
from nova.objects.servers.moves import DiskSource
from nova.operations.framework import guest_driver
from nova.operations.framework.guest_driver import Cancelled
from nova.virt.guest_files import directories
from nova.virt.images import qemuimg
from nova.virt.libvirt import cold_migration, devices, roles, snapshots
from nova.virt.libvirt.containers.guests import Containers
from nova.virt.libvirt.files import disks, loop_devices
from nova.virt.libvirt.guests import Role
from nova.virt.libvirt.xml.layout import serial_of

LOG = logging.getLogger(__name__)

_GIB = 1 << 30
# Seconds to wait until libvirt uses the namespaces of a started container, and seconds between two polls.
_START_TIMEOUT, _POLL_INTERVAL = 30.0, 0.1
# Requests of ioctl: FIFREEZE and FITHAW.
_FREEZE, _THAW = 0xC0045877, 0xC0045878


def _first_process(domain: libvirt.virDomain) -> str | None:
    """Return the id of the container's first process, or None if the container does not run."""
    if not domain.isActive():
        return None
    controller = domain.ID()  # a process whose child is the first process
    with open(f"/proc/{controller}/task/{controller}/children", encoding="ascii") as file:
        return next(iter(file.read().split()), None)


def _libvirt_follows(domain: libvirt.virDomain) -> bool:
    """Return True if libvirt uses the current namespaces of the container; False for none or those of its previous run.
    True also if this process may not read them or does not see the processes of the host."""
    opened: list[int] = []
    try:
        init = _first_process(domain)
        opened = libvirt_lxc.lxcOpenNamespace(domain, 0) if init else []
        return any(os.readlink(f"/proc/self/fd/{number}") == os.readlink(f"/proc/{init}/ns/net") for number in opened)
    except libvirt.libvirtError:
        return False
    except PermissionError:
        return True
    except OSError:  # a process has ended: the container is being started or stopped
        return not os.path.exists(f"/proc/{domain.ID()}")
    finally:
        for number in opened:
            os.close(number)


def open_root(domain: libvirt.virDomain) -> int | None:
    """Return a file descriptor of the container's root directory. None if the container does not run, or if its first
    process has another root directory, perhaps that of the host: freezing its file system would block the host."""
    try:
        init = _first_process(domain)
        root = os.open(f"/proc/{init}/root", os.O_RDONLY | os.O_DIRECTORY) if init is not None else None
    except (FileNotFoundError, ProcessLookupError):  # the container has ended meanwhile
        return None
    if root is None:
        return None
    device = os.fstat(root).st_dev
    backing = text_of(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/loop/backing_file") or ""
    expected = os.path.join(directories.directory(domain.UUIDString()), disks.ROOT_FILE_SYSTEM)
    if backing.strip() == os.path.realpath(expected):
        return root
    os.close(root)
    LOG.warning("[instance: %s] The container's first process has a root directory outside the container's disk: not "
                "freezing or thawing its file system", domain.UUIDString())
    return None


def set_frozen(file_system: int, frozen: bool) -> None:
    """Freeze or thaw a file system. Succeeds if the file system is in this state already."""
    try:
        fcntl.ioctl(file_system, _FREEZE if frozen else _THAW, 0)
    except OSError as error:
        if error.errno != (errno.EBUSY if frozen else errno.EINVAL):
            raise


def thaw_all(guests: Containers) -> None:
    """Thaw the file systems that a previous nova-compute, killed during a copy, left frozen."""
    for guest in guests.all():
        try:
            file_system = guests.on_domain_or(guest.uuid, open_root, None)
            if file_system is not None:
                try:
                    set_frozen(file_system, False)
                finally:
                    os.close(file_system)
        except OSError as error:
            LOG.warning("[instance: %s] Cannot thaw the root file system, reboot the server: %s", guest.uuid, error)


class Consoles(roles.Consoles):
    def __init__(self, guests: Containers) -> None:
        super().__init__(guests)
        self._reader = guests.consoles

    def address(self, uuid: str, protocol: str) -> ConsoleAddress | None:
        if not self._guests.on_domain(uuid, lambda domain: bool(domain.isActive())):
            raise exception.GuestNotRunning(instance_uuid=uuid)
        port = self._reader.port(uuid) if protocol == SERIAL else None
        return ConsoleAddress(host=CONF.serial_console.proxyclient_address, port=port) if port else None


class _AfterStart(devices.HotplugRole):
    """Attaches and detaches devices as soon as libvirt has received the first process of a container that has just
    started. Before, libvirt refuses devices, or puts interfaces into the namespace of a process that has ended."""

    def _attach_live(self, uuid: str, item: ET.Element) -> None:
        self._wait_for_start(uuid)
        super()._attach_live(uuid, item)

    def _request_removal(self, uuid: str, item: ET.Element) -> None:
        self._wait_for_start(uuid)
        super()._request_removal(uuid, item)

    def _wait_for_start(self, uuid: str) -> None:
        deadline = time.monotonic() + _START_TIMEOUT
        while not self._guests.on_domain(uuid, _libvirt_follows) and time.monotonic() < deadline:
            time.sleep(_POLL_INTERVAL)


class Interfaces(_AfterStart, devices.Interfaces):
    """Hotplugged interfaces of containers."""


class Snapshots(Role, guest_driver.Snapshots):
    """Images of root file systems. The file system of a running container is frozen during the copy: programs that
    write to it wait."""

    def __init__(self, guests: Containers) -> None:
        super().__init__(guests)
        self._room = snapshots.CopyRoom()

    def take(self, instance: Instance, image_id: str, cancelled: Cancelled) -> DiskImage:
        place, name = directories.directory(instance.uuid), snapshots.NAME + image_id
        with directories.full_disk():
            directories.once(place, name, lambda path: self._copy(instance, path))
        return DiskImage(path=os.path.join(place, name), format=snapshots.FORMAT)

    def discard(self, instance: Instance) -> None:
        snapshots.clear(directories.directory(instance.uuid))

    def _copy(self, instance: Instance, path: str) -> None:
        root = disks.inspect_disks(instance).root
        if root is None:
            raise exception.InvalidDiskInfo(reason="the server has no root disk on its host")
        snapshots.clear(os.path.dirname(path))  # left over from a crash of the host
        with self._guests.locks.hold(instance.uuid), \
                self._room.take(path, qemuimg.flat_size(root.path, root.format)), self._frozen(instance.uuid):
            qemuimg.flatten(root.path, path, root.format)

    @contextlib.contextmanager
    def _frozen(self, uuid: str) -> Iterator[None]:
        """Freeze the root file system of the container during the block, if it runs. Raises SnapshotFailed."""
        file_system = self._guests.on_domain_or(uuid, open_root, None)
        if file_system is None:
            yield
            return
        try:
            set_frozen(file_system, True)
            try:
                yield
            finally:
                set_frozen(file_system, False)
        except OSError as error:
            raise exception.SnapshotFailed(
                instance_id=uuid, reason=f"its file system cannot be frozen or thawed: {error.strerror}") from error
        finally:
            # The open directory allows thawing the file system even after the end of the container.
            os.close(file_system)


class Volumes(_AfterStart, devices.Volumes):
    def __init__(self, guests: Containers) -> None:
        super().__init__(guests)
        self._containers = guests

    def attach(self, instance: Instance, device: BlockDevice) -> None:
        if device.connection is None:
            raise exception.InvalidDiskInfo(reason=f"volume {device.volume_id} is not connected to the host")
        had_loop = loop_devices.device(instance.uuid, serial_of(device)) is not None
        try:
            super().attach(instance, self._containers.as_block_device(instance.uuid, device))
        except Exception:
            if not had_loop:
                loop_devices.release(instance.uuid, serial_of(device))
            raise

    def detach(self, instance: Instance, device: BlockDevice) -> None:
        uuid, serial = instance.uuid, serial_of(device)
        loop = loop_devices.device(uuid, serial)
        block_device = loop or (device.connection.path if device.connection else "")
        # The kernel does not remove a mounted device: the container would continue writing to the detached volume.
        if block_device and loop_devices.is_mounted(block_device) and self._guests.is_active(uuid):
            raise exception.DeviceDetachFailed(device=f"volume {device.volume_id}", reason="its file system is mounted")
        super().detach(instance, device)
        loop_devices.release(uuid, serial)

    def extend(self, instance: Instance, device: BlockDevice, size_gb: int) -> bool:
        uuid, loop = instance.uuid, loop_devices.device(instance.uuid, serial_of(device))
        if not self._guests.is_active(uuid):
            return False
        if loop is not None and device.connection is not None and loop_devices.size(loop) < size_gb * _GIB:
            if device.connection.protocol == "file" and os.stat(device.connection.path).st_size < size_gb * _GIB:
                os.truncate(device.connection.path, size_gb * _GIB)
            if loop_devices.refresh(loop) < size_gb * _GIB:
                raise exception.VolumeExtendFailed(volume_id=device.volume_id, reason="the volume's file has not grown")
        return True

    def is_extended(self, instance: Instance, device: BlockDevice, size_gb: int) -> bool:
        loop = loop_devices.device(instance.uuid, serial_of(device))
        return self._guests.is_active(instance.uuid) and (loop is None or loop_devices.size(loop) >= size_gb * _GIB)


class ColdMigration(cold_migration.ColdMigration):
    def open_disks(self, instance: Instance, timeout: int = 0) -> DiskSource:
        source = super().open_disks(instance, timeout)
        loop_devices.release_all(instance.uuid)
        return source
