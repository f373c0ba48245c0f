"""Small roles of the driver: disks, the power state, consoles, rescue, volumes, interfaces and snapshots."""

import contextlib
import functools
import json
import logging
import os
import shutil
import time
from typing import Any

from pyVmomi import vim

from nova import exception
from nova.common import files as small_files
from nova.conf import CONF
from nova.objects.images.image import Image
from nova.objects.networks.network import VIF
from nova.objects.servers.console import MKS, VNC, ConsoleAddress
from nova.objects.servers.guest import DiskImage
from nova.objects.servers.instance import BlockDevice, Instance
from nova.operations.framework import guest_driver
from nova.operations.framework.guest_driver import BootFiles, Cancelled
from nova.virt import console_logs
from nova.virt.driver import rescue_disk_gb
from nova.virt.guest_locks import LOCK_TIMEOUT
from nova.virt.images import qemuimg
from nova.virt.vmware import errors, specs
from nova.virt.vmware.cluster import COPY, DISKS, GUEST, INCOMPLETE, SERVER, Machine
from nova.virt.vmware.guests import HELD, ON, SUSPENDED, Role, console_log, local_directory
from nova.virt.vmware.images import root_size, virtual_size
from nova.virt.vmware.machines import SNAPSHOT, TOKEN, Facts, derived

LOG = logging.getLogger(__name__)

# Seconds that a guest gets to reboot itself, unless the caller sets a timeout.
_SOFT_REBOOT_SECONDS = 120
_POLL = 0.5
_GIB = 1 << 30
_RESCUE = "rescue"
# Prefix of keys in extraConfig. Each notes a disk that moves to this machine: [path, bytes] as JSON.
_MOVED = "nova.moved."
_PREFIX = "snapshot-"  # prefix of the names of image files


class Disks(Role, guest_driver.Disks):
    """The disks of servers. A server whose guest is not defined yet has a machine of the kind DISKS."""

    def prepare(self, instance: Instance, files: BootFiles) -> None:
        specs.check(instance)
        with self._guests.locks.hold(instance.uuid):
            machine = self._machines.find(instance.uuid)
            if machine is not None and machine.kind == INCOMPLETE:
                self._machines.destroy(machine.ref)
                machine = None
            if machine is None:
                self._machines.create(instance, files, instance.uuid)

    def replace(self, instance: Instance, files: BootFiles, token: str, keep_ephemerals: bool = False,
                timeout: int = 0) -> None:
        """Create a second machine with the new disks, and replace the machine of the guest by it."""
        uuid = instance.uuid
        specs.check(instance)
        self._guests.shut_down_if_present(uuid, timeout)
        with self._guests.locks.hold(uuid, LOCK_TIMEOUT):
            machine = self._machines.find(uuid)
            if machine is not None and self._machines.facts(machine.ref).extra.get(TOKEN) == token:
                return
            fresh = self._machines.find(uuid, INCOMPLETE)
            ref = fresh.ref if fresh else None
            if fresh and (fresh.kind != DISKS or self._machines.facts(fresh.ref).extra.get(TOKEN) != token):
                self._machines.destroy(fresh.ref)
                ref = None
            if ref is None:
                ref = self._machines.create(instance, files, derived(uuid, INCOMPLETE), token)
            if machine is not None:
                if machine.kind == GUEST:
                    self._guests.retire(machine)
                if keep_ephemerals:
                    self._move_ephemerals(machine.ref, ref)
                self._machines.destroy(machine.ref)
            self._guests.cluster.reconfigure(ref, vim.vm.ConfigSpec(name=uuid, instanceUuid=uuid))

    def _move_ephemerals(self, old: Any, new: Any) -> None:
        """Move the ephemeral disks of a virtual machine to its successor. Before a disk is detached, its path is stored
        in extraConfig of the successor: if this process is killed, another call continues the move."""
        before, after = self._machines.facts(old), self._machines.facts(new)
        for name in [name for name in before.slots.slots if name.startswith("ephemeral")]:
            device = before.slots.device(name)
            key, note = f"{_MOVED}{name}", json.dumps([device.backing.fileName, device.capacityInKB << 10])
            self._guests.cluster.reconfigure(new, vim.vm.ConfigSpec(extraConfig=[specs.option(key, note)]))
            after.extra[key] = note
            self._machines.change_disks(old, before.slots.remove(name), before.slots)
        for key, value in sorted(after.extra.items()):
            if key.startswith(_MOVED) and value:
                self._take_disk(new, after, key.removeprefix(_MOVED), *json.loads(value))

    def _take_disk(self, ref: Any, facts: Facts, name: str, path: str, size: int) -> None:
        """Replace a disk of a virtual machine by the disk at ``path``, which no virtual machine uses."""
        vcenter, datacenter, slots = self._guests.vcenter, self._guests.cluster.datacenter, facts.slots
        target, present = f"{facts.directory}/kept-{name}.vmdk", slots.device(name)
        if present is not None and present.backing.fileName == target:
            return
        self._machines.change_disks(ref, slots.remove(name, destroy=True), slots)
        try:
            vcenter.wait(vcenter.content.virtualDiskManager.MoveVirtualDisk_Task(path, datacenter, target, datacenter,
                                                                                 True))
        except errors.VCenterFault as error:
            if not error.is_a(vim.fault.FileNotFound):
                raise
            LOG.info("Disk %s is missing: an earlier attempt has moved it to %s", path, target)
        self._machines.change_disks(ref, [slots.add(name, specs.file_backing(target), size)], slots)

    def exist(self, instance: Instance) -> bool:
        machine = self._machines.find(instance.uuid)
        return machine is not None and machine.kind in (GUEST, DISKS)


