"""The roles of the driver: guests, disks, power, consoles, rescue, snapshots, volumes and interfaces.

:mod:`nova.virt.fake.moves` has the roles of migrations."""

import string
import time
from typing import Any

from nova import exception
from nova.common import files
from nova.objects.images.image import Image
from nova.objects.networks.network import VIF
from nova.objects.servers import states
from nova.objects.servers.console import ConsoleAddress
from nova.objects.servers.guest import Diagnostics, DiskImage, GuestStatus
from nova.objects.servers.instance import BlockDevice, DeviceAddress, Instance
from nova.operations.framework import guest_driver
from nova.operations.framework.guest_driver import BootFiles, Cancelled
from nova.virt.fake import disks as fake_disks
from nova.virt.fake import scenario as fake_scenario
from nova.virt.fake.disks import ASIDE, Disk
from nova.virt.fake.guests import Guest
from nova.virt.fake.host import FakeRole
from nova.virt.volume_files import NOT_AN_OVERLAY, files_of, is_merged, merged, was_merged


class Guests(FakeRole, guest_driver.Guests):
    def spawn(self, instance: Instance, files: BootFiles, paused: bool = False) -> None:
        guest = self.find("spawn", instance)
        if guest is not None and guest.on and paused:
            return  # ``paused`` has no effect on a guest that runs already
        self.host.guests.boot(instance, states.POWER_PAUSED if paused else states.RUNNING)

    def destroy(self, instance: Instance, keep_disks: bool = False) -> None:
        self.host.behaviour.simulate("destroy")
        self.host.remove(instance.uuid, keep_disks)

    def remove_orphan(self, uuid: str, keep_disks: bool = False) -> None:
        if not keep_disks:
            self.host.disks.remove(uuid + ASIDE)
        self.host.remove(uuid, keep_disks)

    def stop(self, uuid: str) -> None:
        if self.host.guests.find(uuid) is not None:
            self.host.guests.change(uuid, power_state=states.SHUTDOWN)

    def all(self) -> list[GuestStatus]:
        for uuid in self.host.guests.incoming():
            self.host.take_over(uuid)
        return [GuestStatus(uuid=uuid, power_state=state) for uuid, state in self.host.guests.power_states()]

    def power_state(self, uuid: str) -> int:
        self.host.take_over(uuid)
        guest = self.host.guests.get(uuid)
        if guest.incoming:  # the migrating guest does not run on this host yet
            raise exception.GuestNotFound(instance_uuid=uuid)
        return guest.power_state

    def device_addresses(self, uuid: str) -> list[DeviceAddress]:
        """Return consecutive PCI slots for root disk, interfaces, volumes and shares (by tag)."""
        guest = self.host.guests.get(uuid)
        devices = ["root", *guest.interfaces, *(volume for _name, volume in guest.volumes),
                   *(tag for tag, _path in guest.shares)]
        return [DeviceAddress(device=device, bus="pci", address=f"0000:00:{slot:02x}.0")
                for slot, device in enumerate(devices, 2)]

    def diagnostics(self, instance: Instance) -> Diagnostics:
        return _diagnostics(self.host.guests.get(instance.uuid), instance)

    def traces(self) -> set[str]:
        return {name.removesuffix(ASIDE) for name in self.host.disks.names()}

    def set_password(self, instance: Instance, password: str) -> None:
        self.get("set_password", instance)
        self.host.passwords[instance.uuid] = password


class Disks(FakeRole, guest_driver.Disks):
    def prepare(self, instance: Instance, files: BootFiles) -> None:
        self.host.behaviour.simulate("prepare")
        if instance.volume_backed:
            return
        disk = self.host.disks.get(instance.uuid) or fake_disks.made(self.host.name, instance.flavor.root_gb)
        self.host.disks.put(instance.uuid, disk._replace(host=self.host.name))

    def replace(self, instance: Instance, files: BootFiles, token: str, keep_ephemerals: bool = False,
                timeout: int = 0) -> None:
        self.host.behaviour.simulate("rebuild")
        current = self.host.disks.get(instance.uuid)
        if current is not None and current.token == token:
            return
        if self.host.guests.find(instance.uuid) is None:  # a failed move may have left renamed disks
            self.host.disks.remove(instance.uuid + ASIDE)
        self.host.remove(instance.uuid, keep_disks=True)
        if not instance.volume_backed:
            self.host.disks.put(instance.uuid, Disk(self.host.name, instance.flavor.root_gb, token))

    def exist(self, instance: Instance) -> bool:
        return self.host.disks.get(instance.uuid) is not None


