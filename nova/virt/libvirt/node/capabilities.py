"""Capabilities of the host and of its guests, parsed from libvirt's XML. Includes the resources of the host that can be
dedicated to guests: NUMA cells, CPUs, and PCI devices."""

import contextlib
import dataclasses
import glob
import json
import logging
import os
import xml.etree.ElementTree as ET
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import libvirt
import msgspec

from nova import exception
from nova.conf import CONF
from nova.objects.dedicated_resources import pci, pci_spec
from nova.objects.dedicated_resources.numa import HostCell, HostTopology, Pages
from nova.objects.dedicated_resources.pci import PciDevice
from nova.objects.requirements.guest_numa import cpu_mask
from nova.virt.libvirt.xml.settings import GuestArchitecture, Settings
from nova.virt.libvirt.xml.xmltree import attribute

LOG = logging.getLogger(__name__)

# Directories with descriptions of vhost-user back ends. Shares need virtiofsd, described in one of these files.
_VHOST_USER = ("/usr/share/qemu/vhost-user", "/etc/qemu/vhost-user")
# Exclusive upper bound of CPU numbers in a list of siblings.
_MOST_CPUS = 1 << 16
# Parts of the address of a PCI device.
_ADDRESS = ("domain", "bus", "slot", "function")


@dataclasses.dataclass(frozen=True)
class Capabilities:
    """Capabilities of the host. ``guests``: (architecture, hypervisor type, vm mode). ``features``: CPU features of
    guests. ``models``: CPU models that guests can have; ``cpu_modes``: supported CPU modes. ``emulators``:
    (architecture, path of QEMU, machine types). ``foreign``: other guest architectures than the host's.
    ``model_traits``: traits for devices of QEMU and features of the kernel. ``disk_buses``: of the default machine."""

    arch: str
    host_uuid: str
    cpu_info: dict[str, Any]
    guests: tuple[tuple[str, str, str], ...]
    machines: frozenset[str] = frozenset()
    features: frozenset[str] = frozenset()
    models: frozenset[str] = frozenset()
    cpu_modes: frozenset[str] = frozenset()
    disk_buses: frozenset[str] = frozenset()
    video_models: frozenset[str] = frozenset()
    graphics: frozenset[str] = frozenset()
    # NUMA topology, whose CPUs are split by cpu_shared_set and cpu_dedicated_set.
    cells: HostTopology | None = None
    # True if guests can mount directories of the host (shares).
    virtio_fs: bool = False
    uefi: bool = False
    secure_boot: bool = False
    tpm: frozenset[str] = frozenset()  # versions and models of virtual TPMs
    emulators: tuple[tuple[str, str, frozenset[str]], ...] = ()
    foreign: tuple[GuestArchitecture, ...] = ()
    model_traits: frozenset[str] = frozenset()


def of_host(connection: libvirt.virConnect) -> Capabilities:
    """Return the host's capabilities. Raises InvalidInput naming an option of [compute]."""
    root = ET.fromstring(connection.getCapabilities())  # noqa: S314 - libvirt's own output
    cpu = root.find("host/cpu")
    arch = root.findtext("host/cpu/arch", "x86_64")
    guests, emulators = [], []
    for guest in root.findall("guest"):
        mode = guest.findtext("os_type", "hvm")
        for item in guest.findall("arch"):
            guests += [(item.get("name", ""), domain.get("type", ""), mode) for domain in item.findall("domain")]
            if mode == "hvm":
                emulators.append((item.get("name", ""), item.findtext("emulator", ""), frozenset(
                    machine.text or "" for machine in item.iter("machine"))))
    topology = numa_topology(root)
    machines = frozenset(machine.text or "" for machine in root.findall(f"guest/arch[@name='{arch}']//machine"))
    return Capabilities(arch=arch, machines=machines, host_uuid=root.findtext("host/uuid", ""), guests=tuple(guests),
                        cells=shared_out(topology) if topology is not None else None,
                        emulators=tuple(emulators), cpu_info=_cpu_info(connection, root, cpu, arch))


