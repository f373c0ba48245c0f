"""Hardware of a virtual host: inventories, NUMA cells, PCI devices and child providers of its nodes."""

import itertools
import uuid as uuidlib
from collections.abc import Iterator, Mapping
from typing import Any

from nova.conf import CONF
from nova.objects.dedicated_resources import pci, pci_spec
from nova.objects.dedicated_resources.numa import HostCell, HostTopology, Pages
from nova.objects.dedicated_resources.pci import PciDevice
from nova.objects.hosts.node import DISK_GB, MEMORY_MB, VCPU, Inventory, Provider
from nova.objects.requirements.requested_resources import HYPERTHREADING, PCPU
from nova.virt.driver import HostCpu
from nova.virt.fake.scenario import Devices, Group, Size

_SMALL_KB = 4
# Traits of common virtual hardware.
HARDWARE = ("COMPUTE_ARCH_X86_64", "CUSTOM_COMPUTE_ARCH_I686", "COMPUTE_FIRMWARE_BIOS", "COMPUTE_FIRMWARE_UEFI",
            *(f"COMPUTE_STORAGE_BUS_{name}" for name in ("IDE", "SATA", "SCSI", "USB", "VIRTIO")),
            *(f"COMPUTE_NET_VIF_MODEL_{name}" for name in ("E1000", "E1000E", "RTL8139", "VIRTIO")),
            *(f"COMPUTE_GRAPHICS_MODEL_{name}" for name in ("CIRRUS", "NONE", "QXL", "VGA", "VIRTIO")))
# Constant CPU times.
CPU = HostCpu(frequency=800, user=26_728_850_000_000, kernel=5_664_160_000_000, idle=1_592_705_190_000_000,
              iowait=6_121_490_000_000)


def cpus(group: Group) -> int:
    """Return the number of CPUs of each node."""
    return group.vcpus or CONF.fake.vcpus


def inventories(group: Group) -> dict[str, Inventory]:
    """Return the inventories of each node of the group."""
    dedicated = group.cells.count * group.cells.dedicated if group.cells else 0
    totals: dict[str, Any] = {VCPU: cpus(group) - dedicated, PCPU: dedicated,
                              MEMORY_MB: group.memory_mb or CONF.fake.memory_mb,
                              DISK_GB: group.disk_gb or CONF.fake.disk_gb, **group.inventories}
    return _inventories({name: total for name, total in totals.items() if total})


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


def traits(group: Group) -> list[str]:
    threads = {HYPERTHREADING} if group.cells and group.cells.threads > 1 else set()
    return sorted({*HARDWARE, "COMPUTE_NODE", "COMPUTE_RESCUE_BFV", "COMPUTE_STORAGE_VIRTIO_FS",
                   "COMPUTE_VOLUME_MULTI_ATTACH", "OWNER_NOVA", *threads, *group.traits})


def children(group: Group, node_uuid: str, name: str) -> list[Provider]:
    """Return the child providers of a node."""
    return [Provider(uuid=str(uuidlib.uuid5(uuidlib.UUID(node_uuid), child)), name=f"{name}_{child}",
                     parent_uuid=node_uuid, inventories=_inventories(made.inventories), traits=sorted(made.traits))
            for child, made in sorted(group.children.items())]


def topology(group: Group) -> HostTopology | None:
    """Return the NUMA cells of each node. The last CPUs of each cell are the dedicated ones."""
    cells = group.cells
    if cells is None:
        return None
    size, memory = cpus(group) // cells.count, (group.memory_mb or CONF.fake.memory_mb) // cells.count
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


def devices(group: Group) -> list[PciDevice] | None:
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
