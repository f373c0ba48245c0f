"""The fake hypervisor: virtual nodes in memory, with configurable latencies and failures.

For tests, benchmarks and evaluation. Guests exist until the process ends or, if [fake]directory is set, permanently (in
a few files per host). Sizes and behaviour are configured in [fake], or for many hosts in one process by a scenario
(:mod:`nova.virt.fake.scenario`). Tests may change the driver's ``behaviour`` and read its ``state``, with
``guest(uuid)`` and ``disk(uuid)``.

Unlike a real hypervisor, the driver never refuses to remove a guest, so that tests detect wrong removals."""

from __future__ import annotations

import itertools
import uuid as uuidlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nova.conf import CONF
from nova.objects.dedicated_resources import pci, pci_spec
from nova.objects.dedicated_resources.numa import HostCell, HostTopology, Pages
from nova.objects.dedicated_resources.pci import PciDevice
from nova.objects.hosts.node import DISK_GB, MEMORY_MB, VCPU, ComputeNode, Inventory, Provider
from nova.objects.requirements.requested_resources import HYPERTHREADING, PCPU
from nova.objects.servers.guest import GuestStatus
from nova.virt.driver import Driver, EventHandler, HostCpu
from nova.virt.fake import moves, roles
from nova.virt.fake import scenario as fake_scenario
from nova.virt.fake.disks import ASIDE, Disk
from nova.virt.fake.guests import Guest
from nova.virt.fake.host import Behaviour, FakeHost
from nova.virt.fake.scenario import Devices, Group, Size

# Node uuids are derived from node names, so that they survive a restart of the host.
_NAMESPACE = uuidlib.UUID("9e0a4f0e-3f5c-4e53-9c1f-5f2d1f4f7d11")
_SMALL_KB = 4  # KiB of a small page
# Traits of common virtual hardware.
HARDWARE = ("COMPUTE_ARCH_X86_64", "CUSTOM_COMPUTE_ARCH_I686", "COMPUTE_FIRMWARE_BIOS", "COMPUTE_FIRMWARE_UEFI",
            *(f"COMPUTE_STORAGE_BUS_{name}" for name in ("IDE", "SATA", "SCSI", "USB", "VIRTIO")),
            *(f"COMPUTE_NET_VIF_MODEL_{name}" for name in ("E1000", "E1000E", "RTL8139", "VIRTIO")),
            *(f"COMPUTE_GRAPHICS_MODEL_{name}" for name in ("CIRRUS", "NONE", "QXL", "VGA", "VIRTIO")))
# CPU times that each virtual host reports.
_CPU = HostCpu(frequency=800, user=26_728_850_000_000, kernel=5_664_160_000_000, idle=1_592_705_190_000_000,
               iowait=6_121_490_000_000)


class FakeDriver(Driver):
    """The driver of the virtual nodes of one host. ``group``: their description in a scenario."""

    capabilities = frozenset({"pause", "suspend", "console_output", "diagnostics", "attach_volume", "attach_interface",
                              "move", "live_migration", "snapshot"})
    needs_images = False
    virtual = True

    def __init__(self, host: str, group: Group | None = None) -> None:
        if group is None:
            scenario = fake_scenario.configured()
            group = scenario.hosts().get(host) if scenario else None
        self.state = state = FakeHost(host, Behaviour.configured(group))
        super().__init__(host=host, guests=roles.Guests(state), disks=roles.Disks(state), power=roles.Power(state),
                         consoles=roles.Consoles(state), rescue=roles.Rescue(state), snapshots=roles.Snapshots(state),
                         volumes=roles.Volumes(state), volume_swaps=roles.VolumeSwaps(state),
                         volume_files=roles.VolumeFiles(state), interfaces=roles.Interfaces(state),
                         cold_migration=moves.ColdMigration(state), live_source=moves.LiveMigrationSource(state),
                         live_target=moves.LiveMigrationTarget(state))
        self._group = group or Group(name="fake", nodes=CONF.fake.nodes)
        # Boot id that tests set to simulate a boot of the host; "": the real one.
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
        cpus, topology, devices = _cpus(group), _topology(group), _devices(group)
        dedicated = group.cells.count * group.cells.dedicated if group.cells else 0
        totals: dict[str, Any] = {VCPU: cpus - dedicated, PCPU: dedicated,
                                  MEMORY_MB: group.memory_mb or CONF.fake.memory_mb,
                                  DISK_GB: group.disk_gb or CONF.fake.disk_gb, **group.inventories}
        inventories = _inventories({name: total for name, total in totals.items() if total})
        threads = {HYPERTHREADING} if group.cells and group.cells.threads > 1 else set()
        traits = sorted({*HARDWARE, "COMPUTE_NODE", "COMPUTE_RESCUE_BFV", "COMPUTE_STORAGE_VIRTIO_FS",
                         "COMPUTE_VOLUME_MULTI_ATTACH", "OWNER_NOVA", *threads, *group.traits})
        cpu_info = {"arch": "x86_64", "model": "Nehalem", "vendor": "Intel", "features": ["pge", "clflush"],
                    "topology": {"cores": 1, "threads": 1, "sockets": cpus}}
        supported = [("x86_64", "fake", "hvm"), ("i686", "fake", "hvm")]
        nodes = []
        for index in range(group.nodes):
            name = self.host if group.nodes == 1 else f"{self.host}-{index:05d}"
            node_uuid = str(uuidlib.uuid5(_NAMESPACE, f"{self.host}/{name}"))
            nodes.append(ComputeNode(
                uuid=node_uuid, host=self.host, hypervisor_hostname=name, hypervisor_type="fake",
                hypervisor_version=1000, host_ip=CONF.my_ip, uptime=None,
                disk_available_least=inventories[DISK_GB].total, cpu_info=cpu_info, supported_instances=supported,
                numa_topology=topology, pci_devices=devices, children=[
                    Provider(uuid=str(uuidlib.uuid5(uuidlib.UUID(node_uuid), child)), name=f"{name}_{child}",
                             parent_uuid=node_uuid, inventories=_inventories(made.inventories),
                             traits=sorted(made.traits)) for child, made in sorted(group.children.items())],
                provider=Provider(uuid=node_uuid, name=name, traits=traits, inventories=inventories)))
        return nodes

    def host_cpu(self) -> HostCpu:
        return _CPU

    # --- for tests ---------------------------------------------------------------------------------
    def guest(self, uuid: str) -> Guest:
        """Return the state of the guest on this host. Raises GuestNotFound."""
        return self.state.guests.get(uuid)

    def disk(self, uuid: str, aside: bool = False) -> Disk | None:
        """Return the guest's root disk on this host; ``aside``: the disk that a cold migration renamed."""
        return self.state.disks.get(uuid + ASIDE if aside else uuid)

    def change_by_itself(self, uuid: str, power_state: int) -> None:
        """Change the power state of the guest without a request, and report the event."""
        self.state.guests.change(uuid, power_state=power_state)
        if self._on_event:
            self._on_event(GuestStatus(uuid=uuid, power_state=power_state))


