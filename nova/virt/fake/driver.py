"""The fake hypervisor: virtual nodes in memory, with configurable latencies and failures.

For tests, benchmarks and evaluation. Guests exist as long as the process, or with [fake] directory (a few files per
host) permanently. Sizes and behaviour are configured in [fake], or for many hosts in one process by a scenario
(:mod:`nova.virt.fake.scenario`). Tests may set the driver's ``behaviour`` and read its state with ``guest(uuid)`` and
``disk(uuid)``.

Unlike a real hypervisor, the driver never refuses to remove a guest, so that tests detect wrong orders.
"""

from __future__ import annotations

import collections
import dataclasses
import os
import random
import string
import time
import uuid as uuidlib
from collections.abc import Sequence
from typing import Any

from nova import exception
from nova.conf import CONF
from nova.objects.hosts.node import DISK_GB, ComputeNode, Provider
from nova.objects.images.image import Image
from nova.objects.networks.network import VIF
from nova.objects.servers import states
from nova.objects.servers.console import ConsoleAddress
from nova.objects.servers.device_address import DeviceAddress
from nova.objects.servers.guest import Diagnostics, DiskImage, GuestStatus
from nova.objects.servers.instance import BlockDevice, Instance
from nova.operations.framework.guest_driver import Cancelled
from nova.virt.driver import Disks, EventHandler, HostCpu
from nova.virt.fake import (
    diagnostics as fake_diagnostics,
)
from nova.virt.fake import (
    disks as fake_disks,
)
from nova.virt.fake import (
    machine as fake_machine,
)
from nova.virt.fake import (
    scenario as fake_scenario,
)
from nova.virt.fake.consoles import Consoles
from nova.virt.fake.disks import ASIDE, Disk
from nova.virt.fake.guests import Guest, GuestStore
from nova.virt.fake.moves import ArrivalSignal, FakeMigrations, MigrationJob
from nova.virt.volume_files import NOT_ON_IT, files_of, is_merged, merged, was_merged

# Node uuids are derived from node names, so that they survive a restart of the host.
_NAMESPACE = uuidlib.UUID("9e0a4f0e-3f5c-4e53-9c1f-5f2d1f4f7d11")


@dataclasses.dataclass
class Behaviour:
    """Latency in seconds and fraction of failing calls by method ("*": all other methods)."""

    latency: dict[str, float] = dataclasses.field(default_factory=dict)
    failure: dict[str, float] = dataclasses.field(default_factory=dict)

    @classmethod
    def configured(cls, group: fake_scenario.Group | None = None) -> Behaviour:
        """Return the behaviour configured in [fake], overridden by the scenario's group of the host."""
        overrides: tuple[dict[Any, float], dict[Any, float]] = (group.latency, group.failure) if group else ({}, {})
        return cls(latency={**_floats(CONF.fake.latency), **overrides[0]},
                   failure={**_floats(CONF.fake.failure), **overrides[1]})


def _floats(values: dict[str, str]) -> dict[str, float]:
    return {verb: float(value) for verb, value in values.items()}


