"""Stable names and addresses of the devices of a guest."""

from __future__ import annotations

import dataclasses
import xml.etree.ElementTree as ET

import pytest
from lxml import etree

from nova import exception
from nova.objects.servers.instance import BlockDevice, Instance
from nova.objects.volumes.volume import VolumeConnection
from nova.virt.libvirt.files.disks import LocalDisk, LocalDisks
from nova.virt.libvirt.xml import domain_xml as writer
from nova.virt.libvirt.xml.definition import Definition
from nova.virt.libvirt.xml.guest_config import guest_config
from nova.virt.libvirt.xml.layout import GuestDisk, rescue_layout, volume_disk
from tests.unit.virt.guests import interface, server
from tests.unit.virt.test_libvirt_domain_xml import (  # noqa: F401 (fixture)
    ALL_DISKS,
    DISKS,
    HOST,
    TRIO,
    domain_xml,
    schema,
)

NO_DISKS = LocalDisks(console_log=DISKS.console_log)


def volume(number: int, name: str | None = None, *, connected: bool = True, **fields: object) -> BlockDevice:
    connection = VolumeConnection(volume_id=f"volume-{number}", path=f"/pool/volume-{number}",
                                  serial=f"volume-{number}") if connected else None
    values = {"source": "volume", "destination": "volume", "volume_id": f"volume-{number}", "device_name": name,
              "connection": connection, **fields}
    return BlockDevice(**values)  # type: ignore[arg-type]


def disks_of(text: str) -> dict[str, str]:
    """Return the file of every disk by device name."""
    return {disk.find("target").get("dev"): disk.find("source").get("file").rpartition("/")[2]
            for disk in ET.fromstring(text).findall("devices/disk")}


def with_addresses(text: str) -> str:
    """Return the definition as libvirt completes it: every device has an address, on added controllers."""
    root = ET.fromstring(text)
    devices = root.find("devices")
    ET.SubElement(devices, "controller", type="pci", index="0", model="pci-root")
    for slot, device in enumerate(devices.findall("*"), 3):
        if device.tag in ("disk", "interface", "memballoon", "rng"):
            ET.SubElement(device, "address", type="pci", domain="0x0000", bus="0x00", slot=f"0x{slot:02x}",
                          function="0x0")
    return ET.tostring(root, encoding="unicode")


def test_volume_has_the_requested_device_name() -> None:
    text = domain_xml(server(block_devices=[volume(1, "/dev/vdf"), volume(2)]), ALL_DISKS, HOST)
    assert disks_of(text) == {"vda": "disk", "vdb": "disk.eph0", "vdc": "disk.eph1", "vdd": "disk.swap",
                              "vdf": "volume-1", "vde": "volume-2", "hda": "disk.config"}


def test_requested_device_name_is_adapted_to_the_bus() -> None:
    text = domain_xml(server({}, {"hw_disk_bus": "scsi"}, block_devices=[volume(1, "/dev/vdf")]), DISKS, HOST)
    assert disks_of(text) == {"sda": "disk", "sdf": "volume-1"}


def test_server_boots_from_its_volume(schema: etree.RelaxNG) -> None:  # noqa: F811
    server_ = server(image=None, block_devices=[volume(2, "/dev/vdb"), volume(1, "/dev/vda", boot_index=0)])
    text = domain_xml(server_, NO_DISKS, HOST)
    assert schema.validate(etree.fromstring(text)), schema.error_log
    first = ET.fromstring(text).find("devices/disk")
    assert (first.find("target").get("dev"), first.findtext("serial")) == ("vda", "volume-1")
    trio = dataclasses.replace(TRIO, root=None)
    assert "root=/dev/vda" in ET.fromstring(domain_xml(server_, trio, HOST)).findtext("os/cmdline")


