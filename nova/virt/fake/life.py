"""The life of virtual guests: guests, disks, power, consoles, rescue and snapshots."""

from __future__ import annotations

import time

from nova import exception
from nova.objects.images.image import Image
from nova.objects.servers import states
from nova.objects.servers.console import ConsoleAddress
from nova.objects.servers.device_address import DeviceAddress
from nova.objects.servers.guest import Diagnostics, DiskImage, GuestStatus
from nova.objects.servers.instance import Instance
from nova.operations.framework import guest_driver
from nova.operations.framework.guest_driver import BootFiles, Cancelled
from nova.virt.fake import diagnostics as fake_diagnostics
from nova.virt.fake import disks as fake_disks
from nova.virt.fake import scenario as fake_scenario
from nova.virt.fake.disks import ASIDE, Disk
from nova.virt.fake.host import FakeRole


class Guests(FakeRole, guest_driver.Guests):
    def spawn(self, instance: Instance, files: BootFiles, paused: bool = False) -> None:
        self.host.behaviour.simulate("spawn")
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
        if guest.incoming:  # it does not run on this host yet
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
        return fake_diagnostics.collect(self.host.guests.get(instance.uuid), instance)

    def traces(self) -> set[str]:
        return set(fake_disks.uuids(self.host.disks))

    def set_password(self, instance: Instance, password: str) -> None:
        self.host.behaviour.simulate("set_password")
        self.host.guests.get(instance.uuid)
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
        if self.host.guests.find(instance.uuid) is None:  # a failed move left its disks aside
            self.host.disks.remove(instance.uuid + ASIDE)
        self.host.remove(instance.uuid, keep_disks=True)
        if not instance.volume_backed:
            self.host.disks.put(instance.uuid, Disk(self.host.name, instance.flavor.root_gb, token))

    def exist(self, instance: Instance) -> bool:
        return self.host.disks.get(instance.uuid) is not None


class Power(FakeRole, guest_driver.Power):
    def on(self, instance: Instance, paused: bool = False) -> None:
        self.host.behaviour.simulate("power_on")
        guest = self.host.guests.find(instance.uuid)
        if guest is not None and guest.on:
            return  # a running guest is not changed
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
        self.host.behaviour.simulate("trigger_crash_dump")
        if self.host.guests.get(instance.uuid).power_state not in (states.RUNNING, states.POWER_PAUSED):
            raise exception.GuestNotRunning(instance_uuid=instance.uuid)
        self.host.crash_dumps[instance.uuid] += 1

    def _set(self, verb: fake_scenario.Verb, instance: Instance, power_state: int) -> None:
        self.host.behaviour.simulate(verb)
        self.host.guests.change(instance.uuid, power_state=power_state)


class Consoles(FakeRole, guest_driver.Consoles):
    def output(self, instance: Instance, lines: int | None = None) -> bytes:
        console = []
        for booted in self.host.guests.get(instance.uuid).booted:
            console.append(f"{time.strftime('%H:%M:%S', time.gmtime(booted))} fake guest {instance.hostname} booted")
            console.append(f"{instance.hostname} login: ")
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
        self.host.behaviour.simulate("unrescue")
        guest = self.host.guests.find(instance.uuid)
        if guest is not None and guest.rescued:
            self.host.guests.define(instance, states.SHUTDOWN)


class Snapshots(FakeRole, guest_driver.Snapshots):
    def take(self, instance: Instance, image_id: str, cancelled: Cancelled) -> DiskImage:
        """Write the token of the disk to a small file."""
        self.host.behaviour.simulate("snapshot")
        self.host.guests.get(instance.uuid)
        disk = self.host.disks.get(instance.uuid)
        return DiskImage(path=fake_disks.copy_to_file(self.host.name, instance.uuid, disk), format="raw")

    def discard(self, instance: Instance) -> None:
        self.host.behaviour.simulate("discard_snapshot")
        fake_disks.remove_file(self.host.name, instance.uuid)

    def quiesce(self, instance: Instance) -> None:
        self.host.behaviour.simulate("quiesce")
        self.host.guests.get(instance.uuid)
        if instance.uuid in self.host.without_agent:
            raise exception.InstanceQuiesceFailed(instance_id=instance.uuid, reason="the guest agent does not respond")
        self.host.quiesced.add(instance.uuid)

    def unquiesce(self, instance: Instance) -> None:
        self.host.behaviour.simulate("unquiesce")
        self.host.quiesced.discard(instance.uuid)