class Power(FakeRole, guest_driver.Power):
    def on(self, instance: Instance, paused: bool = False) -> None:
        guest = self.find("power_on", instance)
        if guest is not None and guest.on:
            return  # the guest runs already; ``paused`` has no effect
        self.host.run(instance, states.POWER_PAUSED if paused else states.RUNNING)

    def off(self, instance: Instance, timeout: int = 0) -> None:
        self._set("power_off", instance, states.SHUTDOWN)

    def reboot(self, instance: Instance, hard: bool, timeout: int | None = None) -> None:
        self.host.behaviour.simulate("reboot")
        if not hard:
            self.host.guests.get(instance.uuid)
        self.host.run(instance)

    def pause(self, instance: Instance) -> None:
        self._set("pause", instance, states.POWER_PAUSED)

    def unpause(self, instance: Instance) -> None:
        self._set("unpause", instance, states.RUNNING)

    def suspend(self, instance: Instance) -> None:
        self._set("suspend", instance, states.POWER_SUSPENDED)

    def resume(self, instance: Instance) -> None:
        self.host.behaviour.simulate("resume")
        self.host.run(instance)

    def trigger_crash_dump(self, instance: Instance) -> None:
        if self.get("trigger_crash_dump", instance).power_state not in (states.RUNNING, states.POWER_PAUSED):
            raise exception.GuestNotRunning(instance_uuid=instance.uuid)
        self.host.crash_dumps[instance.uuid] += 1

    def _set(self, verb: fake_scenario.Verb, instance: Instance, power_state: int) -> None:
        self.host.behaviour.simulate(verb)
        self.host.guests.change(instance.uuid, power_state=power_state)


class Consoles(FakeRole, guest_driver.Consoles):
    def output(self, instance: Instance, lines: int | None = None) -> bytes:
        console = [line for booted in self.host.guests.get(instance.uuid).booted for line in (
            f"{time.strftime('%H:%M:%S', time.gmtime(booted))} fake guest {instance.hostname} booted",
            f"{instance.hostname} login: ")]
        return "\n".join(console[-lines:] if lines else ([] if lines == 0 else console)).encode()

    def address(self, uuid: str, protocol: str) -> ConsoleAddress | None:
        self.host.behaviour.simulate("console_address")
        guest = self.host.guests.get(uuid)
        if guest.incoming or guest.went:
            raise exception.GuestNotFound(instance_uuid=uuid)
        if not guest.on:
            raise exception.GuestNotRunning(instance_uuid=uuid)
        return self.host.consoles.address(uuid, protocol, guest.name)


class Rescue(FakeRole, guest_driver.Rescue):
    def begin(self, instance: Instance, image: Image, files: BootFiles, timeout: int = 0) -> None:
        self.host.behaviour.simulate("rescue")
        self.host.run(instance)
        self.host.guests.change(instance.uuid, rescued=image.id)

    def end(self, instance: Instance) -> None:
        guest = self.find("unrescue", instance)
        if guest is not None and guest.rescued:
            self.host.guests.define(instance, states.SHUTDOWN)


class Snapshots(FakeRole, guest_driver.Snapshots):
    def take(self, instance: Instance, image_id: str, cancelled: Cancelled) -> DiskImage:
        """Write the record of the disk to a small file, which is the content of the image."""
        self.get("snapshot", instance)
        disk = self.host.disks.get(instance.uuid)
        return DiskImage(path=fake_disks.copy_to_file(self.host.name, instance.uuid, disk), format="raw")

    def discard(self, instance: Instance) -> None:
        self.host.behaviour.simulate("discard_snapshot")
        files.remove(fake_disks.file_of(self.host.name, instance.uuid))

    def quiesce(self, instance: Instance) -> None:
        self.get("quiesce", instance)
        if instance.uuid in self.host.without_agent:
            raise exception.InstanceQuiesceFailed(instance_id=instance.uuid, reason="the guest agent does not respond")
        self.host.quiesced.add(instance.uuid)

    def unquiesce(self, instance: Instance) -> None:
        self.host.behaviour.simulate("unquiesce")
        self.host.quiesced.discard(instance.uuid)


