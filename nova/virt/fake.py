"""A hypervisor that exists in memory only: many virtual nodes, settable latencies and failures.

For tests, benchmarks and a first try. Guests live as long as the process, or as long as
[fake] directory, which has one small file per guest. Sizes and behaviour come from [fake]; a test
may also set them on the driver's ``behaviour``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import threading
import time
import uuid as uuidlib

from nova import exception
from nova.conf import CONF
from nova.objects import states
from nova.objects.base import utcnow
from nova.objects.compute import DISK_GB, MEMORY_MB, VCPU, ComputeNode, GuestStatus, Inventory, Provider
from nova.objects.instance import Instance
from nova.virt.driver import Disks, Driver, EventHandler

# Node uuids are derived from their names, so that a restarted host has the same ones.
_NAMESPACE = uuidlib.UUID("9e0a4f0e-3f5c-4e53-9c1f-5f2d1f4f7d11")


@dataclasses.dataclass
class Behaviour:
    """Seconds that a verb takes and the share of calls that fail, by verb ("*": all others)."""

    latency: dict[str, float] = dataclasses.field(default_factory=dict)
    failure: dict[str, float] = dataclasses.field(default_factory=dict)

    @classmethod
    def configured(cls) -> Behaviour:
        return cls(latency={verb: float(value) for verb, value in CONF.fake.latency.items()},
                   failure={verb: float(value) for verb, value in CONF.fake.failure.items()})


@dataclasses.dataclass
class _Guest:
    power_state: int
    name: str = ""
    console: list[str] = dataclasses.field(default_factory=list)


class FakeDriver(Driver):
    """Virtual nodes of one host."""

    capabilities = frozenset({"pause", "suspend", "console_output"})
    needs_images = False

    def __init__(self, host: str) -> None:
        super().__init__(host)
        self.behaviour = Behaviour.configured()
        self._guests: dict[str, _Guest] = {}
        self._lock = threading.Lock()
        self._on_event: EventHandler | None = None

    def start(self, on_event: EventHandler) -> None:
        self._on_event = on_event
        directory = self._directory()
        if directory:
            os.makedirs(directory, exist_ok=True)
            for uuid in os.listdir(directory):
                with open(os.path.join(directory, uuid)) as file:
                    self._guests[uuid] = _Guest(int(file.read() or states.SHUTDOWN))

    def nodes(self) -> list[ComputeNode]:
        return [self._node(index) for index in range(CONF.fake.nodes)]

    def _node(self, index: int) -> ComputeNode:
        name = self.host if CONF.fake.nodes == 1 else f"{self.host}-{index:05d}"
        node_uuid = str(uuidlib.uuid5(_NAMESPACE, f"{self.host}/{name}"))
        ratio = {VCPU: CONF.cpu_allocation_ratio or CONF.initial_cpu_allocation_ratio,
                 MEMORY_MB: CONF.ram_allocation_ratio or CONF.initial_ram_allocation_ratio,
                 DISK_GB: CONF.disk_allocation_ratio or CONF.initial_disk_allocation_ratio}
        totals = {VCPU: CONF.fake.vcpus, MEMORY_MB: CONF.fake.memory_mb, DISK_GB: CONF.fake.disk_gb}
        return ComputeNode(
            uuid=node_uuid, host=self.host, hypervisor_hostname=name, hypervisor_type="fake",
            hypervisor_version=1000, host_ip=CONF.my_ip, uptime=None, disk_available_least=CONF.fake.disk_gb,
            cpu_info={"arch": "x86_64", "model": "Nehalem", "vendor": "Intel", "features": ["pge", "clflush"],
                      "topology": {"cores": 1, "threads": 1, "sockets": CONF.fake.vcpus}},
            supported_instances=[("x86_64", "fake", "hvm"), ("i686", "fake", "hvm")],
            provider=Provider(uuid=node_uuid, name=name, traits=["COMPUTE_NODE", "OWNER_NOVA"], inventories={
                name: Inventory(total=total, ratio=ratio[name], max_unit=total) for name, total in totals.items()}))

    # --- life of a guest -------------------------------------------------------------------------
    def prepare(self, instance: Instance, disks: Disks) -> None:
        self._behave("prepare")

    def spawn(self, instance: Instance, disks: Disks) -> None:
        self._behave("spawn")
        with self._lock:
            guest = self._guests.setdefault(instance.uuid, _Guest(states.RUNNING, instance.name))
            self._remember(instance.uuid, states.RUNNING)
            guest.console.append(f"{utcnow():%H:%M:%S} fake guest {instance.hostname} booted")
            guest.console.append(f"{instance.hostname} login: ")

    def destroy(self, instance: Instance, keep_disks: bool = False) -> None:
        self._behave("destroy")
        self.remove_leftovers(instance.uuid)

    def power_on(self, instance: Instance) -> None:
        self._set("power_on", instance, states.RUNNING)

    def power_off(self, instance: Instance, timeout: int = 0) -> None:
        self._set("power_off", instance, states.SHUTDOWN)

    def reboot(self, instance: Instance, hard: bool, timeout: int = 0) -> None:
        self._set("reboot", instance, states.RUNNING)
        with self._lock:
            self._guests[instance.uuid].console.append("fake guest rebooted")

    def pause(self, instance: Instance) -> None:
        self._set("pause", instance, states.POWER_PAUSED)

    def unpause(self, instance: Instance) -> None:
        self._set("unpause", instance, states.RUNNING)

    def suspend(self, instance: Instance) -> None:
        self._set("suspend", instance, states.POWER_SUSPENDED)

    def resume(self, instance: Instance) -> None:
        self._set("resume", instance, states.RUNNING)

    def _set(self, verb: str, instance: Instance, power_state: int) -> None:
        self._behave(verb)
        with self._lock:
            self._remember(instance.uuid, power_state)

    # --- looking -----------------------------------------------------------------------------------
    def guests(self) -> list[GuestStatus]:
        with self._lock:
            return [GuestStatus(uuid=uuid, power_state=guest.power_state) for uuid, guest in self._guests.items()]

    def power_state(self, uuid: str) -> int:
        with self._lock:
            return self._guest(uuid).power_state

    def console_output(self, instance: Instance, lines: int | None = None) -> bytes:
        with self._lock:
            console = self._guest(instance.uuid).console
            return "\n".join(console[-lines:] if lines else ([] if lines == 0 else console)).encode()

    def remove_leftovers(self, uuid: str) -> None:
        with self._lock:
            self._guests.pop(uuid, None)
            directory = self._directory()
            if directory:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(directory, uuid))

    def _directory(self) -> str | None:
        return os.path.join(CONF.fake.directory, self.host) if CONF.fake.directory else None

    def _remember(self, uuid: str, power_state: int) -> None:
        self._guest(uuid).power_state = power_state
        directory = self._directory()
        if directory:
            path = os.path.join(directory, uuid)
            # One write of one character is whole or not there.
            with open(path, "w") as file:
                file.write(str(power_state))

    def _guest(self, uuid: str) -> _Guest:
        guest = self._guests.get(uuid)
        if guest is None:
            raise exception.GuestNotFound(instance_uuid=uuid)
        return guest

    # --- for tests ---------------------------------------------------------------------------------
    def adopt(self, uuid: str, power_state: int) -> None:
        """Make a guest appear, as if it had survived a restart of this process."""
        with self._lock:
            self._guests[uuid] = _Guest(power_state)

    def name_of(self, uuid: str) -> str:
        """The name the guest was defined by."""
        with self._lock:
            return self._guest(uuid).name

    def change_by_itself(self, uuid: str, power_state: int) -> None:
        """The guest does something that nobody asked for, and the hypervisor tells."""
        with self._lock:
            self._remember(uuid, power_state)
        if self._on_event:
            self._on_event(GuestStatus(uuid=uuid, power_state=power_state))

    def _behave(self, verb: str) -> None:
        delay = self.behaviour.latency.get(verb, self.behaviour.latency.get("*", 0.0))
        if delay:
            time.sleep(delay)
        share = self.behaviour.failure.get(verb, self.behaviour.failure.get("*", 0.0))
        if share and random.random() < share:  # noqa: S311
            raise exception.NovaException(f"The fake hypervisor was told to fail at {verb}.")
