"""Fields of block devices and interfaces: each has its own effect for each of several devices, or is listed."""

from __future__ import annotations

import pathlib
import uuid
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from typing import Any

import pytest

from nova.api.compute.servers import servers_schemas
from nova.api.compute.servers.servers_devices import devices_of
from nova.conf import CONF, register
from nova.metadata import openstack
from nova.objects.networks.network import VIF
from nova.objects.requirements import device_names
from nova.objects.requirements.local_disks import FILE_SYSTEMS
from nova.objects.servers.instance import DeviceAddress, Instance, disk_names
from nova.objects.volumes.volume import VolumeConnection
from nova.operations.framework.guest_driver import BootFiles
from nova.virt.images.imagecache import ImageCache
from nova.virt.libvirt.files import disk_making, disks
from tests.unit.virt.guests import interface, server
from tests.unit.virt.test_libvirt_domain_xml import DISKS, HOST, domain_xml

IMAGE = str(uuid.UUID(int=1))
# Field of an existing volume, or of a blank local disk -> a value that one of two devices gets.
OF_VOLUMES: dict[str, Any] = {
    "boot_index": 1, "device_name": "/dev/vdk", "disk_bus": "sata", "device_type": "cdrom", "tag": "tag",
    "uuid": str(uuid.UUID(int=99)), "no_device": True}
OF_LOCAL_DISKS: dict[str, Any] = {"volume_size": 2, "guest_format": "ext3", "disk_bus": "scsi", "tag": "tag"}
ELSEWHERE = {
    "volume_id": "another name of uuid", "image_id": "another name of uuid", "snapshot_id": "another name of uuid",
    "source_type": "a volume or a blank disk, as here", "destination_type": "a volume or a local disk, as here",
    "volume_type": "test_cinder_fields.py: sent to Cinder",
    "delete_on_termination": "functional tests of volumes: what remains after the server",
    "virtual_name": "the first syntax: test_servers_devices.py", "connection_info": "ignored: Cinder decides"}
OF_INTERFACES: dict[str, Any] = {"mac": "fa:16:3e:00:00:99", "bridge": "br-other", "mtu": 9000, "devname": "tap-other",
                                 "tag": "tag", "details": {"bridge_name": "br-int"}, "id": str(uuid.UUID(int=99))}


@pytest.fixture(autouse=True)
def place(tmp_path: pathlib.Path) -> Iterator[None]:
    register(CONF)
    CONF.set_override("state_path", str(tmp_path))
    base = pathlib.Path(ImageCache().directory) / f"{IMAGE}.raw"
    base.parent.mkdir(parents=True)
    base.write_bytes(bytes(1 << 20))
    yield
    CONF.clear_override("state_path")


def made(items: list[dict[str, Any]], swap: int = 0) -> Instance:
    """Return a server with the root disk and these items of ``block_device_mapping_v2``, connected to its host."""
    root = {"source_type": "image", "destination_type": "local", "boot_index": 0, "uuid": IMAGE}
    given = [{name: value for name, value in item.items() if value is not None} for item in (root, *items)]
    devices = devices_of({"imageRef": IMAGE, "block_device_mapping_v2": given}, 1)
    instance = server(uuid=str(uuid.uuid4()), image_ref=IMAGE, block_devices=devices,
                      flavor={"ephemeral_gb": 4, "swap": swap})
    volumes = [device for device in devices if device.is_volume]
    for device in volumes:
        device.connection = VolumeConnection(volume_id=str(device.volume_id), path=f"/pool/{device.volume_id}",
                                             serial=str(device.volume_id))
    device_names.assign(instance, volumes)
    instance.device_addresses = [DeviceAddress(device=name, bus="pci", address=f"0000:00:{number:02x}.0")
                                 for number, name in enumerate(disk_names(instance.block_devices))]
    return instance


def seen(instance: Instance) -> tuple[Any, ...]:
    """Return what the guest finds: its disks, the size and file system of local disks, and its metadata."""
    base = f"{ImageCache().directory}/{IMAGE}.raw"
    disk_making.make(instance, BootFiles(root=base), "here")
    found = disks.inspect_disks(instance)
    definition = ET.fromstring(domain_xml(instance, found, HOST))
    shown = [ET.tostring(disk) for disk in definition.findall("devices/disk")]
    sizes = [disks.virtual_size(disk.path, disk.format) for disk in (*found.ephemerals, found.swap) if disk]
    file_systems = [name for _size, name in disk_making.ephemerals(instance, instance.flavor)]
    return shown, sizes, file_systems, openstack.devices(instance, "latest")


def observe(items: list[dict[str, Any]]) -> str:
    """Return what the guest of a new server with these items finds."""
    instance = made(items)
    return str(seen(instance)).replace(instance.uuid, "")


def test_every_field_of_a_block_device_has_an_effect_for_each_device() -> None:
    volumes = [{"source_type": "volume", "uuid": str(uuid.UUID(int=number))} for number in (2, 3)]
    blank = [{"source_type": "blank", "destination_type": "local", "volume_size": 1} for _number in range(2)]
    covered = []
    for items, table in ((volumes, OF_VOLUMES), (blank, OF_LOCAL_DISKS)):
        for name, other in table.items():
            found = [observe([{**item, **({name: other} if place == changed else {})}
                              for place, item in enumerate(items)]) for changed in (None, 0, 1)]
            assert len(set(found)) == 3, f"{name} has no effect, or the same for both devices"
            covered.append(name)
    assert {*disk_making._MKFS} == {*FILE_SYSTEMS}
    fields = set(servers_schemas._DEVICES_V2.schema(104)["items"]["properties"])
    assert fields == {*OF_VOLUMES, *OF_LOCAL_DISKS, *ELSEWHERE}
    print(f"{len(fields)} fields: {', '.join(covered)} for each device; elsewhere: {ELSEWHERE}")


def test_requested_swap_size_is_used_up_to_the_size_of_the_flavor() -> None:
    sizes = []
    for given in (None, 16, 32):
        instance = made([{"source_type": "blank", "guest_format": "swap", "volume_size": given}], swap=32)
        seen(instance)
        swap = disks.inspect_disks(instance).swap
        assert swap is not None
        sizes.append(disks.virtual_size(swap.path, swap.format) >> 20)
    assert sizes == [32, 16, 32]


def test_every_field_of_an_interface_has_an_effect_for_each_interface() -> None:
    """Fields of ``networks`` in a request: test_several_networks_of_a_request_have_their_own_address_and_tag."""
    def found_in(cards: list[VIF]) -> str:
        instance = server(network_info=cards)
        definition = ET.fromstring(domain_xml(instance, DISKS, HOST))
        return str(([ET.tostring(card) for card in definition.findall("devices/interface")],
                    openstack.devices(instance, "latest"), openstack.network_data(cards)))

    for name, other in OF_INTERFACES.items():
        own = {"bridge": "", "vif_type": "ovs"} if name == "details" else {}
        found = [found_in([interface(number, **own, **({name: other} if number == changed else {}))
                          for number in range(2)]) for changed in (None, 0, 1)]
        assert len(set(found)) == 3, f"{name} has no effect, or the same for both interfaces"
    print(f"fields of interfaces: {', '.join(OF_INTERFACES)} for each of two interfaces")