_STATE_NAMES = {**states.POWER_STATES, states.NOSTATE: "pending"}
_CPU_TIME = 17_300_000_000
_DISK = {"read_bytes": 262144, "read_requests": 112, "write_bytes": 5778432, "write_requests": 488, "errors_count": 0}
_FLAT_DISK = {"errors": -1, "read": 262144, "read_req": 112, "write": 5778432, "write_req": 488}
_FLAT_NIC = {"rx": 2070139, "rx_drop": 0, "rx_errors": 0, "rx_packets": 26701, "tx": 140208, "tx_drop": 0,
             "tx_errors": 0, "tx_packets": 662}
_NIC = {"rx_octets": 2070139, "rx_errors": 0, "rx_drop": 0, "rx_packets": 26701, "rx_rate": None, "tx_octets": 140208,
        "tx_errors": 0, "tx_drop": 0, "tx_packets": 662, "tx_rate": None}


def _diagnostics(guest: Guest, instance: Instance) -> Diagnostics:
    running = guest.power_state in (states.RUNNING, states.POWER_PAUSED)
    disks = ["vda", *(device.removeprefix("/dev/") for device, _volume in guest.volumes)]
    values: dict[str, Any] = {
        "state": _STATE_NAMES[guest.power_state], "driver": "fake", "hypervisor": "fake", "hypervisor_os": "linux",
        "uptime": int(time.time()) - guest.booted[-1] if running and guest.booted else None,
        "config_drive": instance.config_drive, "num_cpus": guest.size.vcpus, "num_nics": len(guest.interfaces),
        "num_disks": len(disks),
        "cpu_details": [{"id": number, "time": _CPU_TIME, "utilisation": None} for number in range(guest.size.vcpus)]
        if running else [],
        "disk_details": [dict(_DISK) for _disk in disks],
        "nic_details": [{"mac_address": mac, **_NIC} for mac in guest.interfaces],
        "memory_details": {"maximum": guest.size.memory_mb, "used": guest.size.memory_mb if running else 0}}
    flat = {"memory": guest.size.memory_mb * 1024}
    if running:
        flat |= {f"cpu{number}_time": _CPU_TIME for number in range(guest.size.vcpus)}
        flat |= {f"{disk}_{name}": value for disk in disks for name, value in _FLAT_DISK.items()}
        flat |= {f"vnet{number}_{name}": value for number in range(len(guest.interfaces))
                 for name, value in _FLAT_NIC.items()}
    return Diagnostics(values=values, flat=flat)


# --- devices -----------------------------------------------------------------------------------------
class Volumes(FakeRole, guest_driver.Volumes):
    def attach(self, instance: Instance, device: BlockDevice) -> None:
        guest = self.get("attach_volume", instance)
        if device.volume_id and device.volume_id not in {volume for _name, volume in guest.volumes}:
            item = (device.device_name or _free_name(guest), device.volume_id)
            self.host.guests.change(instance.uuid, volumes=(*guest.volumes, item))
            self.host.guests.set_files(instance.uuid, device.volume_id, files_of(device))

    def detach(self, instance: Instance, device: BlockDevice) -> None:
        guest = self.find("detach_volume", instance)
        if guest is not None:
            self.host.guests.change(instance.uuid, volumes=tuple(
                item for item in guest.volumes if item[1] != device.volume_id))
            self.host.guests.set_files(instance.uuid, device.volume_id or "", ())

    def extend(self, instance: Instance, device: BlockDevice, size_gb: int) -> bool:
        guest, volume = self.find("extend_volume", instance), device.volume_id or ""
        if guest is None or not guest.on:
            return False
        if volume not in {attached for _name, attached in guest.volumes}:
            raise exception.VolumeExtendFailed(volume_id=volume, reason="the guest does not have the volume")
        if dict(guest.sizes).get(volume, 0) < size_gb:
            others = tuple(item for item in guest.sizes if item[0] != volume)
            self.host.guests.change(instance.uuid, sizes=(*others, (volume, size_gb)))
        return True

    def is_extended(self, instance: Instance, device: BlockDevice, size_gb: int) -> bool:
        guest = self.find("is_extended", instance)
        return guest is not None and guest.on and dict(guest.sizes).get(device.volume_id or "", 0) >= size_gb


