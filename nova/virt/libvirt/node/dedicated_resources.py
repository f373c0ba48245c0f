"""Resources of the host that are dedicated to guests: NUMA cells, CPUs, and PCI devices."""

import xml.etree.ElementTree as ET
from collections.abc import Collection, Iterable

import libvirt
import msgspec

from nova import exception
from nova.conf import CONF
from nova.objects.dedicated_resources import pci, pci_spec
from nova.objects.dedicated_resources.numa import HostCell, HostTopology, Pages
from nova.objects.dedicated_resources.pci import PciDevice
from nova.objects.requirements.guest_numa import cpu_mask
from nova.virt.libvirt.xml.xmltree import attribute

# Exclusive upper bound of CPU numbers in a list of siblings.
_MOST_CPUS = 1 << 16


def numa_topology(capabilities: ET.Element) -> HostTopology | None:
    """Return the NUMA topology with all CPUs shared, or None if libvirt reports no cells with CPUs."""
    cells = [_cell(item) for item in capabilities.findall("host/topology/cells/cell")]
    return HostTopology(cells=cells) if any(cell.cpus for cell in cells) else None


def _cell(item: ET.Element) -> HostCell:
    cpus = item.findall("cpus/cpu")
    cores = sorted({tuple(sorted(cpu_mask(cpu.get("siblings", cpu.get("id", "0")), _MOST_CPUS))) for cpu in cpus})
    sockets = {cpu.get("socket_id") for cpu in cpus} - {None}
    pages = [Pages(size_kb=int(page.get("size", 4)), total=int(page.text or 0)) for page in item.findall("pages")]
    smallest = min((page.size_kb for page in pages), default=0)
    return HostCell(id=int(item.get("id", 0)), cpus=sorted(int(cpu.get("id", 0)) for cpu in cpus),
                    siblings=[list(core) for core in cores] if any(len(core) > 1 for core in cores) else [],
                    memory_mb=int(item.findtext("memory", "0")) // 1024,
                    socket=int(sockets.pop() or 0) if len(sockets) == 1 else None,
                    pages=[page for page in pages if page.total or page.size_kb == smallest])


def shared_out(topology: HostTopology) -> HostTopology:
    """Split the CPUs into shared and dedicated CPUs, and set the number of reserved huge pages. Raises InvalidInput
    naming the option."""
    shared, dedicated = (set(cpus) for cpus in split_cpus([cpu for cell in topology.cells for cpu in cell.cpus]))
    reserved = _reserved(CONF.reserved_huge_pages)
    return HostTopology(cells=[msgspec.structs.replace(
        cell, cpus=sorted(shared.intersection(cell.cpus)), pcpus=sorted(dedicated.intersection(cell.cpus)),
        pages=[msgspec.structs.replace(pages, reserved=min(pages.total, reserved.get((cell.id, pages.size_kb), 0)))
               for pages in cell.pages]) for cell in topology.cells])


def _reserved(options: Iterable[str]) -> dict[tuple[int, int], int]:
    """Return (cell, KiB) -> pages."""
    reserved = {}
    for option in options:
        given = dict(part.partition(":")[::2] for part in option.replace(" ", "").split(","))
        if given.keys() != {"node", "size", "count"} or not all(value.isdecimal() for value in given.values()):
            raise exception.InvalidInput(reason=f"reserved_huge_pages = {option} is not like node:0,size:2048,count:64")
        reserved[int(given["node"]), int(given["size"])] = int(given["count"])
    return reserved


def split_cpus(cpus: Collection[int]) -> tuple[list[int], list[int]]:
    """Return the (shared, dedicated) CPUs of the host as configured in [compute]. Raises InvalidInput, which names the
    option."""
    dedicated = _configured("cpu_dedicated_set", CONF.compute.cpu_dedicated_set, cpus)
    shared = _configured("cpu_shared_set", CONF.compute.cpu_shared_set, cpus)
    if shared is None:
        shared = set() if dedicated else set(cpus)
    both = sorted(shared & (dedicated or set()))
    if both:
        raise exception.InvalidInput(reason="[compute]cpu_shared_set and [compute]cpu_dedicated_set both have CPU "
                                            f"{both[0]}")
    return sorted(shared), sorted(dedicated or ())


def _configured(option: str, value: str | None, cpus: Collection[int]) -> set[int] | None:
    if not value:
        return None
    try:
        named = cpu_mask(value, max(cpus, default=-1) + 1)
    except exception.InvalidInput as error:
        raise exception.InvalidInput(reason=f"[compute]{option}: {error.kwargs['reason']}") from error
    if not named & set(cpus):
        raise exception.InvalidInput(reason=f"[compute]{option} = {value} names no CPU of this host")
    return named & set(cpus)


def pci_devices(connection: libvirt.virConnect) -> list[PciDevice] | None:
    """Return the PCI devices that match [pci]device_spec, or None. Raises InvalidInput."""
    specs = pci_spec.parse(CONF.pci.device_spec)
    if not specs:
        return None
    flags = libvirt.VIR_CONNECT_LIST_NODE_DEVICES_CAP_PCI_DEV | libvirt.VIR_CONNECT_LIST_NODE_DEVICES_CAP_NET
    return chosen((device.XMLDesc() for device in connection.listAllDevices(flags)), specs) or None


def chosen(texts: Iterable[str], specs: Iterable[pci_spec.DeviceSpec]) -> list[PciDevice]:
    """Return the devices for guests among these descriptions (PCI devices and network interfaces)."""
    devices: dict[str, PciDevice] = {}
    interfaces: dict[str, list[str]] = {}
    for text in texts:
        root = ET.fromstring(text)  # noqa: S314 - libvirt's own output
        capability = root.find("capability")
        if capability is None:
            continue
        if capability.get("type") == "net":
            interfaces.setdefault(root.findtext("parent", ""), []).append(capability.findtext("interface", ""))
        elif capability.get("type") == "pci" and capability.find("capability[@type='pci-bridge']") is None:
            devices[root.findtext("name", "")] = _device(capability)
    names = {devices[parent].address: names for parent, names in interfaces.items() if parent in devices}
    return sorted(pci_spec.given_out(devices.values(), specs, names), key=lambda device: device.address)


def _device(capability: ET.Element) -> PciDevice:
    functions = {function.get("type"): function for function in capability.findall("capability")}
    physical = functions.get("phys_function")
    kind, parent = pci.PCI, None
    if physical is not None:
        kind, parent = pci.VF, _address(physical.find("address"))
    elif "virt_functions" in functions:
        kind = pci.PF
    cell = capability.find("numa")
    return PciDevice(
        address="{:04x}:{:02x}:{:02x}.{:x}".format(*(
            int(capability.findtext(part, "0"), 0) for part in ("domain", "bus", "slot", "function"))),
        vendor_id=_id(capability, "vendor"), product_id=_id(capability, "product"), dev_type=kind, parent=parent,
        numa_node=int(cell.get("node", 0)) if cell is not None else None)


def _id(capability: ET.Element, tag: str) -> str:
    return attribute(capability, tag, "id").removeprefix("0x").lower()


def _address(item: ET.Element | None) -> str | None:
    if item is None:
        return None
    return "{:04x}:{:02x}:{:02x}.{:x}".format(*(
        int(item.get(part, "0"), 0) for part in ("domain", "bus", "slot", "function")))