class Power(Role, guest_driver.Power):
    def on(self, instance: Instance, paused: bool = False) -> None:
        self._guests.start(instance, paused=paused)

    def off(self, instance: Instance, timeout: int = 0) -> None:
        self._guests.shut_down(instance.uuid, timeout)
        self._guests.power_off(instance.uuid, LOCK_TIMEOUT)

    def reboot(self, instance: Instance, hard: bool, timeout: int | None = None) -> None:
        machine = None if hard else self._guests.machine(instance.uuid)
        if machine is None or machine.power != ON:
            self._guests.start(instance, fresh=True)
            return
        seconds = _SOFT_REBOOT_SECONDS if timeout is None else timeout
        if seconds <= 0 or not self._reboots_itself(machine, seconds):
            LOG.info("[instance: %s] The guest did not reboot itself: resetting it", instance.uuid)
            with self._held(instance.uuid) as machine:
                self._guests.vcenter.wait(machine.ref.ResetVM_Task())

    def _reboots_itself(self, machine: Machine, seconds: float) -> bool:
        """Request a reboot; wait up to ``seconds`` until VMware Tools have restarted. Return True if they stopped."""
        if not self._guests.has_tools(machine.ref):
            return False
        try:
            machine.ref.RebootGuest()
        except errors.VCenterFault as error:
            LOG.info("[instance: %s] The guest does not accept a request to reboot: %s", machine.uuid, error)
            return False
        deadline, stopped = time.monotonic() + seconds, False
        while time.monotonic() < deadline:
            if self._guests.has_tools(machine.ref):
                if stopped:
                    return True
            else:
                stopped = True
            time.sleep(_POLL)
        return stopped

    def unpause(self, instance: Instance) -> None:
        """Power on a guest that spawn() or on() left powered off (paused=True). Other guests cannot be paused."""
        with self._held(instance.uuid) as machine:
            if not self._machines.facts(machine.ref).extra.get(HELD):
                super().unpause(instance)
            self._machines.power_on(machine.ref)

    def suspend(self, instance: Instance) -> None:
        with self._held(instance.uuid) as machine:
            if machine.power == ON:
                self._guests.vcenter.wait(machine.ref.SuspendVM_Task())
            elif machine.power != SUSPENDED:
                raise exception.InstanceInvalidState(method="suspend", instance_uuid=instance.uuid, attr="power_state",
                                                     state="SHUTDOWN")

    def resume(self, instance: Instance) -> None:
        self._guests.start(instance)


class Consoles(Role, guest_driver.Consoles):
    def output(self, instance: Instance, lines: int | None = None) -> bytes:
        return console_logs.output([console_log(instance.uuid)], instance.uuid, lines)

    def address(self, uuid: str, protocol: str) -> ConsoleAddress | None:
        machine = self._guests.machine(uuid)
        if machine.power != ON:
            raise exception.GuestNotRunning(instance_uuid=uuid)
        if protocol == MKS:
            try:
                ticket = machine.ref.AcquireTicket("mks")
            except errors.VCenterFault as error:
                if errors.is_power_state(error):  # the guest was stopped meanwhile
                    raise exception.GuestNotRunning(instance_uuid=uuid) from error
                raise
            path = {"ticket": ticket.ticket, "cfgFile": ticket.cfgFile, "thumbprint": ticket.sslThumbprint}
            return ConsoleAddress(host=ticket.host or CONF.vmware.host_ip, port=ticket.port,
                                  access_path=json.dumps(path))
        port = self._machines.facts(machine.ref).extra.get("RemoteDisplay.vnc.port")
        if protocol != VNC or not port:
            return None
        host = self._guests.vcenter.get(machine.host, "name")["name"]
        return ConsoleAddress(host=host, port=int(port))


