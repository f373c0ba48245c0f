"""Small roles of the driver: local disks, the power state, consoles, rescue, snapshots, volumes and interfaces."""

import functools
import glob
import logging
import os
from collections.abc import Sequence

from nova import exception
from nova.common import files as small_files
from nova.conf import CONF
from nova.objects.images.image import Image
from nova.objects.networks.network import VIF
from nova.objects.servers.console import SERIAL, ConsoleAddress
from nova.objects.servers.guest import DiskImage
from nova.objects.servers.instance import BlockDevice, Instance
from nova.operations.framework import guest_driver
from nova.operations.framework.guest_driver import BootFiles, Cancelled
from nova.virt import console_logs
from nova.virt.driver import rescue_disk_gb
from nova.virt.guest_files import directories, disk_server
from nova.virt.images import qemuimg
from nova.virt.uml import cow, definition, disks, process, supervisor, taps
from nova.virt.uml.definition import Definition
from nova.virt.uml.guests import Role, check

LOG = logging.getLogger(__name__)

_SNAPSHOT = "snapshot-"
_NO_DEVICE = "doesn't exist"  # the answer of the kernel if it does not have a device
_GIB = 1 << 30


class Disks(Role, guest_driver.Disks):
    def prepare(self, instance: Instance, files: BootFiles) -> None:
        check(instance)
        with self._held(instance.uuid):
            disks.make(instance, files, self._guests.name)

    def replace(self, instance: Instance, files: BootFiles, token: str, keep_ephemerals: bool = False,
                timeout: int = 0) -> None:
        uuid = instance.uuid
        if directories.text(uuid, directories.MARK) == token:
            return
        check(instance)
        disk_server.stop(uuid)
        self._guests.shut_down_if_present(uuid, timeout)
        with self._held(uuid):
            # A failed move did not restore the renamed directory.
            if directories.is_aside(uuid) and not self._guests.exists(uuid):
                directories.put_back(uuid, self._guests.name)
            disks.make_anew(instance, files, self._guests.name, token, keep_ephemerals, lambda: self._guests.end(uuid))

    def exist(self, instance: Instance) -> bool:
        return bool(disks.present(directories.directory(instance.uuid)))

    def used_images(self) -> Sequence[str]:
        return sorted(disks.bases_in_use())


class Power(Role, guest_driver.Power):
    def on(self, instance: Instance, paused: bool = False) -> None:
        self._guests.start(instance, paused=paused)

    def off(self, instance: Instance, timeout: int = 0) -> None:
        self._guests.shut_down(instance.uuid, timeout)
        self._guests.power_off(instance.uuid)

    def reboot(self, instance: Instance, hard: bool, timeout: int | None = None) -> None:
        if hard:
            self._guests.start(instance, fresh=True)
            return
        seconds = CONF.uml.wait_soft_reboot_seconds if timeout is None else timeout
        if not self._guests.shut_down(instance.uuid, seconds, reboot=True):
            LOG.info("[instance: %s] The guest did not reboot itself: continuing with a hard reboot", instance.uuid)
            self._guests.start(instance, fresh=True, must_exist=True)

    def pause(self, instance: Instance) -> None:
        with self._held(instance.uuid):
            self._guests.pause(instance.uuid)

    def unpause(self, instance: Instance) -> None:
        with self._held(instance.uuid):
            self._guests.unpause(instance.uuid)


class Consoles(Role, guest_driver.Consoles):
    def output(self, instance: Instance, lines: int | None = None) -> bytes:
        path = os.path.join(directories.directory(instance.uuid), supervisor.CONSOLE_LOG)
        return console_logs.output([path], instance.uuid, lines)

    def address(self, uuid: str, protocol: str) -> ConsoleAddress | None:
        stored = self._guests.definition(uuid)
        if not process.is_running(directories.directory(uuid)):
            raise exception.GuestNotRunning(instance_uuid=uuid)
        return ConsoleAddress(host=stored.serial[0], port=stored.serial[1]) if protocol == SERIAL and stored.serial \
            else None


class Rescue(Role, guest_driver.Rescue):
    def begin(self, instance: Instance, image: Image, files: BootFiles, timeout: int = 0) -> None:
        uuid, most = instance.uuid, rescue_disk_gb(instance) * _GIB
        check(instance)
        if image.disk_format == "iso" or files.kernel:
            raise exception.InstanceNotRescuable(
                instance_id=uuid, reason="User Mode Linux guests boot from a disk, with the kernel of the host")
        if files.root and most and os.path.getsize(files.root) > most:
            raise exception.InstanceNotRescuable(instance_id=uuid, reason=(
                f"image {image.id} is larger than the rescue disk, which may have {most // _GIB} GiB on this host"))
        self._guests.shut_down_if_present(uuid, timeout)
        with self._held(uuid):
            self._guests.end(uuid)
            disks.make_rescue(instance, files, self._guests.name)
            self._guests.start(instance, fresh=True, rescue=True)

    def end(self, instance: Instance) -> None:
        with self._held(instance.uuid) as place:
            stored = definition.load(place)
            if stored is not None and stored.rescued:
                self._guests.end(instance.uuid)
                self._guests.redefine(instance)


