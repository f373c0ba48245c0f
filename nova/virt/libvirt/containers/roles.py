"""The roles of the driver that differ for containers."""

import os

from nova import exception
from nova.conf import CONF
from nova.objects.servers.console import SERIAL, ConsoleAddress
from nova.objects.servers.guest import DiskImage
from nova.objects.servers.instance import BlockDevice, Instance
from nova.objects.servers.moves import DiskSource
from nova.operations.framework import guest_driver
from nova.operations.framework.guest_driver import Cancelled
from nova.virt.libvirt import cold_migration, devices, roles, snapshots
from nova.virt.libvirt.containers.guests import Containers
from nova.virt.libvirt.files import loop_devices
from nova.virt.libvirt.xml.layout import serial_of

_GIB = 1 << 30


class Power(roles.Power):
    def suspend(self, instance: Instance) -> None:
        raise exception.NotImplementedHere(what="suspend containers")

    def resume(self, instance: Instance) -> None:
        raise exception.NotImplementedHere(what="resume containers")

    def trigger_crash_dump(self, instance: Instance) -> None:
        raise exception.NotImplementedHere(what="trigger crash dumps")


class Consoles(roles.Consoles):
    def __init__(self, guests: Containers) -> None:
        super().__init__(guests)
        self._reader = guests.consoles

    def address(self, uuid: str, protocol: str) -> ConsoleAddress | None:
        if not self._guests.on_domain(uuid, lambda domain: bool(domain.isActive())):
            raise exception.GuestNotRunning(instance_uuid=uuid)
        port = self._reader.port(uuid) if protocol == SERIAL else None
        return ConsoleAddress(host=CONF.serial_console.proxyclient_address, port=port) if port else None


class Snapshots(snapshots.Snapshots):
    """Images of stopped containers: the file system of a running one is mounted."""

    def take(self, instance: Instance, image_id: str, cancelled: Cancelled) -> DiskImage:
        if self._guests.is_active(instance.uuid):
            raise exception.InstanceInvalidState(method="snapshot", instance_uuid=instance.uuid, attr="power_state",
                                                 state="running, and only a stopped container can be copied")
        return super().take(instance, image_id, cancelled)

    def quiesce(self, instance: Instance) -> None:
        raise exception.NotImplementedHere(what="quiesce the file systems of containers")


class Volumes(devices.HotplugRole, guest_driver.Volumes):
    def __init__(self, guests: Containers) -> None:
        super().__init__(guests)
        self._containers = guests
        self._volumes = devices.Volumes(guests)

    def attach(self, instance: Instance, device: BlockDevice) -> None:
        if device.connection is None:
            raise exception.InvalidDiskInfo(reason=f"volume {device.volume_id} is not connected to the host")
        had_loop = loop_devices.device(instance.uuid, serial_of(device)) is not None
        try:
            self._volumes.attach(instance, self._containers.as_block_device(instance.uuid, device))
        except Exception:
            if not had_loop:
                loop_devices.release(instance.uuid, serial_of(device))
            raise

    def detach(self, instance: Instance, device: BlockDevice) -> None:
        uuid, serial = instance.uuid, serial_of(device)
        loop = loop_devices.device(uuid, serial)
        block_device = loop or (device.connection.path if device.connection else "")
        # The kernel does not take a mounted device away, so the container would go on writing to the volume.
        if block_device and loop_devices.is_mounted(block_device) and self._guests.is_active(uuid):
            raise exception.DeviceDetachFailed(device=f"volume {device.volume_id}", reason="its file system is mounted")
        self._volumes.detach(instance, device)
        loop_devices.release(uuid, serial)

    def extend(self, instance: Instance, device: BlockDevice, size_gb: int) -> bool:
        uuid, loop = instance.uuid, loop_devices.device(instance.uuid, serial_of(device))
        if not self._guests.is_active(uuid):
            return False
        if loop is not None and device.connection is not None and loop_devices.size(loop) < size_gb * _GIB:
            if device.connection.protocol == "file" and os.stat(device.connection.path).st_size < size_gb * _GIB:
                os.truncate(device.connection.path, size_gb * _GIB)
            if loop_devices.refresh(loop) < size_gb * _GIB:
                raise exception.VolumeExtendFailed(volume_id=device.volume_id, reason="its file has not grown")
        return True

    def is_extended(self, instance: Instance, device: BlockDevice, size_gb: int) -> bool:
        loop = loop_devices.device(instance.uuid, serial_of(device))
        return self._guests.is_active(instance.uuid) and (loop is None or loop_devices.size(loop) >= size_gb * _GIB)


class ColdMigration(cold_migration.ColdMigration):
    def open_disks(self, instance: Instance, timeout: int = 0) -> DiskSource:
        source = super().open_disks(instance, timeout)
        loop_devices.release_all(instance.uuid)
        return source