class Rescue(Role, guest_driver.Rescue):
    """Rescue from an additional disk of the machine, which becomes the first boot disk."""

    def begin(self, instance: Instance, image: Image, files: BootFiles, timeout: int = 0) -> None:
        uuid, most = instance.uuid, rescue_disk_gb(instance) * _GIB
        specs.check(instance)
        if image.disk_format == "iso" or files.kernel or not files.root:
            raise exception.InstanceNotRescuable(
                instance_id=uuid, reason="the rescue image must be a disk image (not an ISO) without a kernel image")
        if most and virtual_size(files) > most:
            raise exception.InstanceNotRescuable(instance_id=uuid, reason=(
                f"image {image.id} is larger than the rescue disk, which may have {most // _GIB} GiB on this host"))
        self._guests.shut_down_if_present(uuid, timeout)
        with self._guests.locks.hold(uuid, LOCK_TIMEOUT):
            machine = self._machines.find(uuid)
            if machine is None or machine.kind not in (GUEST, DISKS):
                raise exception.GuestNotFound(instance_uuid=uuid)
            self._machines.power_off(machine.ref)
            self._remove(machine.ref)
            self._guests.define_as(instance, machine.ref)
            datastore = self._guests.cluster.roomiest()
            size = root_size(files, 0)
            path = self._machines.images.disk(datastore, files, specs.adapter(instance), size)
            facts = self._machines.facts(machine.ref)
            backing = specs.file_backing(f"{facts.directory}/rescue.vmdk", path)
            added = facts.slots.add(_RESCUE, backing, size, create=True)
            self._machines.change_disks(machine.ref, [added], facts.slots)
            self._boot_from(machine.ref, _RESCUE)
            self._machines.power_on(machine.ref)

    def end(self, instance: Instance) -> None:
        with self._held(instance.uuid) as machine:
            if _RESCUE in self._machines.facts(machine.ref).slots.slots:
                self._machines.power_off(machine.ref)
                self._remove(machine.ref)
                self._guests.define_as(instance, machine.ref)

    def _remove(self, ref: Any) -> None:
        slots = self._machines.facts(ref).slots
        if changes := slots.remove(_RESCUE, destroy=True):
            self._machines.change_disks(ref, changes, slots)
            if slots.slots:
                self._boot_from(ref, min(slots.slots, key=lambda name: slots.slots[name]))

    def _boot_from(self, ref: Any, name: str) -> None:
        device = self._machines.facts(ref).slots.device(name)
        order = [vim.vm.BootOptions.BootableDiskDevice(deviceKey=device.key)]
        self._guests.cluster.reconfigure(ref, vim.vm.ConfigSpec(bootOptions=vim.vm.BootOptions(bootOrder=order)))


# --- devices -----------------------------------------------------------------------------------------
class Volumes(Role, guest_driver.Volumes):
    def attach(self, instance: Instance, device: BlockDevice) -> None:
        with self._held(instance.uuid) as machine:
            slots = self._machines.facts(machine.ref).slots
            if device.volume_id in slots.slots:
                return
            change = slots.add(str(device.volume_id), self._guests.volume_backing(device))
            try:
                self._machines.change_disks(machine.ref, [change], slots)
            except errors.VCenterFault as error:
                raise exception.DeviceAttachFailed(device=f"volume {device.volume_id}", reason=error.message) from error

    def detach(self, instance: Instance, device: BlockDevice) -> None:
        try:
            with self._held(instance.uuid) as machine:
                name, slots = str(device.volume_id), self._machines.facts(machine.ref).slots
                # Merge a snapshot of a killed process: until then, new data of the guest is not in the volume's file.
                if name in slots.slots and self._machines.remove_snapshots(machine.ref, SNAPSHOT):
                    slots = self._machines.facts(machine.ref).slots
                if changes := slots.remove(name):
                    self._machines.change_disks(machine.ref, changes, slots)
        except exception.GuestNotFound:
            return
        except errors.VCenterFault as error:
            raise exception.DeviceDetachFailed(device=f"volume {device.volume_id}", reason=error.message) from error