# --- hardware of the nodes of a group ------------------------------------------------------------------
def _cpus(group: Group) -> int:
    return group.vcpus or CONF.fake.vcpus


def _inventories(totals: Mapping[str, Any]) -> dict[str, Inventory]:
    ratio = {VCPU: CONF.cpu_allocation_ratio or CONF.initial_cpu_allocation_ratio,
             MEMORY_MB: CONF.ram_allocation_ratio or CONF.initial_ram_allocation_ratio,
             DISK_GB: CONF.disk_allocation_ratio or CONF.initial_disk_allocation_ratio}
    inventories = {}
    for name, given in totals.items():
        size = given if isinstance(given, Size) else Size(total=given)
        inventories[name] = Inventory(
            total=size.total, reserved=size.reserved, min_unit=size.min_unit, max_unit=size.max_unit or size.total,
            step_size=size.step_size, ratio=size.ratio or ratio.get(name, 1.0))
    return inventories


def _topology(group: Group) -> HostTopology | None:
    """Return the NUMA cells of each node. The dedicated CPUs of a cell are those with the highest numbers."""
    cells = group.cells
    if cells is None:
        return None
    size, memory = _cpus(group) // cells.count, (group.memory_mb or CONF.fake.memory_mb) // cells.count
    huge = [Pages(size_kb=page, total=count) for page, count in sorted(cells.pages.items())]
    small = Pages(size_kb=_SMALL_KB, total=(memory * 1024 - sum(pages.size_kb * pages.total for pages in huge))
                  // _SMALL_KB)
    host_cells = []
    for number in range(cells.count):
        mine = list(range(number * size, (number + 1) * size))
        host_cells.append(HostCell(
            id=number, cpus=mine[:size - cells.dedicated], pcpus=mine[size - cells.dedicated:], memory_mb=memory,
            siblings=[mine[start:start + cells.threads] for start in range(0, size, cells.threads)]
            if cells.threads > 1 else [], pages=[small, *huge], socket=number))
    return HostTopology(cells=host_cells)


def _devices(group: Group) -> list[PciDevice] | None:
    """Return the devices of each node that may be assigned to guests, filtered by [pci]device_spec if set."""
    buses = itertools.count(1)
    devices = [device for alike in group.devices for cell in (alike.cells or (None,)) for _number in range(alike.count)
             for device in _device(alike, cell, next(buses))]
    if CONF.pci.device_spec:
        devices = pci_spec.given_out(devices, pci_spec.parse(CONF.pci.device_spec))
    return devices or None


def _device(alike: Devices, cell: int | None, bus: int) -> Iterator[PciDevice]:
    address = f"{bus >> 8:04x}:{bus & 255:02x}:00.0"
    yield PciDevice(address=address, vendor_id=alike.vendor_id, product_id=alike.product_id, numa_node=cell,
                    dev_type=pci.PF if alike.functions else pci.PCI, tags=alike.tags)
    for number in range(1, alike.functions + 1):
        yield PciDevice(address=f"{bus >> 8:04x}:{bus & 255:02x}:{number >> 3:02x}.{number & 7}", dev_type=pci.VF,
                        vendor_id=alike.vendor_id, product_id=alike.product_id, numa_node=cell, parent=address,
                        tags=alike.tags)
