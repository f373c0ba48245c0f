"""The definition of a running guest for the destination of its migration."""

import copy
import xml.etree.ElementTree as ET

from nova import exception
from nova.virt.libvirt.xml.definition import Definition, disk_key
from nova.virt.libvirt.xml.domain_xml import NAMESPACE
from nova.virt.libvirt.xml.xmltree import attribute

# Elements that are taken from the destination's definition. The guest sees the other elements, so they do not change.
_OWN = ("metadata", "cputune", "numatune", "memoryBacking")


def for_destination(text: str, there: str) -> str:
    """Return the guest's definition ``text`` with the files, volumes, bridges and so on of the destination's definition
    ``there``. Raises MigrationPreCheckError if ``there`` lacks a disk or an interface of the guest."""
    ET.register_namespace("nova", NAMESPACE)
    root, other = ET.fromstring(text), ET.fromstring(there)  # noqa: S314 - libvirt's output, and our own
    for tag in _OWN:
        _replace(root, other, tag)
    mine, theirs = root.find("vcpu"), other.find("vcpu")
    if mine is not None and theirs is not None:  # cpuset: host CPUs, selected by the destination
        mine.attrib.pop("cpuset", None)
        if theirs.get("cpuset"):
            mine.set("cpuset", theirs.get("cpuset", ""))
    for path in ("os/kernel", "os/initrd", "os/nvram"):
        mine, theirs = root.find(path), other.find(path)
        if mine is not None and theirs is not None:
            mine.text = theirs.text
    existing = Definition(there)
    for disk in root.findall("devices/disk"):
        key = disk_key(disk)
        if key not in existing.disks:
            raise exception.MigrationPreCheckError(reason=f"the destination does not have the guest's disk {key}")
        theirs_disk = existing.disks[key].element
        disk.set("type", theirs_disk.get("type", "file"))
        for tag in ("source", "auth", "backingStore"):
            _replace(disk, theirs_disk, tag)
    for card in root.findall("devices/interface"):
        address = attribute(card, "mac", "address")
        theirs_card = existing.interface(address)
        if theirs_card is None:
            raise exception.MigrationPreCheckError(reason=f"the destination does not have the interface {address}")
        card.set("type", theirs_card.get("type", "bridge"))
        for tag in ("source", "virtualport", "target"):
            _replace(card, theirs_card, tag)
    _consoles(root, other)
    return ET.tostring(root, encoding="unicode")


def targets(text: str, keys: list[str]) -> list[str]:
    """Return the names of these disks (by their keys) in the guest."""
    disks = Definition(text).disks
    return [disks[key].target for key in keys if key in disks]


def _consoles(root: ET.Element, other: ET.Element) -> None:
    """Use the destination's addresses and logs of ports and screens."""
    devices = root.find("devices")
    for twin in root.findall("devices/console"):
        if devices is not None and attribute(twin, "target", "type") == "serial":
            devices.remove(twin)  # libvirt's second element for the first serial port
    for mine, theirs in zip(root.findall("devices/serial"), other.findall("devices/serial"), strict=False):
        mine.set("type", theirs.get("type", "pty"))
        for tag in ("source", "protocol", "log", "alias"):
            _replace(mine, theirs, tag)
    screens = {screen.get("type"): screen for screen in other.findall("devices/graphics")}
    for mine in root.findall("devices/graphics"):
        screen = screens.get(mine.get("type"))
        if screen is not None:
            mine.attrib.pop("listen", None)
            _replace(mine, screen, "listen")


def _replace(mine: ET.Element, theirs: ET.Element, tag: str) -> None:
    at = next((number for number, child in enumerate(mine) if child.tag == tag), len(mine))
    for child in mine.findall(tag):
        mine.remove(child)
    for number, child in enumerate(theirs.findall(tag)):
        mine.insert(at + number, copy.deepcopy(child))