class Snapshots(Role, guest_driver.Snapshots):
    """Images of root disks. A running guest is paused during the copy, so that the copy is consistent."""

    def take(self, instance: Instance, image_id: str, cancelled: Cancelled) -> DiskImage:
        uuid, name = instance.uuid, _SNAPSHOT + image_id
        with self._held(uuid) as place, directories.full_disk():
            root = disks.root_of(place)
            if root is None:
                raise exception.InvalidDiskInfo(reason="the server has no root disk on its host")
            directories.once(place, name, functools.partial(self._copy, uuid, os.path.join(place, root)))
        return DiskImage(path=os.path.join(place, name), format="qcow2")

    def discard(self, instance: Instance) -> None:
        with self._held(instance.uuid) as place:
            small_files.remove(*glob.glob(os.path.join(glob.escape(place), f"{_SNAPSHOT}*")))

    def _copy(self, uuid: str, root: str, path: str) -> None:
        flat = f"{path.removesuffix('.part')}.raw.part"
        try:
            with self._guests.stopped_for_copy(uuid):
                if root.endswith(".cow"):
                    cow.flatten(root, flat)
                else:
                    cow.copy(root, flat)
            os.chmod(flat, 0o644)  # for [libvirt]images_user, in a directory that other users cannot list
            qemuimg.convert(flat, "raw", path, "qcow2", os.path.getsize(flat))
        finally:
            small_files.remove(flat)


# --- devices -----------------------------------------------------------------------------------------
class Volumes(Role, guest_driver.Volumes):
    def attach(self, instance: Instance, device: BlockDevice) -> None:
        uuid = instance.uuid
        with self._held(uuid) as place:
            stored = self._guests.definition(uuid)
            if stored.disk(device.volume_id or "") is not None:
                return
            disk = definition.add_disk(stored, definition.volume_disk(device), wanted=device.device_name or "")
            if process.is_running(place):
                self._guests.take_volume(place, disk, stored.uid)
                try:
                    _configure(uuid, place, disk.setting(), f"volume {device.volume_id}")
                except exception.NovaException:
                    self._guests.release_volume(place, disk)
                    raise
            self._guests.save(stored, place)

    def detach(self, instance: Instance, device: BlockDevice) -> None:
        uuid = instance.uuid
        with self._held(uuid) as place:
            stored = _definition_or_none(self, uuid)
            disk = stored.disk(device.volume_id or "") if stored else None
            if stored is None or disk is None:
                return
            if process.is_running(place):
                _unplug(uuid, place, f"ubd{disk.letter}", f"volume {device.volume_id}")
            self._guests.release_volume(place, disk)
            stored.disks.remove(disk)
            self._guests.save(stored, place)


class Interfaces(Role, guest_driver.Interfaces):
    def attach(self, instance: Instance, vif: VIF) -> None:
        uuid = instance.uuid
        with self._held(uuid) as place:
            stored = self._guests.definition(uuid)
            if stored.nic(vif.mac) is not None:
                return
            nic = definition.add_nic(stored, vif)
            if nic is None:
                return
            if process.is_running(place):
                try:
                    taps.ensure([nic], stored.uid)
                    _configure(uuid, place, nic.setting(), f"interface {vif.mac}")
                except exception.NovaException:
                    taps.remove([nic])
                    raise
            self._guests.save(stored, place)

    def detach(self, instance: Instance, vif: VIF) -> None:
        uuid = instance.uuid
        with self._held(uuid) as place:
            stored = _definition_or_none(self, uuid)
            nic = stored.nic(vif.mac) if stored else None
            if stored is None or nic is None:
                return
            if process.is_running(place):
                _unplug(uuid, place, f"vec{nic.index}", f"interface {vif.mac}")
                taps.remove([nic])
            stored.nics.remove(nic)
            self._guests.save(stored, place)


def _definition_or_none(role: Role, uuid: str) -> Definition | None:
    try:
        return role._guests.definition(uuid)
    except exception.GuestNotFound:
        return None


def _configure(uuid: str, place: str, setting: str, what: str) -> None:
    """Add a device to the running kernel. Raises DeviceAttachFailed, GuestNotRunning."""
    try:
        process.change_devices(uuid, place, f"config {setting}", CONF.uml.start_timeout)
    except process.RefusedByKernel as error:
        raise exception.DeviceAttachFailed(device=what, reason=str(error)) from error


def _unplug(uuid: str, place: str, name: str, what: str) -> None:
    """Remove a device from the running kernel, if it exists. Raises DeviceDetachFailed (the guest uses the device),
    GuestNotRunning."""
    try:
        process.change_devices(uuid, place, f"remove {name}", CONF.uml.start_timeout)
    except process.RefusedByKernel as error:
        if _NO_DEVICE in str(error):
            return
        raise exception.DeviceDetachFailed(device=what, reason=str(error)) from error