def of_guests(connection: libvirt.virConnect, host: Capabilities, settings: Settings,
              machines: tuple[str, ...]) -> Capabilities:
    """Return ``host`` with the capabilities of guests of the types ``machines``; the first is the default type."""
    buses: frozenset[str] = frozenset()
    videos: set[str] = set()
    graphics: set[str] = set()
    tpm = ("model", "backendVersion") if CONF.libvirt.swtpm_enabled else ()
    has_virtiofsd = any(_serves_file_systems(path) for place in _VHOST_USER
                        for path in glob.glob(os.path.join(place, "*.json")))
    described = host
    for machine in machines:
        try:
            text = connection.getDomainCapabilities(None, host.arch, machine, settings.virt_type)
        except libvirt.libvirtError:
            continue  # The hypervisor does not have this machine type.
        root = ET.fromstring(text)  # noqa: S314 - libvirt's own output
        buses = buses or _values(root, "devices/disk", "bus")
        videos |= _values(root, "devices/video", "modelType")
        graphics |= _values(root, "devices/graphics", "type")
        described = dataclasses.replace(
            described,
            models=frozenset(model.text or "" for model in root.findall("cpu/mode[@name='custom']/model")
                             if model.get("usable") != "no"),
            cpu_modes=frozenset(mode.get("name", "") for mode in root.findall("cpu/mode")
                                if mode.get("supported") == "yes"),
            uefi=described.uefi or "efi" in _values(root, "os", "firmware"),
            tpm=frozenset().union(*(_values(root, "devices/tpm", name) for name in tpm)) or described.tpm,
            virtio_fs=described.virtio_fs or (has_virtiofsd and "virtiofs" in _values(
                root, "devices/filesystem", "driverType")),
            secure_boot=described.secure_boot or "yes" in _values(root, "os/loader", "secure"),
            features=described.features or _guest_features(connection, host.arch, machine, settings, root))
    return dataclasses.replace(described, disk_buses=frozenset(buses), video_models=frozenset(videos),
                               graphics=frozenset(graphics))


def foreign(connection: libvirt.virConnect, host: Capabilities, settings: Settings,
            default_machines: Mapping[str, str]) -> tuple[GuestArchitecture, ...]:
    """Return the guest architectures for which the host has a QEMU, without the host's own architecture.
    ``default_machines``: default machine type by architecture; architectures without one are not offered."""
    architectures = []
    for name, _path, machines in host.emulators:
        types = {kind for arch, kind, _mode in host.guests if arch == name}
        kind = settings.virt_type if settings.virt_type in types else "qemu"
        if name == host.arch or name not in default_machines or kind not in types:
            continue
        try:
            text = connection.getDomainCapabilities(None, name, default_machines[name], kind)
        except libvirt.libvirtError as error:
            LOG.warning("Not offering guests of the architecture %s: %s", name, error)
            continue
        root = ET.fromstring(text)  # noqa: S314 - libvirt's own output
        if name == "aarch64" and "efi" not in _values(root, "os", "firmware"):
            LOG.warning("Not offering guests of the architecture %s: the host has no UEFI firmware for them", name)
            continue
        modes = {mode.get("name"): mode for mode in root.findall("cpu/mode") if mode.get("supported") == "yes"}
        models = {model.text for model in modes["custom"].findall("model") if model.get("usable") != "no"} \
            if "custom" in modes else set()
        mode, model = settings.cpu_mode, settings.cpu_model
        if mode is not None and (mode not in modes or (mode == "custom" and model not in models)):
            mode = None
        # QEMU would use a 32-bit CPU for guests of 64-bit ARM if the mode were missing.
        if mode is None and "maximum" in modes and (settings.cpu_mode is not None or name == "aarch64"):
            mode = "maximum"
        architectures.append(GuestArchitecture(name, kind, mode, model if mode == "custom" else None, machines))
    return tuple(architectures)


def _values(root: ET.Element, where: str, name: str) -> frozenset[str]:
    return frozenset(value.text or "" for value in root.findall(f"{where}/enum[@name='{name}']/value"))


def _cpu_info(connection: libvirt.virConnect, root: ET.Element, cpu: ET.Element | None, arch: str) -> dict[str, Any]:
    """Return the description of the host's CPU for the API os-hypervisors."""
    if cpu is None:
        return {"arch": arch}
    topology, text = cpu.find("topology"), ET.tostring(cpu, encoding="unicode")
    with contextlib.suppress(libvirt.libvirtError):
        text = connection.baselineCPU([text], libvirt.VIR_CONNECT_BASELINE_CPU_EXPAND_FEATURES)
    sizes = dict(topology.attrib) if topology is not None else {}
    return {"arch": arch, "model": cpu.findtext("model", ""), "vendor": cpu.findtext("vendor", ""),
            "topology": {"cells": len(root.findall("host/topology/cells/cell")) or 1,
                         **{name: int(sizes.get(name, 1)) for name in ("sockets", "cores", "threads")}},
            "features": sorted(_features(text))}


def _features(text: str) -> set[str]:
    return {feature.get("name", "") for feature in ET.fromstring(text).findall("feature")  # noqa: S314
            if feature.get("policy") not in ("disable", "forbid")}


