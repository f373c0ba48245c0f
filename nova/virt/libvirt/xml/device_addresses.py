"""Guest addresses of devices, as libvirt assigned them."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterator

from nova.objects.servers.device_address import DeviceAddress
from nova.virt.libvirt.files import disks
from nova.virt.libvirt.xml.definition import Definition

# Bus of a disk -> its name in metadata, if its address is that of a drive. SATA disks are SCSI disks for guests.
_DRIVES = {"scsi": "scsi", "sata": "scsi", "ide": "ide"}
_UNIT = ("controller", "bus", "target", "unit")


def of_definition(text: str) -> list[DeviceAddress]:
    """Return addresses of a domain's interfaces, shares (by tag), volumes and local disks except the config drive."""
    return list(_addresses(Definition(text)))


def _addresses(definition: Definition) -> Iterator[DeviceAddress]:
    for item in definition.devices.findall("interface"):
        mac = item.find("mac")
        if mac is not None:
            yield _address(mac.get("address", "").lower(), item, "")
    for item in definition.devices.findall("filesystem"):
        target = item.find("target")
        if target is not None:
            yield _address(target.get("dir", ""), item, "")
    for key, disk in definition.disks.items():
        if not disk.element.findtext("serial"):
            key = disks.name_in_metadata(key)
        if key:
            yield _address(key, disk.element, disk.bus)


def _address(device: str, item: ET.Element, bus: str) -> DeviceAddress:
    position = item.find("address")
    if position is None:
        return DeviceAddress(device=device)
    kind = position.get("type")
    if kind == "pci":
        domain, number, slot, function = (int(position.get(part, "0"), 16)
                                          for part in ("domain", "bus", "slot", "function"))
        return DeviceAddress(device=device, bus="pci", address=f"{domain:04x}:{number:02x}:{slot:02x}.{function:x}")
    if kind == "drive" and bus in _DRIVES:
        unit = ":".join(position.get(part, "0") for part in _UNIT)
        return DeviceAddress(device=device, bus=_DRIVES[bus], address=unit)
    if kind == "usb":
        port = f"{position.get('bus', '0')}:{position.get('port', '0')}"
        return DeviceAddress(device=device, bus="usb", address=port)
    return DeviceAddress(device=device)