class VolumeSwaps(FakeRole, guest_driver.VolumeSwaps):
    def swap(self, instance: Instance, old: BlockDevice, new: BlockDevice, cancelled: Cancelled) -> None:
        guest = self.get("swap_volume", instance)
        if new.attachment_id in guest.swapped:
            return
        if not guest.on:
            raise exception.GuestNotRunning(instance_uuid=instance.uuid)
        if old.volume_id not in {volume for _name, volume in guest.volumes}:
            raise exception.VolumeSwapFailed(volume_id=old.volume_id, reason="the guest does not have the volume")
        if cancelled.is_set():
            raise exception.VolumeSwapFailed(volume_id=old.volume_id, reason="the swap was cancelled")
        self.host.guests.change(instance.uuid, swapped=(*guest.swapped, new.attachment_id or ""), volumes=tuple(
            (name, new.volume_id if volume == old.volume_id else volume) for name, volume in guest.volumes))

    def cancel(self, instance: Instance, new: BlockDevice) -> bool:
        guest = self.find("cancel_swap", instance)
        return guest is not None and new.attachment_id in guest.swapped


class VolumeFiles(FakeRole, guest_driver.VolumeFiles):
    def names(self, instance: Instance, device: BlockDevice) -> list[str]:
        guest = self.find("volume_files", instance)
        return list(guest.files_of(device)) if guest is not None else []

    def snapshot(self, instance: Instance, new: BlockDevice) -> None:
        guest = self.get("snapshot_volume", instance)
        wanted, there = files_of(new), guest.files_of(new)
        if wanted and there[:1] == wanted[:1]:
            return
        if not guest.on:
            raise exception.GuestNotRunning(instance_uuid=instance.uuid)
        if not wanted or wanted[1:] != there:
            raise exception.VolumeSnapshotFailed(volume_id=new.volume_id, reason=NOT_AN_OVERLAY)
        self.host.guests.set_files(instance.uuid, new.volume_id or "", wanted)

    def merge(self, instance: Instance, device: BlockDevice, top: str | None, base: str | None,
              cancelled: Cancelled) -> None:
        guest, volume = self.get("merge_volume", instance), device.volume_id or ""
        there = guest.files_of(device)
        if is_merged(volume, there, top, base):
            return
        if not guest.on:
            raise exception.GuestNotRunning(instance_uuid=instance.uuid)
        if cancelled.is_set():
            raise exception.VolumeSnapshotFailed(volume_id=volume, reason="the merge was cancelled")
        self.host.guests.set_files(instance.uuid, volume, tuple(merged(there, top, base)))

    def cancel(self, instance: Instance, device: BlockDevice, top: str | None, base: str | None) -> bool:
        guest = self.find("cancel_merge", instance)
        return guest is not None and was_merged(guest.files_of(device), top, base)


class Interfaces(FakeRole, guest_driver.Interfaces):
    def attach(self, instance: Instance, vif: VIF) -> None:
        guest = self.get("attach_interface", instance)
        if vif.mac not in guest.interfaces:
            self.host.guests.change(instance.uuid, interfaces=(*guest.interfaces, vif.mac))

    def detach(self, instance: Instance, vif: VIF) -> None:
        guest = self.find("detach_interface", instance)
        if guest is not None:
            self.host.guests.change(instance.uuid, interfaces=tuple(mac for mac in guest.interfaces if mac != vif.mac))


def _free_name(guest: Guest) -> str:
    """Return the first free disk name after /dev/vda, the root disk."""
    taken = {name for name, _volume in guest.volumes}
    return next(name for letter in string.ascii_lowercase[1:] if (name := f"/dev/vd{letter}") not in taken)
