"""Host and guest capabilities parsed from libvirt's XML."""

import dataclasses
import glob
import json
import logging
import os
import xml.etree.ElementTree as ET
from collections.abc import Iterable
from typing import Any

import libvirt

from nova.objects.dedicated_resources.numa import HostTopology
from nova.virt.libvirt.node import dedicated_resources
from nova.virt.libvirt.xml.settings import GuestArchitecture, Settings

LOG = logging.getLogger(__name__)

# Directories with descriptions of vhost-user back ends; one file in any of them is enough.
_VHOST_USER = ("/usr/share/qemu/vhost-user", "/etc/qemu/vhost-user")


@dataclasses.dataclass(frozen=True)
class Capabilities:
    """Capabilities of the host. ``guests``: (architecture, hypervisor type, vm mode). ``features``: of the CPU of
    guests. ``models``: CPU models that the host can provide; ``cpu_modes``: its CPU modes. ``emulators``: path of QEMU
    and machine types by architecture. ``model_traits``: traits of the device models of its QEMU and kernel.
    ``disk_buses``: of the default machine type."""

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
    # NUMA topology; cpu_shared_set and cpu_dedicated_set divide its CPUs.
    cells: HostTopology | None = None
    # Guests can have directories of the host.
    virtio_fs: bool = False
    uefi: bool = False
    secure_boot: bool = False
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
    topology = dedicated_resources.numa_topology(root)
    machines = frozenset(machine.text or "" for machine in root.findall(f"guest/arch[@name='{arch}']//machine"))
    return Capabilities(arch=arch, machines=machines, host_uuid=root.findtext("host/uuid", ""), guests=tuple(guests),
                        cells=dedicated_resources.shared_out(topology) if topology is not None else None,
                        emulators=tuple(emulators), cpu_info=_cpu_info(connection, root, cpu, arch))


def of_guests(connection: libvirt.virConnect, host: Capabilities, settings: Settings,
              machines: tuple[str, ...]) -> Capabilities:
    """Return ``host`` with the capabilities of guests on any of ``machines``, the default one first."""
    buses: set[str] = set()
    videos: set[str] = set()
    graphics: set[str] = set()
    has_virtiofsd = any(_serves_file_systems(path) for place in _VHOST_USER
                        for path in glob.glob(os.path.join(place, "*.json")))
    described = host
    for machine in machines:
        try:
            text = connection.getDomainCapabilities(None, host.arch, machine, settings.virt_type)
        except libvirt.libvirtError:
            continue  # Unknown machine type of this hypervisor.
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
            virtio_fs=described.virtio_fs or (has_virtiofsd and "virtiofs" in _values(
                root, "devices/filesystem", "driverType")),
            secure_boot=described.secure_boot or "yes" in _values(root, "os/loader", "secure"),
            features=described.features or _guest_features(connection, host.arch, machine, settings, root))
    return dataclasses.replace(described, disk_buses=frozenset(buses), video_models=frozenset(videos),
                               graphics=frozenset(graphics))


def foreign(connection: libvirt.virConnect, host: Capabilities, settings: Settings,
            machine_names: Iterable[str]) -> tuple[GuestArchitecture, ...]:
    """Return the ``known`` architectures, beside that of the host, for which the host has a QEMU."""
    architectures = []
    for name, _path, machines in host.emulators:
        types = {kind for arch, kind, _mode in host.guests if arch == name}
        kind = settings.virt_type if settings.virt_type in types else "qemu"
        if name == host.arch or name not in machine_names or kind not in types:
            continue
        try:
            text = connection.getDomainCapabilities(None, name, None, kind)
        except libvirt.libvirtError as error:
            LOG.warning("Guests of architecture %s are not offered: %s", name, error)
            continue
        root = ET.fromstring(text)  # noqa: S314 - libvirt's own output
        if name == "aarch64" and "efi" not in _values(root, "os", "firmware"):
            LOG.warning("Guests of architecture %s are not offered: the host has no UEFI firmware for it", name)
            continue
        modes = {mode.get("name"): mode for mode in root.findall("cpu/mode") if mode.get("supported") == "yes"}
        models = {model.text for model in modes["custom"].findall("model") if model.get("usable") != "no"} \
            if "custom" in modes else set()
        mode, model = settings.cpu_mode, settings.cpu_model
        if mode is not None and (mode not in modes or (mode == "custom" and model not in models)):
            mode = None
        # QEMU's default CPU for 64-bit ARM has 32 bits.
        if mode is None and "maximum" in modes and (settings.cpu_mode is not None or name == "aarch64"):
            mode = "maximum"
        architectures.append(GuestArchitecture(name, kind, mode, model if mode == "custom" else None, machines))
    return tuple(architectures)


def _values(root: ET.Element, where: str, name: str) -> set[str]:
    return {value.text or "" for value in root.findall(f"{where}/enum[@name='{name}']/value")}


def _cpu_info(connection: libvirt.virConnect, root: ET.Element, cpu: ET.Element | None, arch: str) -> dict[str, Any]:
    """Return the CPU in the form of os-hypervisors."""
    if cpu is None:
        return {"arch": arch}
    topology = cpu.find("topology")
    sizes = dict(topology.attrib) if topology is not None else {}
    return {"arch": arch, "model": cpu.findtext("model", ""), "vendor": cpu.findtext("vendor", ""),
            "topology": {"cells": len(root.findall("host/topology/cells/cell")) or 1,
                         **{name: int(sizes.get(name, 1)) for name in ("sockets", "cores", "threads")}},
            "features": sorted(_expand_host(connection, cpu))}


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
    mode = root.find("cpu/mode[@name='host-model']")
    if settings.cpu_mode == "custom":
        cpu = ET.Element("cpu")
        ET.SubElement(cpu, "model").text = settings.cpu_model
    elif mode is not None and mode.get("supported") == "yes":
        # The description of a mode has the elements of a CPU, in libvirt's order.
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