def _guest_features(connection: libvirt.virConnect, arch: str, machine: str, settings: Settings,
                    root: ET.Element) -> frozenset[str]:
    mode = root.find("cpu/mode[@name='host-model']")
    if settings.cpu_mode == "custom":
        cpu = ET.Element("cpu")
        ET.SubElement(cpu, "model").text = settings.cpu_model
    elif mode is not None and mode.get("supported") == "yes":
        # The <mode> element has the child elements of a <cpu>, in libvirt's order.
        cpu = ET.Element("cpu")
        for child in mode:
            if child.tag in ("model", "vendor", "feature"):
                cpu.append(child)
    else:
        return frozenset()
    try:
        text = connection.baselineHypervisorCPU(
            None, arch, machine, settings.virt_type, [ET.tostring(cpu, encoding="unicode")],
            libvirt.VIR_CONNECT_BASELINE_CPU_EXPAND_FEATURES)
    except libvirt.libvirtError:
        return frozenset()
    flags = {flag.lstrip("+") for flag in settings.cpu_flags if not flag.startswith("-")}
    return frozenset(_features(text) | flags) - {flag[1:] for flag in settings.cpu_flags if flag.startswith("-")}


def _serves_file_systems(path: str) -> bool:
    try:
        with open(path, encoding="utf-8") as file:
            description = json.load(file)
        return description.get("type") == "fs" and os.access(str(description.get("binary", "")), os.X_OK)
    except (OSError, ValueError, AttributeError):
        return False


# --- resources that can be dedicated to guests -----------------------------------------------------------
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
    """Split the CPUs into shared and dedicated ones, and reserve huge pages. Raises InvalidInput naming the option."""
    cpus = [cpu for cell in topology.cells for cpu in cell.cpus]
    dedicated = _configured("cpu_dedicated_set", CONF.compute.cpu_dedicated_set, cpus) or set()
    shared = _configured("cpu_shared_set", CONF.compute.cpu_shared_set, cpus)
    if shared is None:
        shared = set() if dedicated else set(cpus)
    if both := sorted(shared & dedicated):
        raise exception.InvalidInput(reason="[compute]cpu_shared_set and [compute]cpu_dedicated_set both have CPU "
                                            f"{both[0]}")
    reserved = {}
    for option in CONF.reserved_huge_pages:
        given = dict(part.partition(":")[::2] for part in option.replace(" ", "").split(","))
        if given.keys() != {"node", "size", "count"} or not all(value.isdecimal() for value in given.values()):
            raise exception.InvalidInput(reason=f"reserved_huge_pages = {option} is not like node:0,size:2048,count:64")
        reserved[int(given["node"]), int(given["size"])] = int(given["count"])
    return HostTopology(cells=[msgspec.structs.replace(
        cell, cpus=sorted(shared.intersection(cell.cpus)), pcpus=sorted(dedicated.intersection(cell.cpus)),
        pages=[msgspec.structs.replace(pages, reserved=min(pages.total, reserved.get((cell.id, pages.size_kb), 0)))
               for pages in cell.pages]) for cell in topology.cells])


def _configured(option: str, value: str | None, cpus: Collection[int]) -> set[int] | None:
    if not value:
        return None
    try:
        named = cpu_mask(value, max(cpus, default=-1) + 1)
    except exception.InvalidInput as error:
        raise exception.InvalidInput(reason=f"[compute]{option}: {error.kwargs['reason']}") from error
    if not named & set(cpus):
        raise exception.InvalidInput(reason=f"[compute]{option} = {value} contains no CPU of this host")
    return named & set(cpus)


def pci_devices(connection: libvirt.virConnect) -> list[PciDevice] | None:
    """Return the PCI devices that match [pci]device_spec, or None if none matches. Raises InvalidInput."""
    specs = pci_spec.parse(CONF.pci.device_spec)
    if not specs:
        return None
    flags = libvirt.VIR_CONNECT_LIST_NODE_DEVICES_CAP_PCI_DEV | libvirt.VIR_CONNECT_LIST_NODE_DEVICES_CAP_NET
    return chosen((device.XMLDesc() for device in connection.listAllDevices(flags)), specs) or None


def chosen(texts: Iterable[str], specs: Iterable[pci_spec.DeviceSpec]) -> list[PciDevice]:
    """Return the PCI devices that match ``specs``. ``texts``: libvirt's XML of PCI devices and network interfaces."""
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
        place = physical.find("address")
        kind, parent = pci.VF, None if place is None else _pci_address(place.get(part, "0") for part in _ADDRESS)
    elif "virt_functions" in functions:
        kind = pci.PF
    cell = capability.find("numa")
    return PciDevice(
        address=_pci_address(capability.findtext(part, "0") for part in _ADDRESS),
        vendor_id=_id(capability, "vendor"), product_id=_id(capability, "product"), dev_type=kind, parent=parent,
        numa_node=int(cell.get("node", 0)) if cell is not None else None)


def _id(capability: ET.Element, tag: str) -> str:
    return attribute(capability, tag, "id").removeprefix("0x").lower()


def _pci_address(parts: Iterable[str]) -> str:
    return "{:04x}:{:02x}:{:02x}.{:x}".format(*(int(part, 0) for part in parts))
