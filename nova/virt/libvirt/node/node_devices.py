"""The PCI devices of the host for guests."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterable

import libvirt

from nova.conf import CONF
from nova.objects.dedicated_resources import pci, pci_spec
from nova.objects.dedicated_resources.pci import PciDevice
from nova.virt.libvirt.xml.xmltree import attribute


def of_host(connection: libvirt.virConnect) -> list[PciDevice] | None:
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
        elif capability.get("type") == "pci" and not _is_bridge(capability):
            devices[root.findtext("name", "")] = _device(capability)
    names = {devices[parent].address: names for parent, names in interfaces.items() if parent in devices}
    return sorted(pci_spec.given_out(devices.values(), specs, names), key=lambda device: device.address)


def _is_bridge(capability: ET.Element) -> bool:
    return any(part.get("type") == "pci-bridge" for part in capability.findall("capability"))


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
