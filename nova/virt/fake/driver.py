"""The fake hypervisor: virtual nodes in memory, with configurable latencies and failures.

For tests, benchmarks and evaluation. Guests exist as long as the process, or with [fake] directory (a few files per
host) permanently. Sizes and behaviour are configured in [fake], or for many hosts in one process by a scenario
(:mod:`nova.virt.fake.scenario`). Tests may change the driver's ``behaviour`` and read its ``state``, with
``guest(uuid)`` and ``disk(uuid)``.

Unlike a real hypervisor, the driver never refuses to remove a guest, so that tests detect wrong orders."""

from __future__ import annotations

import uuid as uuidlib
from collections.abc import Sequence

from nova.conf import CONF
from nova.objects.hosts.node import DISK_GB, ComputeNode, Provider
from nova.objects.servers.guest import GuestStatus
from nova.virt.driver import Driver, EventHandler, HostCpu
from nova.virt.fake import devices, life, moves
from nova.virt.fake import machine as fake_machine
from nova.virt.fake import scenario as fake_scenario
from nova.virt.fake.disks import ASIDE, Disk
from nova.virt.fake.guests import Guest
from nova.virt.fake.host import Behaviour, FakeHost

# Node uuids are derived from node names, so that they survive a restart of the host.
_NAMESPACE = uuidlib.UUID("9e0a4f0e-3f5c-4e53-9c1f-5f2d1f4f7d11")


class FakeDriver(Driver):
    """The driver of the virtual nodes of one host. ``group``: their description in a scenario."""

    capabilities = frozenset({"pause", "suspend", "console_output", "diagnostics", "attach_volume", "attach_interface",
                              "move", "live_migration", "snapshot"})
    needs_images = False
    virtual = True

    def __init__(self, host: str, group: fake_scenario.Group | None = None) -> None:
        if group is None:
            scenario = fake_scenario.configured()
            group = scenario.hosts().get(host) if scenario else None
        self.state = state = FakeHost(host, Behaviour.configured(group))
        super().__init__(host=host, guests=life.Guests(state), disks=life.Disks(state), power=life.Power(state),
                         consoles=life.Consoles(state), rescue=life.Rescue(state), snapshots=life.Snapshots(state),
                         volumes=devices.Volumes(state), volume_swaps=devices.VolumeSwaps(state),
                         volume_files=devices.VolumeFiles(state), interfaces=devices.Interfaces(state),
                         cold_migration=moves.ColdMigration(state), live_source=moves.LiveMigrationSource(state),
                         live_target=moves.LiveMigrationTarget(state))
        self._group = group or fake_scenario.Group(name="fake", nodes=CONF.fake.nodes)
        # Set by tests to simulate a boot of the host.
        self.boot = ""
        self.behaviour = state.behaviour
        self._on_event: EventHandler | None = None

    @classmethod
    def of_all_hosts(cls) -> Sequence[FakeDriver]:
        scenario = fake_scenario.configured()
        return [cls(host, group) for host, group in scenario.hosts().items()] if scenario else ()

    def start(self, on_event: EventHandler) -> None:
        self._on_event = on_event
        self.state.guests.open()
        self.state.disks.open()

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

    # --- for tests ---------------------------------------------------------------------------------
    def guest(self, uuid: str) -> Guest:
        """Return the state of the guest on this host. Raises GuestNotFound."""
        return self.state.guests.get(uuid)

    def disk(self, uuid: str, aside: bool = False) -> Disk | None:
        """Return the guest's root disk on this host; ``aside``: the disk that a cold migration set aside."""
        return self.state.disks.get(uuid + ASIDE if aside else uuid)

    def adopt(self, uuid: str, power_state: int) -> None:
        """Create a guest as if it had survived a restart of this process."""
        self.state.guests.add(uuid, power_state)

    def name_of(self, uuid: str) -> str:
        """Return the name of the guest's domain."""
        return self.state.guests.get(uuid).name

    def change_by_itself(self, uuid: str, power_state: int) -> None:
        """Change the power state of the guest without a request, and report the event."""
        self.state.guests.change(uuid, power_state=power_state)
        if self._on_event:
            self._on_event(GuestStatus(uuid=uuid, power_state=power_state))
