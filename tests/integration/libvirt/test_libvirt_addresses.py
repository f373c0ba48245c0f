"""Device addresses in the metadata service and the config drive, compared with libvirt."""

from __future__ import annotations

import json
import pathlib
import subprocess
import types
from typing import Any

import pytest

from nova import context
from nova.compute.host import Machine, StepHost
from nova.conf import CONF
from nova.image.directory import DirectoryStore
from nova.metadata import openstack
from nova.network.base import NoNetwork
from nova.objects.images.image import Image
from nova.objects.networks.network import VIF, RuleSet
from nova.objects.servers.instance import BlockDevice
from nova.virt.images.imagecache import ImageCache
from tests.integration.libvirt.test_libvirt_devices import boot, domain, volume_fixture  # noqa: F401 (fixture)
from tests.integration.libvirt_fixtures import (
    PrivateLibvirt,
    kernel_disks,
    needs_libvirt,
    server,
    small_disks,
    wait_for_console,
)

pytestmark = needs_libvirt
LOGIN = b"login:"


@pytest.fixture(name="bridge", scope="module")
def bridge_fixture(libvirt_daemon: PrivateLibvirt) -> str:
    libvirt_daemon.run("ip", "link", "add", "br-addresses", "type", "bridge")
    return "br-addresses"


def interface(bridge: str, number: int, **fields: Any) -> VIF:
    return VIF(id=f"v{number}", network_id="n", label="l", mac=f"FA:16:3e:11:33:0{number}", bridge=bridge,
               devname=f"tapaddr{number}", **fields)


def devices(driver: Any, instance: Any) -> dict[str, tuple[str, str]]:
    """Return bus and address of each device in the guest's metadata, by tag or MAC address."""
    instance.device_addresses = driver.guests.device_addresses(instance.uuid)
    return {"".join(device["tags"]) or device["mac"]: (device["bus"], device["address"])
            for device in openstack.devices(instance, openstack.ROCKY)}


def hexadecimal(address: dict[str, str]) -> str:
    domain, bus, slot, function = (int(address[part], 16) for part in ("domain", "bus", "slot", "function"))
    return f"{domain:04x}:{bus:02x}:{slot:02x}.{function:x}"


@pytest.mark.parametrize("machine", [pytest.param("pc", marks=pytest.mark.slow), "q35"])
def test_metadata_contain_the_pci_addresses_of_devices(
        driver: Any, guest_image: pathlib.Path, libvirt_daemon: PrivateLibvirt, bridge: str, volume: Any,
        machine: str) -> None:
    instance = server({"hw_machine_type": machine}, network_info=[interface(bridge, 1, tag="uplink")],
                      block_devices=[BlockDevice(source="image", boot_index=0, tag="root")])
    boot(driver, instance, kernel_disks(guest_image))
    wait_for_console(driver, instance, LOGIN)
    more, data = interface(bridge, 2), volume(1, "/dev/vdc", tag="data")
    driver.interfaces.attach(instance, more)
    driver.volumes.attach(instance, data)
    instance.network_info.append(more)
    instance.block_devices.append(data)

    found = devices(driver, instance)
    root = domain(libvirt_daemon, instance)
    cards = {item.find("mac").get("address"): item.find("address") for item in root.findall("devices/interface")}
    disks = {item.find("target").get("dev"): item.find("address") for item in root.findall("devices/disk")}
    assert found == {
        "uplink": ("pci", hexadecimal(cards["fa:16:3e:11:33:01"].attrib)),
        "FA:16:3e:11:33:02": ("pci", hexadecimal(cards["fa:16:3e:11:33:02"].attrib)),
        "root": ("pci", hexadecimal(disks["vda"].attrib)), "data": ("pci", hexadecimal(disks["vdc"].attrib))}
    for _bus, address in (found["uplink"], found["root"]):
        wait_for_console(driver, instance, f"pci {address}: [1af4:".encode())

    driver.power.reboot(instance, hard=True)
    assert devices(driver, instance) == found, "addresses changed with a power cycle"
    driver.power.off(instance)
    assert devices(driver, instance) == found, "addresses of a stopped guest are missing"


@pytest.mark.parametrize(("properties", "bus", "address"), [
    ({"hw_disk_bus": "scsi", "hw_scsi_model": "virtio-scsi"}, "scsi", "0:0:0:0"),
    ({"hw_disk_bus": "sata", "hw_machine_type": "q35"}, "scsi", "0:0:0:0"),
    ({"hw_disk_bus": "ide"}, "ide", "0:0:0:0"),
    ({"hw_disk_bus": "usb"}, "usb", "0:"),
], ids=["scsi", "sata", "ide", "usb"])
def test_metadata_contain_disk_addresses_on_other_buses(driver: Any, guest_image: pathlib.Path,
                                                        properties: dict[str, str], bus: str, address: str) -> None:
    instance = server(properties, block_devices=[BlockDevice(source="image", boot_index=0, tag="root")])
    boot(driver, instance, small_disks(guest_image))
    found = devices(driver, instance)["root"]
    assert (found[0], found[1][:len(address)]) == (bus, address)


def test_config_drive_contains_device_addresses(driver: Any, guest_image: pathlib.Path, state: pathlib.Path,
                                                bridge: str) -> None:
    store = DirectoryStore(str(state / "images"))
    store.add(str(guest_image / "nova-guest.qcow2"), Image(id="i", disk_format="qcow2"))
    instance = server(network_info=[interface(bridge, 3, tag="uplink")], config_drive=True,
                      block_devices=[BlockDevice(source="image", boot_index=0, tag="root")])
    machine = Machine(name=driver.host, driver=driver, network=NoNetwork(), images=lambda: store, cache=ImageCache())
    job: Any = types.SimpleNamespace(ctx=context.admin(), cancelled=None, fence=lambda: None,
                                     order=types.SimpleNamespace(instance=instance, rules=RuleSet()))
    host = StepHost(machine, job, lambda changes, values: None)
    host.prepare_disks()
    host.spawn()
    told = on_drive(instance)
    assert told["uplink"][0] == told["root"][0] == "pci"
    assert told == devices(driver, instance)
    host.spawn()
    assert on_drive(instance) == told, "a repeated step rewrote the config drive of a running guest"


def on_drive(instance: Any) -> dict[str, tuple[str, str]]:
    drive = pathlib.Path(CONF.instances_path, instance.uuid, "disk.config")
    document = subprocess.run(["isoinfo", "-R", "-i", str(drive), "-x", "/openstack/latest/meta_data.json"], check=True,
                              capture_output=True, timeout=60).stdout
    return {device["tags"][0]: (device["bus"], device["address"]) for device in json.loads(document)["devices"]}
