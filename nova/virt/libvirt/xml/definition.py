"""Parsed domain definitions: device names and addresses, which must survive power cycles and migrations."""

import copy
import dataclasses
import os
import xml.etree.ElementTree as ET
from collections.abc import Iterator

from nova import exception
from nova.objects.servers.instance import DeviceAddress
from nova.virt.libvirt.files import disks
from nova.virt.libvirt.xml.xmltree import attribute


@dataclasses.dataclass(frozen=True)
class KnownDisk:
    """A disk of a definition: its name in the guest, its bus, and the whole element."""

    target: str
    bus: str
    element: ET.Element


class Definition:
    """The definition of a domain. ``text``: libvirt's XML; "": a definition without devices."""

    def __init__(self, text: str = "") -> None:
        root = ET.fromstring(text) if text else ET.Element("domain")  # noqa: S314 - libvirt's own output
        self.machine = attribute(root, "os/type", "machine")
        self.architecture = attribute(root, "os/type", "arch")
        self.nvram = root.findtext("os/nvram", "")
        self.tpm_version = attribute(root, "devices/tpm/backend", "version")
        self.devices: ET.Element = root if (devices := root.find("devices")) is None else devices
        self.disks = {disk_key(item): KnownDisk(*_target(item), item) for item in self.devices.findall("disk")}

    def disk(self, key: str) -> ET.Element | None:
        """Return the disk with this key."""
        disk = self.disks.get(key)
        return disk.element if disk is not None else None

    def interface(self, mac: str) -> ET.Element | None:
        """Return the interface with this MAC address."""
        return next((item for item in self.devices.findall("interface")
                     if attribute(item, "mac", "address").lower() == mac.lower()), None)


# Maximum number of characters of a definition from another host; a longer one is refused. Usually some 10,000.
_LONGEST = 1 << 20

# Child elements of a device that the guest can see. received() copies these and the attributes of the device.
_SEEN = ("address", "target", "serial", "mac", "model")


def received(text: str) -> str:
    """Return another host's definition reduced to what the guest can see of its devices. Raises MigrationError."""
    if len(text) > _LONGEST:
        raise exception.MigrationError(reason="the other host's definition of the guest is too long")
    try:
        sent = Definition(text)
    except ET.ParseError as error:
        raise exception.MigrationError(reason="the other host's definition of the guest cannot be read") from error
    root = ET.Element("domain")
    ET.SubElement(ET.SubElement(root, "os"), "type", arch=sent.architecture, machine=sent.machine)
    devices = ET.SubElement(root, "devices")
    for item in sent.devices:
        copied = ET.SubElement(devices, item.tag, item.attrib)
        for child in item:
            if child.tag in _SEEN:
                ET.SubElement(copied, child.tag, child.attrib).text = child.text
        if item.tag == "disk" and item.find("source") is not None:
            ET.SubElement(copied, "source", file=os.path.basename(attribute(item, "source", "file")))
    return ET.tostring(root, encoding="unicode")


def disk_key(item: ET.Element) -> str:
    """Return a host-independent key of a disk: the serial number of a volume, or the name of a file."""
    return item.findtext("serial") or os.path.basename(attribute(item, "source", "file"))


def carry_over(devices: ET.Element, previous: Definition) -> None:
    """Copy the addresses of the ``previous`` devices, and the controllers of these addresses, to the same devices. The
    caller checks that both definitions have the same machine type."""
    previous_items = _keyed(previous.devices)
    present = _keyed(devices)
    for key, item in present.items():
        before = previous_items.get(key)
        address = before.find("address") if before is not None else None
        if address is not None and item.find("address") is None:
            item.append(copy.deepcopy(address))
    taken = {key[:3] for key in present}
    for key, item in previous_items.items():
        if item.tag == "controller" and key[:3] not in taken:
            devices.append(copy.deepcopy(item))


def _target(item: ET.Element) -> tuple[str, str]:
    return attribute(item, "target", "dev"), attribute(item, "target", "bus")


def _keyed(devices: ET.Element) -> dict[tuple[str, ...], ET.Element]:
    """Return the devices by a key that identifies the same device in two definitions."""
    items: dict[tuple[str, ...], ET.Element] = {}
    for item in devices:
        key = _key(item)
        number = 0
        while (*key, str(number)) in items:
            number += 1
        items[(*key, str(number))] = item
    return items


def _key(item: ET.Element) -> tuple[str, ...]:
    if item.tag == "disk":
        return "disk", *_target(item)
    if item.tag == "controller":
        return "controller", item.get("type", ""), item.get("index", ""), item.get("model", "")
    model = item.find("model")
    kind = model.get("type", "") if model is not None else item.get("model", item.get("type", ""))
    if item.tag == "interface":
        return "interface", attribute(item, "mac", "address").lower(), kind
    if item.tag == "filesystem":
        return "filesystem", attribute(item, "target", "dir")
    if item.tag in ("channel", "serial", "console"):
        return item.tag, attribute(item, "target", "name") or attribute(item, "target", "port")
    return item.tag, kind


# Bus of a disk with an address of the type "drive" -> bus in metadata. In the guest, SATA disks are SCSI disks.
_DRIVES = {"scsi": "scsi", "sata": "scsi", "ide": "ide"}


def device_addresses(definition: Definition) -> Iterator[DeviceAddress]:
    """Yield the addresses of a domain's interfaces, shares (by tag), volumes and disks other than the config drive."""
    for item in definition.devices.findall("interface"):
        yield _address(attribute(item, "mac", "address").lower(), item, "")
    for item in definition.devices.findall("filesystem"):
        yield _address(attribute(item, "target", "dir"), item, "")
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
        unit = ":".join(position.get(part, "0") for part in ("controller", "bus", "target", "unit"))
        return DeviceAddress(device=device, bus=_DRIVES[bus], address=unit)
    if kind == "usb":
        port = f"{position.get('bus', '0')}:{position.get('port', '0')}"
        return DeviceAddress(device=device, bus="usb", address=port)
    return DeviceAddress(device=device)