class Interfaces(Role, guest_driver.Interfaces):
    def attach(self, instance: Instance, vif: VIF) -> None:
        with self._held(instance.uuid) as machine:
            if vif.mac.lower() in self._machines.facts(machine.ref).nics:
                return
            change = specs.nic(instance, vif.mac, self._guests.cluster.network(vif))
            try:
                self._guests.cluster.reconfigure(machine.ref, vim.vm.ConfigSpec(deviceChange=[change]))
            except errors.VCenterFault as error:
                raise exception.DeviceAttachFailed(device=f"interface {vif.mac}", reason=error.message) from error

    def detach(self, instance: Instance, vif: VIF) -> None:
        try:
            with self._held(instance.uuid) as machine:
                device = self._machines.facts(machine.ref).nics.get(vif.mac.lower())
                if device is not None:
                    self._guests.cluster.reconfigure(machine.ref, vim.vm.ConfigSpec(deviceChange=[
                        vim.vm.device.VirtualDeviceSpec(operation="remove", device=device)]))
        except exception.GuestNotFound:
            return
        except errors.VCenterFault as error:
            raise exception.DeviceDetachFailed(device=f"interface {vif.mac}", reason=error.message) from error


# --- snapshots ---------------------------------------------------------------------------------------
class Snapshots(Role, guest_driver.Snapshots):
    """Images of root disks. vCenter exports a linked clone of a snapshot, so that a running guest continues."""

    def take(self, instance: Instance, image_id: str, cancelled: Cancelled) -> DiskImage:
        uuid = instance.uuid
        path = os.path.join(local_directory(uuid), f"{_PREFIX}{image_id}.vmdk")
        with self._held(uuid) as machine:
            if not os.path.exists(path):
                os.makedirs(os.path.dirname(path), exist_ok=True)
                root = self._machines.facts(machine.ref).slots.device("root")
                if root is None:
                    raise exception.InvalidDiskInfo(reason="the server has no root disk on its host")
                self._clean(machine)
                part = f"{path}.part"
                try:
                    self._export(machine, uuid, part, qemuimg.most_bytes(root.capacityInKB << 10),
                                 functools.partial(_check, instance, cancelled))
                    os.rename(part, path)
                finally:
                    small_files.remove(part)
                    self._clean(machine)
        return DiskImage(path=path, format="vmdk")

    def _export(self, machine: Machine, uuid: str, path: str, most: int, check: Any) -> None:
        vcenter = self._guests.vcenter
        snapshot = vcenter.wait(machine.ref.CreateSnapshot_Task(SNAPSHOT, "", False, False))
        slots = self._machines.facts(machine.ref).slots
        root = slots.slots["root"]
        removed = [vim.vm.device.VirtualDeviceSpec(operation="remove", device=device)
                   for slot, device in slots.devices.items() if slot != root]
        slots.slots = {"root": root}
        config = vim.vm.ConfigSpec(instanceUuid=derived(uuid, COPY), managedBy=specs.owner(COPY), deviceChange=removed,
                                   extraConfig=[specs.option(SERVER, uuid), slots.stored()])
        spec = vim.vm.CloneSpec(
            location=vim.vm.RelocateSpec(pool=self._guests.cluster.pool, diskMoveType="createNewChildDiskBacking"),
            powerOn=False, template=False, snapshot=snapshot, config=config)
        check()
        clone = vcenter.wait(machine.ref.CloneVM_Task(self._guests.cluster.folder, derived(uuid, COPY), spec))
        check()
        vcenter.export(clone, path, most, check)

    def _clean(self, machine: Machine) -> None:
        """Remove the clone and the snapshot of an export, if they exist."""
        self._machines.destroy_derived(machine.uuid, COPY)
        self._machines.remove_snapshots(machine.ref, SNAPSHOT)

    def discard(self, instance: Instance) -> None:
        with contextlib.suppress(exception.GuestNotFound), self._held(instance.uuid) as machine:
            self._clean(machine)
        place = local_directory(instance.uuid)
        if os.path.isdir(place):
            small_files.remove(*(os.path.join(place, name) for name in os.listdir(place) if name.startswith(_PREFIX)))
            if not os.listdir(place):
                shutil.rmtree(place, ignore_errors=True)


def _check(instance: Instance, cancelled: Cancelled) -> None:
    if cancelled.is_set():
        raise exception.SnapshotFailed(instance_id=instance.uuid, reason="the snapshot was cancelled")
