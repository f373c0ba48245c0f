"""What libvirt says of the host and of the guests it can run, read into plain values."""

from __future__ import annotations

import dataclasses
import xml.etree.ElementTree as ET
from typing import Any

import libvirt

from nova.objects.parts.numa import HostTopology
from nova.virt.libvirt.node import cells
from nova.virt.libvirt.node.vhost_user import serves_file_systems
from nova.virt.libvirt.xml.settings import Settings


@dataclasses.dataclass(frozen=True)
class Capabilities:
    """``guests``: (architecture, hypervisor type, vm mode); ``features`` of the CPU that guests see.

    ``models`` are the CPU models that the host can provide; ``cpu_modes`` the modes it has.
    """

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
    # With the CPUs as the operator shares them out.
    cells: HostTopology | None = None
    # Guests can be given directories of the host.
    virtio_fs: bool = False
    uefi: bool = False
    secure_boot: bool = False


def of_host(connection: libvirt.virConnect) -> Capabilities:
    """What does not depend on how guests are configured. Raises InvalidInput naming an option of [compute]."""
    root = ET.fromstring(connection.getCapabilities())  # noqa: S314 - libvirt's own output
    cpu = root.find("host/cpu")
    arch = root.findtext("host/cpu/arch", "x86_64")
    guests = []
    for guest in root.findall("guest"):
        mode = guest.findtext("os_type", "hvm")
        for item in guest.findall("arch"):
            guests += [(item.get("name", ""), domain.get("type", ""), "exe" if mode == "exe" else mode)
                       for domain in item.findall("domain")]
    topology = cells.of_host(root)
    machines = frozenset(machine.text or "" for machine in root.findall(f"guest/arch[@name='{arch}']//machine"))
    return Capabilities(arch=arch, machines=machines, host_uuid=root.findtext("host/uuid", ""), guests=tuple(guests),
                        cells=cells.shared_out(topology) if topology is not None else None,
                        cpu_info=_cpu_info(connection, root, cpu, arch))


def of_guests(connection: libvirt.virConnect, host: Capabilities, settings: Settings,
              machines: tuple[str, ...]) -> Capabilities:
    """``host`` completed by what guests of the configured kind may have on any of ``machines``."""
    buses: set[str] = set()
    videos: set[str] = set()
    graphics: set[str] = set()
    found = host
    for machine in machines:
        try:
            text = connection.getDomainCapabilities(None, host.arch, machine, settings.virt_type)
        except libvirt.libvirtError:
            continue  # a machine type that this hypervisor does not have
        root = ET.fromstring(text)  # noqa: S314 - libvirt's own output
        buses |= _values(root, "devices/disk", "bus")
        videos |= _values(root, "devices/video", "modelType")
        graphics |= _values(root, "devices/graphics", "type")
        found = dataclasses.replace(
            found,
            models=frozenset(model.text or "" for model in root.findall("cpu/mode[@name='custom']/model")
                             if model.get("usable") != "no"),
            cpu_modes=frozenset(mode.get("name", "") for mode in root.findall("cpu/mode")
                                if mode.get("supported") == "yes"),
            uefi=found.uefi or "efi" in _values(root, "os", "firmware"),
            virtio_fs=found.virtio_fs or (serves_file_systems() and "virtiofs" in _values(
                root, "devices/filesystem", "driverType")),
            secure_boot=found.secure_boot or "yes" in _values(root, "os/loader", "secure"),
            features=found.features or _guest_features(connection, host.arch, machine, settings, root),
        )
    return dataclasses.replace(found, disk_buses=frozenset(buses), video_models=frozenset(videos),
                               graphics=frozenset(graphics))


def _values(root: ET.Element, where: str, name: str) -> set[str]:
    return {value.text or "" for value in root.findall(f"{where}/enum[@name='{name}']/value")}


def _cpu_info(connection: libvirt.virConnect, root: ET.Element, cpu: ET.Element | None, arch: str) -> dict[str, Any]:
    """The CPU as os-hypervisors shows it."""
    if cpu is None:
        return {"arch": arch}
    topology = cpu.find("topology")
    sizes = dict(topology.attrib) if topology is not None else {}
    number = len(root.findall("host/topology/cells/cell")) or 1
    return {
        "arch": arch, "model": cpu.findtext("model", ""), "vendor": cpu.findtext("vendor", ""),
        "topology": {"cells": number, **{name: int(sizes.get(name, 1)) for name in ("sockets", "cores", "threads")}},
        "features": sorted(_expand_host(connection, cpu)),
    }


def _expand_host(connection: libvirt.virConnect, cpu: ET.Element) -> set[str]:
    try:
        text = connection.baselineCPU([ET.tostring(cpu, encoding="unicode")],
                                      libvirt.VIR_CONNECT_BASELINE_CPU_EXPAND_FEATURES)
    except libvirt.libvirtError:
        text = ET.tostring(cpu, encoding="unicode")
    return _features(text)


def _features(text: str) -> set[str]:
    return {feature.get("name", "") for feature in ET.fromstring(text).findall("feature")  # noqa: S314
            if feature.get("policy") not in ("disable", "forbid")}


def _guest_features(connection: libvirt.virConnect, arch: str, machine: str, settings: Settings,
                    root: ET.Element) -> frozenset[str]:
    """The features of the CPU model that guests get, all of them."""
    mode = root.find("cpu/mode[@name='host-model']")
    if settings.cpu_mode == "custom":
        cpu = ET.Element("cpu")
        ET.SubElement(cpu, "model").text = settings.cpu_model
    elif mode is not None and mode.get("supported") == "yes":
        # the description of a mode has a CPU's elements, in the order that libvirt gave them
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