@pytest.mark.parametrize("connection", [
    {"path": "/pool/v", "format": "qcow2", "limits": {"total_iops_sec": 500}, "discard": True},
    {"path": "/pool/v.2", "format": "qcow2", "below": [("/pool/v.1", "qcow2"), ("/pool/v", "raw")]},
    {"path": "/pool/v", "shareable": True, "read_only": True},
    {"protocol": "block", "path": "/dev/sdx"},
    {"protocol": "rbd", "path": "volumes/volume-1", "hosts": [("10.0.0.1", "6789"), ("10.0.0.2", "")],
     "auth_user": "cinder", "secret_uuid": "457eb676-33da-42ec-9a8c-9293d545c337"},
    {"protocol": "iscsi", "path": "iqn.2013-07.com.example:iscsi-pool/1", "hosts": [("10.0.0.1", "3260")],
     "auth_user": "me", "secret_uuid": "457eb676-33da-42ec-9a8c-9293d545c337"},
], ids=["file", "snapshots", "shared", "block", "rbd", "iscsi"])
def test_volume_connections_are_valid(connection: dict[str, object], schema: etree.RelaxNG) -> None:  # noqa: F811
    device = volume(1)
    device.connection = VolumeConnection(volume_id="v", serial="s", **connection)  # type: ignore[arg-type]
    text = domain_xml(server(block_devices=[device]), DISKS, HOST)
    assert schema.validate(etree.fromstring(text)), schema.error_log
    disk = ET.fromstring(text).findall("devices/disk")[1]
    assert disk.findtext("serial") == "s"
    assert (disk.find("readonly") is not None) == bool(connection.get("read_only"))
    assert (disk.find("shareable") is not None) == bool(connection.get("shareable"))


@pytest.mark.parametrize(("shareable", "cache"), [(True, "none"), (False, "writeback")])
def test_volume_file_of_several_servers_bypasses_the_page_cache(shareable: bool, cache: str) -> None:
    """Writes of a guest must be visible to the other guests."""
    device = volume(1)
    device.connection = VolumeConnection(volume_id="v", path="/pool/v", shareable=shareable)
    text = domain_xml(server(block_devices=[device]), DISKS, dataclasses.replace(HOST, cache="writeback"))
    drivers = [disk.find("driver").get("cache") for disk in ET.fromstring(text).findall("devices/disk")]
    assert drivers == ["writeback", cache]


@pytest.mark.parametrize("below", [[], [("/pool/v.1", "qcow2"), ("/pool/v", "raw")]])
def test_backing_chain_of_a_volume_is_complete(below: list[tuple[str, str]]) -> None:
    """Otherwise the hypervisor reads the chain from the file, which may have been modified."""
    device = volume(1)
    device.connection = VolumeConnection(volume_id="v", path="/pool/v.2", format="qcow2", below=below)
    text = domain_xml(server(block_devices=[device]), DISKS, HOST)
    item = ET.fromstring(text).findall("devices/disk")[1].find("backingStore")
    found = []
    while item is not None and len(item):
        found.append((item.find("source").get("file"), item.find("format").get("type")))
        item = item.find("backingStore")
    assert found == below
    assert item is not None, "the backing chain is not terminated"


def test_unknown_volume_protocol_is_refused() -> None:
    device = volume(1)
    device.connection = VolumeConnection(volume_id="v", protocol="tape")
    with pytest.raises(exception.InvalidDiskInfo, match="tape"):
        domain_xml(server(block_devices=[device]), DISKS, HOST)


# --- stability ---------------------------------------------------------------------------------------
def renewed(before: Instance, after: Instance, local: LocalDisks = DISKS, then: LocalDisks = DISKS) -> str:
    return domain_xml(after, then, HOST, with_addresses(domain_xml(before, local, HOST)))


def test_device_names_are_stable_when_an_earlier_disk_is_detached() -> None:
    before = server(block_devices=[volume(1), volume(2), volume(3)])
    text = renewed(before, server(block_devices=[volume(1), volume(3)]))
    assert disks_of(text) == {"vda": "disk", "vdb": "volume-1", "vdd": "volume-3"}


def test_new_disk_does_not_take_an_existing_device_name() -> None:
    text = renewed(server(block_devices=[volume(1)]), server(block_devices=[volume(1)]), DISKS, ALL_DISKS)
    assert disks_of(text)["vdb"] == "volume-1"
    assert disks_of(text)["vdc"] == "disk.eph0"


def test_device_addresses_are_stable_when_an_earlier_device_is_detached() -> None:
    before = server(network_info=[interface(0), interface(1)], block_devices=[volume(1), volume(2)])
    first = ET.fromstring(with_addresses(domain_xml(before, DISKS, HOST)))
    again = ET.fromstring(renewed(before, server(network_info=[interface(1)], block_devices=[volume(2)])))

    def slot(root: ET.Element, where: str) -> str:
        return root.find(f"devices/{where}/address").get("slot")

    card = "interface/mac[@address='fa:16:3e:00:00:01']/.."
    for where in ("disk/target[@dev='vda']/..", "disk/target[@dev='vdc']/..", card, "memballoon", "rng"):
        assert slot(first, where) == slot(again, where)
    assert again.find("devices/controller[@model='pci-root']") is not None


