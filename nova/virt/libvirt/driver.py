"""The libvirt driver: QEMU guests, emulated (qemu) or virtualized (kvm).

A guest is a domain with the server's uuid and name and Nova's metadata element, and a directory with its files. Both
are created again from the description of the server at every start.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence

from nova import exception
from nova.conf import CONF
from nova.objects.accounts.flavor import Flavor
from nova.objects.hosts.node import ComputeNode
from nova.objects.images.image import Image
from nova.objects.networks.network import VIF
from nova.objects.servers import states
from nova.objects.servers.console import ConsoleAddress
from nova.objects.servers.device_address import DeviceAddress
from nova.objects.servers.guest import Diagnostics, DiskImage, GuestStatus
from nova.objects.servers.instance import BlockDevice, Instance
from nova.objects.servers.moves import DiskSource, MigrationProgress, MigrationSource, MigrationTarget
from nova.operations.framework.guest_driver import Cancelled
from nova.virt.driver import Disks, Driver, EventHandler, HostCpu
from nova.virt.libvirt import agent, diagnostics, power, remote_console
from nova.virt.libvirt.cold_migration import ColdMigration
from nova.virt.libvirt.events import EventReporter
from nova.virt.libvirt.files import console, directories, disk_making, disk_server, disks
from nova.virt.libvirt.guests import Guests
from nova.virt.libvirt.host import Host
from nova.virt.libvirt.hotplug import Hotplug
from nova.virt.libvirt.live_source import LiveMigrationSource
from nova.virt.libvirt.live_target import LiveMigrationTarget
from nova.virt.libvirt.node import inventory
from nova.virt.libvirt.rescue import Rescues
from nova.virt.libvirt.snapshots import Snapshots
from nova.virt.libvirt.swaps import Swaps
from nova.virt.libvirt.volume_files import VolumeFiles
from nova.virt.libvirt.volume_sizes import VolumeSizes
from nova.virt.libvirt.xml import device_addresses

LOG = logging.getLogger(__name__)

_URIS = {"kvm": "qemu:///system", "qemu": "qemu:///system", "lxc": "lxc:///"}


class LibvirtDriver(Driver):
    """Actions on one guest are serialized. Exceptions: no action waits for a guest that shuts down slowly, and a delete
    or hard reboot does not wait for an action that hangs.
    """

    capabilities = frozenset({"console_output", "diagnostics", "pause", "suspend", "attach_volume", "attach_interface",
                              "move", "live_migration", "snapshot"})

    def __init__(self, host: str) -> None:
        super().__init__(host)
        self._host = Host(CONF.libvirt.connection_uri or _URIS[CONF.libvirt.virt_type])
        self._guests = Guests(host, self._host)
        self._hotplug = Hotplug(self._guests)
        self._swaps = Swaps(self._guests)
        self._rescues = Rescues(self._guests)
        self._cold_migration = ColdMigration(self._guests)
        self._live_source = LiveMigrationSource(self._guests)
        self._live_target = LiveMigrationTarget(self._guests)
        self._snapshots = Snapshots(self._guests)
        self._volume_files = VolumeFiles(self._guests, self._snapshots)
        self._volume_sizes = VolumeSizes(self._guests)
        self._events: EventReporter | None = None

    # --- the host ----------------------------------------------------------------------------------
    def start(self, on_event: EventHandler) -> None:
        if CONF.libvirt.virt_type == "lxc":
            raise exception.NotSupported("[libvirt]virt_type lxc is not supported yet.")
        directories.make_instances_path()
        self._host.start()
        self._guests.learn()
        self._events = EventReporter(self._guests.actual_power_state, self.guests, on_event)
        self._events.start()
        self._host.on_lifecycle = self._events.changed
        self._host.on_connected = self._reconnected
        self._host.on_unreachable = lambda error: self.on_unreachable(error)

    def stop(self) -> None:
        self._host.on_lifecycle = self._host.on_connected = self._host.on_unreachable = None
        if self._events is not None:
            self._events.stop()
        self._host.stop()

    def nodes(self) -> list[ComputeNode]:
        capabilities = self._guests.capabilities
        return [self._host.call(lambda connection: inventory.take(connection, self.host, capabilities))]

    def host_cpu(self) -> HostCpu:
        return self._host.call(inventory.cpu)

    def _reconnected(self) -> None:
        """Refresh cached state after a reconnect: libvirt may have been upgraded, and events may have been missed."""
        self._guests.forget_capabilities()
        if self._events is not None:
            self._events.reconnected()

    # --- lifecycle ---------------------------------------------------------------------------------
    def check(self, instance: Instance) -> None:
        self._guests.config(instance)

    def prepare(self, instance: Instance, disks_: Disks) -> None:
        self.check(instance)
        with self._guests.locks.hold(instance.uuid):
            disk_making.make(instance, disks_, self.host)

    def spawn(self, instance: Instance, disks_: Disks, paused: bool = False) -> None:
        self._guests.start(instance, paused=paused)

    def define(self, instance: Instance) -> list[DeviceAddress] | None:
        with self._guests.locks.hold(instance.uuid):
            if self._guests.is_active(instance.uuid):
                return None
            self._guests.define(instance)
            return self.device_addresses(instance.uuid)

    def device_addresses(self, uuid: str) -> list[DeviceAddress]:
        return device_addresses.of_definition(self._guests.on_domain(uuid, lambda domain: str(domain.XMLDesc(0))))

    def rebuild(self, instance: Instance, disks_: Disks, token: str, keep_ephemerals: bool = False,
                timeout: int = 0) -> None:
        if directories.mark(instance.uuid) == token:
            return
        self.check(instance)
        disk_server.stop(instance.uuid)
        if timeout > 0:
            with contextlib.suppress(exception.GuestNotFound):
                self._guests.shut_down(instance.uuid, timeout)
        self._guests.rebuild(instance, disks_, token, keep_ephemerals)

    def destroy(self, instance: Instance, keep_disks: bool = False) -> None:
        disk_server.stop(instance.uuid)
        self._guests.remove(instance.uuid, keep_disks)

    def power_on(self, instance: Instance, paused: bool = False) -> None:
        self._guests.start(instance, paused=paused)

    def power_off(self, instance: Instance, timeout: int = 0) -> None:
        if timeout > 0:
            self._guests.shut_down(instance.uuid, timeout)
        self._guests.change(instance.uuid, power.stop)

    def reboot(self, instance: Instance, hard: bool, timeout: int | None = None) -> None:
        if hard:
            self._guests.start(instance, fresh=True)
            return
        seconds = CONF.libvirt.wait_soft_reboot_seconds if timeout is None else timeout
        stopped = seconds > 0 and self._guests.shut_down(instance.uuid, seconds)
        if not stopped:
            LOG.info("[instance: %s] The guest did not shut down in time: continuing with a hard reboot", instance.uuid)
        self._guests.start(instance, fresh=not stopped, must_exist=True)

    def pause(self, instance: Instance) -> None:
        self._guests.change(instance.uuid, power.pause)

    def unpause(self, instance: Instance) -> None:
        self._guests.change(instance.uuid, power.unpause)

    def suspend(self, instance: Instance) -> None:
        self._guests.change(instance.uuid, power.save)

    def resume(self, instance: Instance) -> None:
        with self._guests.locks.hold(instance.uuid):
            if self.power_state(instance.uuid) == states.POWER_SUSPENDED:
                self._guests.give_keys(instance.uuid, instance.block_devices)
                self._guests.on_domain(instance.uuid, power.start)
                return
        self._guests.start(instance)

    def rescue(self, instance: Instance, image: Image, disks_: Disks, timeout: int = 0) -> None:
        self._rescues.check(instance, image)
        if timeout > 0:
            with contextlib.suppress(exception.GuestNotFound):
                self._guests.shut_down(instance.uuid, timeout)
        self._rescues.rescue(instance, image, disks_)

    def unrescue(self, instance: Instance) -> None:
        self._rescues.unrescue(instance)

    # --- snapshots ---------------------------------------------------------------------------------
    def snapshot(self, instance: Instance, image_id: str, cancelled: Cancelled) -> DiskImage:
        return self._snapshots.take(instance, image_id, cancelled)

    def discard_snapshot(self, instance: Instance) -> None:
        self._snapshots.discard(instance)

    def quiesce(self, instance: Instance) -> None:
        self._snapshots.quiesce(instance)

    def unquiesce(self, instance: Instance) -> None:
        self._snapshots.unquiesce(instance)

    # --- devices -----------------------------------------------------------------------------------
    def attach_volume(self, instance: Instance, device: BlockDevice) -> None:
        self._hotplug.attach_volume(instance, device)

    def detach_volume(self, instance: Instance, device: BlockDevice) -> None:
        self._hotplug.detach_volume(instance, device)

    def swap_volume(self, instance: Instance, old: BlockDevice, new: BlockDevice, cancelled: Cancelled) -> None:
        self._swaps.swap(instance, old, new, cancelled)

    def cancel_swap(self, instance: Instance, old: BlockDevice, new: BlockDevice) -> bool:
        return self._swaps.cancel(instance, new)

    def volume_files(self, instance: Instance, device: BlockDevice) -> list[str]:
        return self._volume_files.names(instance, device)

    def snapshot_volume(self, instance: Instance, new: BlockDevice) -> None:
        self._volume_files.snapshot(instance, new)

    def merge_volume(self, instance: Instance, device: BlockDevice, top: str | None, base: str | None,
                     cancelled: Cancelled) -> None:
        self._volume_files.merge(instance, device, top, base, cancelled)

    def cancel_merge(self, instance: Instance, device: BlockDevice, top: str | None, base: str | None) -> bool:
        return self._volume_files.cancel(instance, device, top, base)

    def extend_volume(self, instance: Instance, device: BlockDevice, size_gb: int) -> bool:
        return self._volume_sizes.extend(instance, device, size_gb)

    def is_extended(self, instance: Instance, device: BlockDevice, size_gb: int) -> bool:
        return self._volume_sizes.is_extended(instance, device, size_gb)

    def attach_interface(self, instance: Instance, vif: VIF) -> None:
        self._hotplug.attach_interface(instance, vif)

    def detach_interface(self, instance: Instance, vif: VIF) -> None:
        self._hotplug.detach_interface(instance, vif)

    # --- cold moves --------------------------------------------------------------------------------
    def check_resize(self, instance: Instance, flavor: Flavor) -> None:
        self._cold_migration.check_resize(instance, flavor)

    def open_disks(self, instance: Instance, timeout: int = 0) -> DiskSource:
        return self._cold_migration.open_disks(instance, timeout)

    def close_disks(self, instance: Instance) -> None:
        self._cold_migration.close_disks(instance)

    def receive_disks(self, instance: Instance, source: DiskSource) -> None:
        self._cold_migration.receive_disks(instance, source)

    def finish_move(self, instance: Instance) -> None:
        self._cold_migration.finish_move(instance)

    def confirm_move(self, instance: Instance) -> None:
        self._cold_migration.confirm_move(instance)

    def revert_move(self, instance: Instance) -> None:
        self._cold_migration.revert_move(instance)

    # --- live migration ----------------------------------------------------------------------------
    def check_migration_source(self, instance: Instance) -> MigrationSource:
        return self._live_source.check_migration_source(instance)

    def prepare_migration(self, instance: Instance, source: MigrationSource,
                          block: bool | None = None) -> MigrationTarget:
        return self._live_target.prepare_migration(instance, source, block)

    def live_migrate(self, instance: Instance, target: MigrationTarget,
                     on_progress: Callable[[MigrationProgress], None], cancelled: Cancelled) -> None:
        self._live_source.live_migrate(instance, target, on_progress, cancelled)

    def abort_migration(self, uuid: str) -> None:
        self._live_source.abort_migration(uuid)

    def force_complete_migration(self, uuid: str) -> None:
        self._live_source.force_complete_migration(uuid)

    def finish_migration(self, instance: Instance) -> None:
        self._live_target.finish_migration(instance)

    def rollback_migration(self, instance: Instance, target: MigrationTarget) -> None:
        self._live_target.rollback_migration(instance, target)

    # --- inside a running guest ----------------------------------------------------------------------
    def set_password(self, instance: Instance, password: str) -> None:
        self._guests.on_domain(instance.uuid, lambda domain: agent.set_password(domain, instance, password))

    def trigger_crash_dump(self, instance: Instance) -> None:
        self._guests.on_domain(instance.uuid, lambda domain: agent.interrupt(domain, instance.uuid))

    # --- by uuid alone -----------------------------------------------------------------------------
    def stop_guest(self, uuid: str) -> None:
        try:
            self._guests.change(uuid, power.kill)
        except exception.GuestNotFound:
            LOG.debug("[instance: %s] The instance has no guest on this host", uuid)

    def remove_orphan(self, uuid: str, keep_disks: bool = False) -> None:
        self._guests.remove(uuid, keep_disks)
        disk_server.stop(uuid)
        if not keep_disks:
            directories.remove_aside(uuid)

    # --- queries -----------------------------------------------------------------------------------
    def guests(self) -> list[GuestStatus]:
        return self._guests.all()

    def power_state(self, uuid: str) -> int:
        return self._guests.power_state(uuid)

    def traces(self) -> set[str]:
        return super().traces() | directories.retained_servers()

    def has_disks(self, instance: Instance) -> bool:
        return disks.has_any(directories.directory(instance.uuid))

    def console_output(self, instance: Instance, lines: int | None = None) -> bytes:
        return console.read(directories.directory(instance.uuid), instance.uuid, lines)

    def console_address(self, uuid: str, protocol: str) -> ConsoleAddress | None:
        return self._guests.on_domain(uuid, lambda domain: remote_console.address(domain, protocol))

    def diagnostics(self, instance: Instance) -> Diagnostics:
        return self._host.call(
            lambda connection: diagnostics.collect(connection, connection.lookupByUUIDString(instance.uuid), instance),
            instance.uuid)

    def used_images(self) -> Sequence[str]:
        return sorted(disks.bases_in_use())