class FakeDriver(FakeMigrations):
    """The driver of the virtual nodes of one host. ``group``: their description in a scenario."""

    capabilities = frozenset({"pause", "suspend", "console_output", "diagnostics", "attach_volume", "attach_interface",
                              "move", "live_migration", "snapshot"})
    needs_images = False
    virtual = True

    def __init__(self, host: str, group: fake_scenario.Group | None = None) -> None:
        super().__init__(host)
        if group is None:
            scenario = fake_scenario.configured()
            group = scenario.hosts().get(host) if scenario else None
        self.behaviour = Behaviour.configured(group)
        self._group = group or fake_scenario.Group(name="fake", nodes=CONF.fake.nodes)
        self._consoles = Consoles()
        self._guests = GuestStore(_guests_file(host), self._consoles.guest_changed, CONF.instance_name_template)
        self._disks = fake_disks.of_host(host, CONF.fake.directory, CONF.fake.shared_storage)
        self._jobs: dict[str, MigrationJob] = {}
        self._arrivals = ArrivalSignal(CONF.fake.directory)
        self.serving: set[str] = set()
        # Set by tests to simulate a boot of the host.
        self.boot = ""
        # Effects inside guests, by uuid.
        self.passwords: dict[str, str] = {}
        self.crash_dumps: collections.Counter[str] = collections.Counter()
        # Guests with quiesced file systems, and guests without an agent that can quiesce them.
        self.quiesced: set[str] = set()
        self.without_agent: set[str] = set()
        self._on_event: EventHandler | None = None

    @classmethod
    def of_all_hosts(cls) -> Sequence[FakeDriver]:
        scenario = fake_scenario.configured()
        return [cls(host, group) for host, group in scenario.hosts().items()] if scenario else ()

    def start(self, on_event: EventHandler) -> None:
        self._on_event = on_event
        self._guests.open()
        self._disks.open()

    def boot_id(self) -> str:
        return self.boot or super().boot_id()

    def nodes(self) -> list[ComputeNode]:
        group = self._group
        inventories, traits = fake_machine.inventories(group), fake_machine.traits(group)
        cpus, disk = fake_machine.cpus(group), inventories[DISK_GB].total
        topology, devices = fake_machine.topology(group), fake_machine.devices(group)
        cpu_info = {"arch": "x86_64", "model": "Nehalem", "vendor": "Intel", "features": ["pge", "clflush"],
                    "topology": {"cores": 1, "threads": 1, "sockets": cpus}}
        supported = [("x86_64", "fake", "hvm"), ("i686", "fake", "hvm")]
        nodes = []
        for index in range(group.nodes):
            name = self.host if group.nodes == 1 else f"{self.host}-{index:05d}"
            node_uuid = str(uuidlib.uuid5(_NAMESPACE, f"{self.host}/{name}"))
            nodes.append(ComputeNode(
                uuid=node_uuid, host=self.host, hypervisor_hostname=name, hypervisor_type="fake",
                hypervisor_version=1000, host_ip=CONF.my_ip, uptime=None, disk_available_least=disk,
                cpu_info=cpu_info, supported_instances=supported, numa_topology=topology, pci_devices=devices,
                children=fake_machine.children(group, node_uuid, name),
                provider=Provider(uuid=node_uuid, name=name, traits=traits, inventories=inventories)))
        return nodes

    def host_cpu(self) -> HostCpu:
        return fake_machine.CPU

    # --- life of a guest -------------------------------------------------------------------------
    def prepare(self, instance: Instance, disks: Disks) -> None:
        self._behave("prepare")
        if instance.volume_backed:
            return
        disk = self._disks.get(instance.uuid) or fake_disks.made(self.host, instance.flavor.root_gb)
        self._disks.put(instance.uuid, disk._replace(host=self.host))

    def spawn(self, instance: Instance, disks: Disks, paused: bool = False) -> None:
        self._behave("spawn")
        self._guests.boot(instance, states.POWER_PAUSED if paused else states.RUNNING)

    def rebuild(self, instance: Instance, disks: Disks, token: str, keep_ephemerals: bool = False,
                timeout: int = 0) -> None:
        self._behave("rebuild")
        current = self._disks.get(instance.uuid)
        if current is not None and current.token == token:
            return
        if self._guests.find(instance.uuid) is None:  # a failed move left its disks aside
            self._disks.remove(instance.uuid + ASIDE)
        self._remove(instance.uuid, keep_disks=True)
        if not instance.volume_backed:
            self._disks.put(instance.uuid, Disk(self.host, instance.flavor.root_gb, token))

    def destroy(self, instance: Instance, keep_disks: bool = False) -> None:
        self._behave("destroy")
        self._remove(instance.uuid, keep_disks)

    def set_password(self, instance: Instance, password: str) -> None:
        self._behave("set_password")
        self._guests.get(instance.uuid)
        self.passwords[instance.uuid] = password

    def trigger_crash_dump(self, instance: Instance) -> None:
        self._behave("trigger_crash_dump")
        if self._guests.get(instance.uuid).power_state not in (states.RUNNING, states.POWER_PAUSED):
            raise exception.GuestNotRunning(instance_uuid=instance.uuid)
        self.crash_dumps[instance.uuid] += 1

    def power_on(self, instance: Instance, paused: bool = False) -> None:
        self._behave("power_on")
        guest = self._guests.find(instance.uuid)
        if guest is not None and guest.on:
            return  # a running guest is not changed
        self._run(instance, states.POWER_PAUSED if paused else states.RUNNING)

    def power_off(self, instance: Instance, timeout: int = 0) -> None:
        self._set("power_off", instance, states.SHUTDOWN)

    def reboot(self, instance: Instance, hard: bool, timeout: int | None = None) -> None:
        self._behave("reboot")
        if not hard:
            self._guests.get(instance.uuid)
        self._run(instance)

    def pause(self, instance: Instance) -> None:
        self._set("pause", instance, states.POWER_PAUSED)

    def unpause(self, instance: Instance) -> None:
        self._set("unpause", instance, states.RUNNING)

    def suspend(self, instance: Instance) -> None:
        self._set("suspend", instance, states.POWER_SUSPENDED)

    def resume(self, instance: Instance) -> None:
        self._behave("resume")
        self._run(instance)

    def rescue(self, instance: Instance, image: Image, disks: Disks, timeout: int = 0) -> None:
        self._behave("rescue")
        self._run(instance)
        self._guests.change(instance.uuid, rescued=image.id)

    def unrescue(self, instance: Instance) -> None:
        self._behave("unrescue")
        guest = self._guests.find(instance.uuid)
        if guest is not None and guest.rescued:
            self._guests.define(instance, states.SHUTDOWN)

    def _set(self, verb: str, instance: Instance, power_state: int) -> None:
        self._behave(verb)
        self._guests.change(instance.uuid, power_state=power_state)

    def _run(self, instance: Instance, power_state: int = states.RUNNING) -> None:
        """Start the guest. A guest whose definition is lost is started from its disks or its volume."""
        if self._disks.get(instance.uuid) is None and not instance.volume_backed:
            self._guests.get(instance.uuid)
        self._guests.define(instance, power_state, went=False)

    # --- snapshots ---------------------------------------------------------------------------------
    def snapshot(self, instance: Instance, image_id: str, cancelled: Cancelled) -> DiskImage:
        """Write the token of the disk to a small file."""
        self._behave("snapshot")
        self._guests.get(instance.uuid)
        disk = self._disks.get(instance.uuid)
        return DiskImage(path=fake_disks.copy_to_file(self.host, instance.uuid, disk), format="raw")

    def discard_snapshot(self, instance: Instance) -> None:
        self._behave("discard_snapshot")
        fake_disks.remove_file(self.host, instance.uuid)

    def quiesce(self, instance: Instance) -> None:
        self._behave("quiesce")
        self._guests.get(instance.uuid)
        if instance.uuid in self.without_agent:
            raise exception.InstanceQuiesceFailed(instance_id=instance.uuid, reason="its agent does not answer")
        self.quiesced.add(instance.uuid)

    def unquiesce(self, instance: Instance) -> None:
        self._behave("unquiesce")
        self.quiesced.discard(instance.uuid)

    # --- devices -----------------------------------------------------------------------------------
    def attach_volume(self, instance: Instance, device: BlockDevice) -> None:
        self._behave("attach_volume")
        guest = self._guests.get(instance.uuid)
        if device.volume_id and device.volume_id not in {volume for _name, volume in guest.volumes}:
            item = (device.device_name or _free_name(guest), device.volume_id)
            self._guests.change(instance.uuid, volumes=(*guest.volumes, item))
            self._guests.set_files(instance.uuid, device.volume_id, files_of(device))

    def detach_volume(self, instance: Instance, device: BlockDevice) -> None:
        self._behave("detach_volume")
        guest = self._guests.find(instance.uuid)
        if guest is not None:
            self._guests.change(instance.uuid, volumes=tuple(
                item for item in guest.volumes if item[1] != device.volume_id))
            self._guests.set_files(instance.uuid, device.volume_id or "", ())

    def swap_volume(self, instance: Instance, old: BlockDevice, new: BlockDevice, cancelled: Cancelled) -> None:
        self._behave("swap_volume")
        guest = self._guests.get(instance.uuid)
        if new.attachment_id in guest.swapped:
            return
        if not guest.on:
            raise exception.GuestNotRunning(instance_uuid=instance.uuid)
        if old.volume_id not in {volume for _name, volume in guest.volumes}:
            raise exception.VolumeSwapFailed(volume_id=old.volume_id, reason="its guest does not have it")
        if cancelled.is_set():
            raise exception.VolumeSwapFailed(volume_id=old.volume_id, reason="it was cancelled")
        self._guests.change(instance.uuid, swapped=(*guest.swapped, new.attachment_id or ""), volumes=tuple(
            (name, new.volume_id if volume == old.volume_id else volume) for name, volume in guest.volumes))

    def cancel_swap(self, instance: Instance, old: BlockDevice, new: BlockDevice) -> bool:
        self._behave("cancel_swap")
        guest = self._guests.find(instance.uuid)
        return guest is not None and new.attachment_id in guest.swapped

    def volume_files(self, instance: Instance, device: BlockDevice) -> list[str]:
        self._behave("volume_files")
        guest = self._guests.find(instance.uuid)
        return list(guest.files_of(device)) if guest is not None else []

    def snapshot_volume(self, instance: Instance, new: BlockDevice) -> None:
        self._behave("snapshot_volume")
        guest = self._guests.get(instance.uuid)
        wanted, there = files_of(new), guest.files_of(new)
        if wanted and there[:1] == wanted[:1]:
            return
        if not guest.on:
            raise exception.GuestNotRunning(instance_uuid=instance.uuid)
        if not wanted or wanted[1:] != there:
            raise exception.VolumeSnapshotFailed(volume_id=new.volume_id, reason=NOT_ON_IT)
        self._guests.set_files(instance.uuid, new.volume_id or "", wanted)

    def merge_volume(self, instance: Instance, device: BlockDevice, top: str | None, base: str | None,
                     cancelled: Cancelled) -> None:
        self._behave("merge_volume")
        guest, volume = self._guests.get(instance.uuid), device.volume_id or ""
        there = guest.files_of(device)
        if is_merged(volume, there, top, base):
            return
        if not guest.on:
            raise exception.GuestNotRunning(instance_uuid=instance.uuid)
        if cancelled.is_set():
            raise exception.VolumeSnapshotFailed(volume_id=volume, reason="it was cancelled")
        self._guests.set_files(instance.uuid, volume, tuple(merged(there, top, base)))

    def cancel_merge(self, instance: Instance, device: BlockDevice, top: str | None, base: str | None) -> bool:
        self._behave("cancel_merge")
        guest = self._guests.find(instance.uuid)
        return guest is not None and was_merged(guest.files_of(device), top, base)

    def extend_volume(self, instance: Instance, device: BlockDevice, size_gb: int) -> bool:
        self._behave("extend_volume")
        guest, volume = self._guests.find(instance.uuid), device.volume_id or ""
        if guest is None or not guest.on:
            return False
        if volume not in {attached for _name, attached in guest.volumes}:
            raise exception.VolumeExtendFailed(volume_id=volume, reason="its guest does not have it")
        if dict(guest.sizes).get(volume, 0) < size_gb:
            others = tuple(item for item in guest.sizes if item[0] != volume)
            self._guests.change(instance.uuid, sizes=(*others, (volume, size_gb)))
        return True

    def is_extended(self, instance: Instance, device: BlockDevice, size_gb: int) -> bool:
        self._behave("is_extended")
        guest = self._guests.find(instance.uuid)
        return guest is not None and guest.on and dict(guest.sizes).get(device.volume_id or "", 0) >= size_gb

    def attach_interface(self, instance: Instance, vif: VIF) -> None:
        self._behave("attach_interface")
        guest = self._guests.get(instance.uuid)
        if vif.mac not in guest.interfaces:
            self._guests.change(instance.uuid, interfaces=(*guest.interfaces, vif.mac))

    def detach_interface(self, instance: Instance, vif: VIF) -> None:
        self._behave("detach_interface")
        guest = self._guests.find(instance.uuid)
        if guest is not None:
            self._guests.change(instance.uuid, interfaces=tuple(mac for mac in guest.interfaces if mac != vif.mac))

    # --- status -----------------------------------------------------------------------------------
    def guests(self) -> list[GuestStatus]:
        for uuid in self._guests.incoming():
            self.take_over(uuid)
        return [GuestStatus(uuid=uuid, power_state=state) for uuid, state in self._guests.power_states()]

    def power_state(self, uuid: str) -> int:
        self.take_over(uuid)
        guest = self._guests.get(uuid)
        if guest.incoming:  # it does not run on this host yet
            raise exception.GuestNotFound(instance_uuid=uuid)
        return guest.power_state

    def device_addresses(self, uuid: str) -> list[DeviceAddress]:
        """Return consecutive PCI slots for root disk, interfaces, volumes and shares (by tag)."""
        guest = self._guests.get(uuid)
        devices = ["root", *guest.interfaces, *(volume for _name, volume in guest.volumes),
                   *(tag for tag, _path in guest.shares)]
        return [DeviceAddress(device=device, bus="pci", address=f"0000:00:{slot:02x}.0")
                for slot, device in enumerate(devices, 2)]

    def console_output(self, instance: Instance, lines: int | None = None) -> bytes:
        console = []
        for booted in self._guests.get(instance.uuid).booted:
            console.append(f"{time.strftime('%H:%M:%S', time.gmtime(booted))} fake guest {instance.hostname} booted")
            console.append(f"{instance.hostname} login: ")
        return "\n".join(console[-lines:] if lines else ([] if lines == 0 else console)).encode()

    def console_address(self, uuid: str, protocol: str) -> ConsoleAddress | None:
        self._behave("console_address")
        guest = self._guests.get(uuid)
        if guest.incoming or guest.went:
            raise exception.GuestNotFound(instance_uuid=uuid)
        if not guest.on:
            raise exception.GuestNotRunning(instance_uuid=uuid)
        return self._consoles.address(uuid, protocol, guest.name)

    def diagnostics(self, instance: Instance) -> Diagnostics:
        return fake_diagnostics.collect(self._guests.get(instance.uuid), instance)

    def has_disks(self, instance: Instance) -> bool:
        return self._disks.get(instance.uuid) is not None

    def traces(self) -> set[str]:
        return set(fake_disks.uuids(self._disks))

    def stop_guest(self, uuid: str) -> None:
        if self._guests.find(uuid) is not None:
            self._guests.change(uuid, power_state=states.SHUTDOWN)

    def remove_orphan(self, uuid: str, keep_disks: bool = False) -> None:
        if not keep_disks:
            self._disks.remove(uuid + ASIDE)
        self._remove(uuid, keep_disks)

    def _remove(self, uuid: str, keep_disks: bool) -> None:
        self.serving.discard(uuid)
        self.passwords.pop(uuid, None)
        self.crash_dumps.pop(uuid, None)
        self.quiesced.discard(uuid)
        self._guests.remove(uuid)
        self._arrivals.forget(uuid, self.host)
        if not keep_disks:
            self._disks.remove(uuid)
            fake_disks.remove_file(self.host, uuid)

    # --- for tests ---------------------------------------------------------------------------------
    def guest(self, uuid: str) -> Guest:
        """Return the state of the guest on this host. Raises GuestNotFound."""
        return self._guests.get(uuid)

    def disk(self, uuid: str, aside: bool = False) -> Disk | None:
        """Return the guest's root disk on this host; ``aside``: the disk that a cold migration set aside."""
        return self._disks.get(uuid + ASIDE if aside else uuid)

    def adopt(self, uuid: str, power_state: int) -> None:
        """Create a guest as if it had survived a restart of this process."""
        self._guests.add(uuid, power_state)

    def name_of(self, uuid: str) -> str:
        """Return the name of the guest's domain."""
        return self._guests.get(uuid).name

    def change_by_itself(self, uuid: str, power_state: int) -> None:
        """Change the power state of the guest without a request, and report the event."""
        self._guests.change(uuid, power_state=power_state)
        if self._on_event:
            self._on_event(GuestStatus(uuid=uuid, power_state=power_state))

    def _behave(self, verb: str) -> None:
        delay = self._latency(verb)
        if delay:
            time.sleep(delay)
        self._fail(verb)

    def _latency(self, verb: str) -> float:
        return self.behaviour.latency.get(verb, self.behaviour.latency.get("*", 0.0))

    def _fail(self, verb: str) -> None:
        fraction = self.behaviour.failure.get(verb, self.behaviour.failure.get("*", 0.0))
        if fraction and random.random() < fraction:  # noqa: S311
            raise exception.NovaException(f"The fake hypervisor is configured to fail at {verb}.")


def _free_name(guest: Guest) -> str:
    """Return the first free disk name after that of the root disk."""
    taken = {name for name, _volume in guest.volumes}
    return next(name for letter in string.ascii_lowercase[1:] if (name := f"/dev/vd{letter}") not in taken)


def _guests_file(host: str) -> str | None:
    return os.path.join(CONF.fake.directory, f"{host}.guests") if CONF.fake.directory else None
