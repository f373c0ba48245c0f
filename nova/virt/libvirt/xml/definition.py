"""Parsed domain definitions: device names and addresses, which must survive power cycles and migrations."""

from __future__ import annotations

import copy
import dataclasses
import os
import xml.etree.ElementTree as ET

from nova import exception


@dataclasses.dataclass(frozen=True)
class KnownDisk:
    """A disk of a definition: its name in the guest, its bus, and the whole element."""

    target: str
    bus: str
    element: ET.Element


class Definition:
    """The definition of a domain as returned by libvirt ("": none)."""

    def __init__(self, text: str = "") -> None:
        root = ET.fromstring(text) if text else ET.Element("domain")  # noqa: S314 - libvirt's own output
        kind = root.find("os/type")
        self.machine = kind.get("machine", "") if kind is not None else ""
        self.architecture = kind.get("arch", "") if kind is not None else ""
        self.nvram = root.findtext("os/nvram", "")
        self.devices: ET.Element = root if (devices := root.find("devices")) is None else devices
        self.disks = {disk_key(item): KnownDisk(*_target(item), item) for item in self.devices.findall("disk")}

    def interface(self, mac: str) -> ET.Element | None:
        """Return the interface with this MAC address."""
        for item in self.devices.findall("interface"):
            address = item.find("mac")
            if address is not None and address.get("address", "").lower() == mac.lower():
                return item
        return None


# Maximum number of characters of a definition; a large one has some ten thousand.
_LONGEST = 1 << 20

# Elements carried over with a device, in addition to its attributes, since the guest depends on them.
_SEEN = ("address", "target", "serial", "mac", "model")


def received(text: str) -> str:
    """Parse a definition from another host: only the lasting parts of each device, no file or device of any host.
    Raises MigrationError."""
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
        source = item.find("source")
        if item.tag == "disk" and source is not None:
            ET.SubElement(copied, "source", file=os.path.basename(source.get("file", "")))
    return ET.tostring(root, encoding="unicode")


def disk_key(item: ET.Element) -> str:
    """Return a host-independent key of a disk: the serial number of a volume, or the name of a file."""
    serial = item.findtext("serial")
    if serial:
        return serial
    source = item.find("source")
    return os.path.basename(source.get("file", "")) if source is not None else ""


def carry_over(devices: ET.Element, previous: Definition) -> None:
    """Give the devices the addresses that they had, and the controllers of these addresses. Only for machines of the
    same kind, which the caller checks."""
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
    target = item.find("target")
    return (target.get("dev", ""), target.get("bus", "")) if target is not None else ("", "")


def _keyed(devices: ET.Element) -> dict[tuple[str, ...], ET.Element]:
    """Return the devices by the key that identifies each in both definitions."""
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
        mac = item.find("mac")
        return "interface", mac.get("address", "").lower() if mac is not None else "", kind
    if item.tag == "filesystem":
        target = item.find("target")
        return "filesystem", target.get("dir", "") if target is not None else ""
    if item.tag in ("channel", "serial", "console"):
        target = item.find("target")
        return item.tag, (target.get("name") or target.get("port") or "") if target is not None else ""
    return item.tag, kind