def test_changed_machine_type_discards_device_addresses() -> None:
    before = with_addresses(domain_xml(server(), DISKS, HOST))
    text = domain_xml(server({}, {"hw_machine_type": "q35"}), DISKS, HOST, before)
    assert "address type" not in text.replace("<listen", "")


def test_machine_version_is_kept_while_the_host_supports_it() -> None:
    host = dataclasses.replace(HOST, machine_names=frozenset({"pc", "pc-i440fx-7.2"}))
    before = domain_xml(server(), DISKS, HOST).replace('machine="pc"', 'machine="pc-i440fx-7.2"')
    assert 'machine="pc-i440fx-7.2"' in domain_xml(server(), DISKS, host, before)
    older = dataclasses.replace(HOST, machine_names=frozenset({"pc"}))
    assert 'machine="pc"' in domain_xml(server(), DISKS, older, before)


def test_disconnected_volume_keeps_its_definition(schema: etree.RelaxNG) -> None:  # noqa: F811
    text = renewed(server(block_devices=[volume(1)]), server(block_devices=[volume(1, connected=False)]))
    assert schema.validate(etree.fromstring(text)), schema.error_log
    assert disks_of(text)["vdb"] == "volume-1"
    with pytest.raises(exception.InvalidDiskInfo, match="volume-2 is not connected"):
        renewed(server(block_devices=[volume(1)]), server(block_devices=[volume(2, connected=False)]))


def test_attached_disk_gets_the_requested_or_next_device_name() -> None:
    current = [Definition(domain_xml(server(block_devices=[volume(1, "/dev/vdc")]), DISKS, HOST)), Definition()]
    config = guest_config(server(), HOST)
    assert volume_disk(config, volume(2, "/dev/vdf"), current).target == "vdf"
    assert volume_disk(config, volume(2, "/dev/vdc"), current).target == "vdb"
    assert volume_disk(config, volume(2), current).target == "vdb"


def test_pcie_machines_have_spare_root_ports() -> None:
    q35 = server({}, {"hw_machine_type": "q35"}, network_info=[interface()])
    ports = ET.fromstring(domain_xml(q35, DISKS, HOST)).findall("devices/controller[@model='pcie-root-port']")
    assert len(ports) == 1 + 1 + 6 + 8
    some = dataclasses.replace(HOST, pcie_ports=12)
    assert len(ET.fromstring(domain_xml(q35, DISKS, some)).findall("devices/controller[@model='pcie-root-port']")) == 12


@pytest.mark.parametrize(("stable", "kernel", "expected"), [
    (False, None, {"vda": "disk.rescue", "vdb": "disk", "vdc": "volume-1", "vdf": "volume-2"}),
    (True, None, {"vda": "disk", "vdb": "volume-1", "vdf": "volume-2", "vdc": "disk.rescue"}),
    (True, "/x/kernel.rescue", {"vda": "disk", "vdb": "volume-1", "vdf": "volume-2", "vdc": "disk.rescue"})])
def test_rescued_guest_boots_from_the_rescue_disk(
        schema: etree.RelaxNG, stable: bool, kernel: str | None, expected: dict[str, str]) -> None:  # noqa: F811
    instance = server(block_devices=[volume(1, "/dev/vdb"), volume(2, "/dev/vdf")])
    config = guest_config(instance, HOST)
    rescue = GuestDisk("disk.rescue", "virtio", local=LocalDisk("/x/disk.rescue"), boot_order=1)
    before = Definition(domain_xml(instance, DISKS, HOST))
    laid = rescue_layout(config, DISKS, instance.block_devices, before, rescue, stable)
    text = writer.domain_xml(instance, config, dataclasses.replace(DISKS, kernel=kernel), laid, HOST, before)
    assert schema.validate(etree.fromstring(text)), schema.error_log
    assert disks_of(text) == expected
    root = ET.fromstring(text)
    first, = [disk for disk in root.findall("devices/disk") if disk.find("boot") is not None]
    name = first.find("target").get("dev")
    assert (expected[name], root.find("os/boot")) == ("disk.rescue", None)
    assert (f"root=/dev/{name}" in root.findtext("os/cmdline", "")) == bool(kernel)
