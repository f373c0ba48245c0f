"""Domain XML for host resources that are dedicated to a guest: NUMA cells, CPUs, memory pages and PCI devices."""

import dataclasses
import xml.etree.ElementTree as ET
from collections.abc import Iterable

from nova import exception
from nova.objects.dedicated_resources.numa import GuestTopology
from nova.objects.requirements.guest_numa import guest_topology
from nova.objects.servers.instance import Instance
from nova.virt.libvirt.xml.settings import Settings
from nova.virt.libvirt.xml.xmltree import element

# Values of CPU policy and page size that need no dedicated resources.
_NO_PROMISE = ("shared", "small", "any")


@dataclasses.dataclass(frozen=True)
class Cell:
    """A NUMA cell of the guest. ``host_cell``: id of the host's cell. ``page_kb``: size of its huge pages, or None."""

    id: int
    cpus: tuple[int, ...]
    memory_mb: int
    host_cell: int
    page_kb: int | None = None


@dataclasses.dataclass(frozen=True)
class HostDevice:
    """A PCI device of the host. ``managed``: libvirt unbinds the host's driver, and binds it again at the end."""

    address: str
    managed: bool = True


@dataclasses.dataclass(frozen=True)
class Parts:
    """Dedicated resources of a guest. ``pins``: each guest CPU, with the host CPUs that may run it; ``emulator``: host
    CPUs for QEMU's other threads; ``cpuset``: host CPUs for a guest without NUMA cells. Empty: all CPUs."""

    cells: tuple[Cell, ...] = ()
    pins: tuple[tuple[int, tuple[int, ...]], ...] = ()
    emulator: tuple[int, ...] = ()
    cpuset: tuple[int, ...] = ()
    devices: tuple[HostDevice, ...] = ()


def parts_of(instance: Instance, settings: Settings) -> Parts:
    """Return the dedicated resources of a server. Raises InvalidInput if requested resources were not assigned."""
    devices = tuple(HostDevice(item.device.address, item.device.tags.get("managed", "yes") not in ("no", "false"))
                    for item in instance.pci_devices or ())
    alias = instance.flavor.extra_specs.get("pci_passthrough:alias")
    if alias and not devices:
        raise exception.InvalidInput(reason=f"pci_passthrough:alias={alias}: no device of this host was assigned")
    has = instance.numa_topology
    if has is not None:
        return dataclasses.replace(_cells(has, settings), devices=devices)
    requested = _requested(instance)
    if requested and guest_topology(instance.flavor, instance.image) is not None:
        raise exception.InvalidInput(reason=f"{', '.join(requested)}: no NUMA cell of this host was assigned")
    return Parts(cpuset=settings.shared_cpus, devices=devices)


def _requested(instance: Instance) -> list[str]:
    """Return the properties of flavor and image that request NUMA cells, as name=value, for an error message."""
    names = ("hw:cpu_policy", "hw:numa_nodes", "hw:mem_page_size", "resources:PCPU")
    specs, properties = instance.flavor.extra_specs, instance.image.properties if instance.image else {}
    settings = [(name, specs[name]) for name in names if name in specs]
    settings += [(name, properties[name]) for name in (spec.replace(":", "_") for spec in names) if name in properties]
    return [f"{name}={value}" for name, value in settings if value not in _NO_PROMISE]


def _cells(has: GuestTopology, settings: Settings) -> Parts:
    cells, pins, memory_cells = [], [], []
    for cell in has.cells:
        if cell.host_cell is None:
            raise exception.InvalidInput(reason=f"NUMA cell {cell.id} of the server is not assigned to a host cell")
        huge = cell.pagesize_kb if cell.pagesize_kb != settings.page_kb else None
        cells.append(Cell(cell.id, tuple(sorted([*cell.cpus, *cell.pcpus])), cell.memory_mb, cell.host_cell, huge))
        floating = dict(settings.cells).get(cell.host_cell, ())
        pins += [(cpu, floating) for cpu in cell.cpus if floating]
        pins += [(cpu, (host,)) for cpu, host in cell.pinning.items()]
        memory_cells += cell.reserved_cpus
    everywhere = sorted({host for _cpu, hosts in pins for host in hosts})
    emulator = everywhere
    if has.emulator_policy == "isolate":
        emulator = sorted(memory_cells)
    elif has.emulator_policy == "share" and settings.shared_cpus:
        emulator = list(settings.shared_cpus)
    return Parts(tuple(cells), tuple(sorted(pins)), tuple(emulator))


# --- definition -----------------------------------------------------------------------------------
def add_memory(domain: ET.Element, parts: Parts, shared: bool = False, locked: bool = False) -> None:
    """Append <memoryBacking> and, for cells, <numatune>. ``shared``: other processes of the host access the guest's
    memory. ``locked``: the host never swaps the guest's memory."""
    huge = [cell for cell in parts.cells if cell.page_kb]
    backing = element(domain, "memoryBacking") if huge or shared or locked else None
    if huge and backing is not None:
        pages = element(backing, "hugepages")
        for size in sorted({cell.page_kb for cell in huge if cell.page_kb}):
            element(pages, "page", size=size, unit="KiB",
                    nodeset=numbers(cell.id for cell in huge if cell.page_kb == size))
    if locked and backing is not None:
        element(backing, "locked")
    if shared and backing is not None:
        if not huge:
            element(backing, "source", type="memfd")
        element(backing, "access", mode="shared")
    if parts.cells:
        tune = element(domain, "numatune")
        element(tune, "memory", mode="strict", nodeset=numbers({cell.host_cell for cell in parts.cells}))
        for cell in parts.cells:
            element(tune, "memnode", cellid=cell.id, mode="strict", nodeset=cell.host_cell)


def add_pins(tune: ET.Element, parts: Parts) -> None:
    """Append the pinning of CPUs to <cputune>."""
    for cpu, hosts in parts.pins:
        element(tune, "vcpupin", vcpu=cpu, cpuset=numbers(hosts))
    if parts.emulator:
        element(tune, "emulatorpin", cpuset=numbers(parts.emulator))


def add_cells(cpu: ET.Element, parts: Parts) -> None:
    """Append the NUMA cells to <cpu>."""
    if parts.cells:
        cells = element(cpu, "numa")
        for cell in parts.cells:
            element(cells, "cell", id=cell.id, cpus=numbers(cell.cpus), memory=cell.memory_mb * 1024, unit="KiB")


def add_devices(devices: ET.Element, parts: Parts) -> None:
    for device in parts.devices:
        domain, bus, rest = device.address.split(":")
        slot, _dot, function = rest.partition(".")
        item = element(devices, "hostdev", mode="subsystem", type="pci", managed="yes" if device.managed else "no")
        element(element(item, "source"), "address", domain=f"0x{domain}", bus=f"0x{bus}", slot=f"0x{slot}",
                function=f"0x{function}")


def numbers(these: Iterable[int]) -> str:
    """Format numbers as libvirt ranges, such as "0-3,6"."""
    ranges: list[list[int]] = []
    for number in sorted(these):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)
