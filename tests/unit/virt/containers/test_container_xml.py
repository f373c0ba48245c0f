"""Definitions of containers: validated by libvirt's schema; promises that only virtual machines fulfil are refused."""

from __future__ import annotations

import dataclasses
import xml.etree.ElementTree as ET

import pytest
from lxml import etree

from nova import exception
from nova.objects.networks.network import VIF
from nova.objects.servers.instance import BlockDevice, Instance
from nova.objects.volumes.volume import VolumeConnection
from nova.virt.libvirt.files.disks import LocalDisk, LocalDisks
from nova.virt.libvirt.xml.container_xml import container_config, container_xml
from nova.virt.libvirt.xml.definition import Definition
from nova.virt.libvirt.xml.layout import layout
from nova.virt.libvirt.xml.settings import Settings
from tests.unit.virt.guests import CREATED, interface, server
from tests.unit.virt.test_libvirt_domain_xml import schema  # noqa: F401 (fixture)

HOST = Settings(owner="host1", virt_type="lxc")
ROOT, DRIVE = LocalDisk("/r/root.img", "raw", "filesystem"), LocalDisk("/r/drive.config", "raw")


def define(instance: Instance, host: Settings = HOST) -> ET.Element:
    config = container_config(instance, host)
    volumes = layout(config, LocalDisks(""), instance.block_devices, Definition())
    local = LocalDisks("", root=ROOT, config_drive=DRIVE)
    return ET.fromstring(container_xml(instance, config, local, volumes, host))


def test_definition_has_file_systems_interfaces_volumes_and_limits(schema: etree.RelaxNG) -> None:  # noqa: F811
    volume = BlockDevice(source="volume", destination="volume", volume_id="v1", device_name="/dev/vdb",
                         connection=VolumeConnection(volume_id="v1", protocol="block", path="/dev/loop7"))
    root = define(server({"quota:cpu_shares": "7", "quota:vif_inbound_average": "100"}, {"os_command_line": "single a"},
                         flavor={"vcpus": 3, "memory_mb": 64}, network_info=[interface(0), interface(1)],
                         block_devices=[volume]), dataclasses.replace(HOST, shared_cpus=(0, 1)))
    schema.assertValid(etree.fromstring(ET.tostring(root)))
    assert (root.get("type"), root.findtext("os/type"), root.findtext("os/init")) == ("lxc", "exe", "/sbin/init")
    assert [item.text for item in root.findall("os/initarg")] == ["single", "a"]
    assert root.find("os/initenv[@name='product_name']").text == "OpenStack Nova"
    assert {item.tag: item.text for item in root.find("cputune")} == {
        "shares": "7", "period": "100000", "quota": "300000"}
    assert (root.findtext("memtune/hard_limit"), root.find("vcpu").get("cpuset")) == (str(64 << 10), "0-1")
    assert [(item.find("source").get("file"), item.find("target").get("dir"), item.find("readonly") is not None)
            for item in root.findall("devices/filesystem")] == [
                ("/r/root.img", "/", False), ("/r/drive.config", "/config-drive", True)]
    disk = root.find("devices/disk")
    assert (disk.find("source").get("dev"), disk.find("target").get("dev")) == ("/dev/loop7", "vdb")
    assert [item.find("target").get("dev") for item in root.findall("devices/interface")] == ["tap-test0", "tap-test1"]
    assert not root.findall("devices/video") + root.findall("devices/graphics") + root.findall("devices/controller")


@pytest.mark.parametrize("vifs", [[], [interface(0)]], ids=["none", "one"])
def test_container_never_gets_the_network_of_the_host(vifs: list[VIF], schema: etree.RelaxNG) -> None:  # noqa: F811
    """libvirt creates no network namespace for a container without interfaces, unless the definition requests it."""
    root = define(server(network_info=vifs))
    schema.assertValid(etree.fromstring(ET.tostring(root)))
    assert root.find("features/privnet") is not None


def test_quota_of_the_flavor_replaces_the_limit_of_its_cpus() -> None:
    def limits(specs: dict[str, str]) -> dict[str, str]:
        return {item.tag: item.text for item in define(server(specs, flavor={"vcpus": 2})).find("cputune")}

    assert limits({}) == {"period": "100000", "quota": "200000"}
    assert limits({"quota:cpu_period": "50000"}) == {"period": "50000", "quota": "100000"}
    assert limits({"quota:cpu_quota": "9000"}) == {"period": "100000", "quota": "9000"}


@pytest.mark.parametrize(("specs", "properties", "fields", "words"), [
    ({}, {"hw_architecture": "aarch64"}, {}, "hw_architecture=aarch64"),
    ({}, {"hw_vm_mode": "hvm"}, {}, "hw_vm_mode=hvm"),
    ({}, {"img_hv_type": "qemu"}, {}, "img_hv_type=qemu"),
    ({}, {"hw_firmware_type": "uefi", "hw_machine_type": "q35"}, {}, "hw_firmware_type=uefi"),
    ({"hw:watchdog_action": "reset"}, {}, {}, "hw_watchdog_action"),
    ({"hw:tpm_version": "2.0"}, {}, {}, "hw:tpm_version"),
    ({"quota:disk_total_bytes_sec": "7"}, {}, {}, r"quota:disk_\*"),
    ({}, {}, {"flavor": {"swap": 64}}, "the swap disk of the flavor m1.nano"),
    ({}, {}, {"flavor": {"ephemeral_gb": 1}}, "the ephemeral disk of the flavor m1.nano"),
    ({}, {}, {"disk_format": "iso"}, "an image in the format iso"),
    ({}, {}, {"image": None, "image_ref": "", "block_devices": [BlockDevice(
        source="volume", destination="volume", volume_id="v", boot_index=0)]}, "a root disk on a volume")])
def test_promises_of_virtual_machines_are_refused_for_new_containers(
        specs: dict[str, str], properties: dict[str, str], fields: dict[str, object], words: str) -> None:
    instance = server(specs, properties, **fields)
    with pytest.raises(exception.InvalidInput, match=words):
        container_config(instance, HOST)
    instance.launched_at = CREATED
    assert container_config(instance, HOST, is_new=False).virt_type == "lxc"
