"""The domain definition: elements of the requested hardware, validated by libvirt's schema."""

from __future__ import annotations

import dataclasses
import os
import xml.etree.ElementTree as ET
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree

from nova import exception
from nova.objects.servers.instance import BlockDevice, Instance
from nova.objects.volumes.volume import VolumeConnection, VolumeKey
from nova.virt.libvirt.files.disks import LocalDisk, LocalDisks
from nova.virt.libvirt.xml import domain_xml as writer
from nova.virt.libvirt.xml import guest_platforms as values
from nova.virt.libvirt.xml.definition import Definition
from nova.virt.libvirt.xml.domain_xml import NAMESPACE, owner_of
from nova.virt.libvirt.xml.guest_config import guest_config
from nova.virt.libvirt.xml.layout import layout, secret_of
from nova.virt.libvirt.xml.settings import Settings, Spice
from tests.unit.virt.guests import interface, server

SCHEMA = "/usr/share/libvirt/schemas/domain.rng"
PLACE = "/var/lib/nova/instances/5b4f9b8a-2f0c-4f39-9f2e-0a1b2c3d4e5f"
ROOT = LocalDisk(f"{PLACE}/disk")
DISKS = LocalDisks(console_log=f"{PLACE}/console.log", nvram=f"{PLACE}/nvram", root=ROOT)
ALL_DISKS = dataclasses.replace(
    DISKS, ephemerals=(LocalDisk(f"{PLACE}/disk.eph0"), LocalDisk(f"{PLACE}/disk.eph1")),
    swap=LocalDisk(f"{PLACE}/disk.swap"), config_drive=LocalDisk(f"{PLACE}/disk.config", "raw", "cdrom"))
TRIO = dataclasses.replace(DISKS, kernel=f"{PLACE}/kernel", ramdisk=f"{PLACE}/ramdisk")
HOST = Settings(owner="host1", virt_type="qemu", cpu_mode="host-model")


def domain_xml(instance: Instance, disks: LocalDisks, host: Settings, previous: str = "") -> str:
    config, before = guest_config(instance, host), Definition(previous)
    return writer.domain_xml(instance, config, disks, layout(config, disks, instance.block_devices, before), host,
                             before)


def define(instance: Instance, disks: LocalDisks = DISKS, host: Settings = HOST, **changes: Any) -> ET.Element:
    return ET.fromstring(domain_xml(instance, disks, dataclasses.replace(host, **changes)))


@pytest.fixture(scope="module")
def schema() -> etree.RelaxNG:
    if not os.path.exists(SCHEMA):
        pytest.skip("libvirt's schemas are not installed")
    return etree.RelaxNG(etree.parse(SCHEMA))


CASES: dict[str, tuple[dict[str, str], dict[str, str], dict[str, Any]]] = {
    "plain": ({}, {}, {}),
    "kvm": ({}, {}, {"virt_type": "kvm"}),
    "no CPU": ({}, {}, {"cpu_mode": None}),
    "passthrough": ({}, {}, {"virt_type": "kvm", "cpu_mode": "host-passthrough", "cpu_flags": ("+pcid", "-avx")}),
    "custom CPU": ({}, {}, {"cpu_mode": "custom", "cpu_model": "Nehalem", "cpu_flags": ("aes",)}),
    "topology": ({"hw:cpu_sockets": "1", "hw:cpu_cores": "2"}, {}, {}),
    "screen": ({}, {"hw_video_model": "vga"}, {"vnc_listen": "127.0.0.1"}),
    "spice": ({}, {}, {"vnc_listen": "127.0.0.1", "spice": Spice("::1", secure=True, choices=(
        ("image", "compression", "auto_glz"), ("jpeg", "compression", "auto"), ("zlib", "compression", "never"),
        ("playback", "compression", "off"), ("streaming", "mode", "filter")))}),
    "video memory": ({"hw_video:ram_max_mb": "64"}, {"hw_video_model": "qxl", "hw_video_ram": "32"}, {}),
    "uefi": ({}, {"hw_firmware_type": "uefi", "hw_machine_type": "q35"}, {}),
    "secure boot": ({"os:secure_boot": "required"}, {"hw_firmware_type": "uefi", "hw_machine_type": "q35"}, {}),
    "windows": ({}, {"os_type": "windows", "hw_time_hpet": "true"}, {"virt_type": "kvm"}),
    "hidden": ({"hw:hide_hypervisor_id": "true", "hw:pmu": "false"}, {}, {"virt_type": "kvm"}),
    "scsi": ({}, {"hw_disk_bus": "scsi", "hw_scsi_model": "virtio-scsi", "hw_cdrom_bus": "scsi"}, {}),
    "sata": ({}, {"hw_disk_bus": "sata", "hw_machine_type": "q35"}, {}),
    "ide": ({}, {"hw_disk_bus": "ide"}, {"discard": "unmap"}),
    "usb": ({"hw:usb_model": "qemu-xhci"}, {"hw_disk_bus": "usb"}, {}),
    "throttled": ({"quota:disk_total_bytes_sec": "1000", "quota:disk_read_iops_sec": "10", "quota:cpu_shares": "2048",
                   "quota:cpu_period": "10000", "quota:cpu_quota": "-1", "quota:vif_inbound_average": "100",
                   "quota:vif_outbound_average": "50", "quota:vif_outbound_peak": "80"}, {}, {}),
    "queues": ({"hw:vif_multiqueue_enabled": "true", "hw:virtio_packed_ring": "true"}, {}, {}),
    "helpers": ({"hw_rng:rate_bytes": "100", "hw:watchdog_action": "reset", "hw:sound_model": "ich6"},
                {"hw_qemu_guest_agent": "yes"}, {"balloon_period": 0}),
    "ports": ({"hw:serial_port_count": "3", "hw:boot_menu": "true"}, {"hw_serial_port_count": "2"}, {}),
    "USB of users": ({"hw:redirected_usb_ports": "3"}, {}, {"vnc_listen": "127.0.0.1", "spice": Spice("::1")}),
    "serial": ({}, {}, {"host_serial": "11111111-2222-3333-4444-555555555555"}),
}


@pytest.mark.parametrize("disks", [DISKS, ALL_DISKS, TRIO], ids=["root", "all disks", "kernel"])
@pytest.mark.parametrize("case", CASES)
def test_domain_definitions_are_valid(case: str, disks: LocalDisks, schema: etree.RelaxNG) -> None:
    specs, properties, changes = CASES[case]
    instance = server(specs, properties, flavor={"vcpus": 4}, network_info=[interface(0), interface(1)])
    text = domain_xml(instance, disks, dataclasses.replace(HOST, **changes))
    assert schema.validate(etree.fromstring(text)), schema.error_log


@pytest.mark.parametrize("model", values.VIF_MODELS)
def test_interface_models_are_valid(model: str, schema: etree.RelaxNG) -> None:
    text = domain_xml(server({}, {"hw_vif_model": model}, network_info=[interface()]), DISKS, HOST)
    assert schema.validate(etree.fromstring(text)), schema.error_log
    assert ET.fromstring(text).find("devices/interface/model").get("type") == model


@pytest.mark.parametrize(("name", "values", "where"), [
    ("hw_video_model", values.VIDEO_MODELS, "devices/video/model"),
    # (virtio requires a newer libvirt than in CI.)
    ("hw_sound_model", values.SOUND_MODELS[:-1], "devices/sound"),
    ("hw_usb_model", ("none", "nec-xhci", "qemu-xhci"), "devices/controller[@type='usb']"),
    ("hw_watchdog_action", ("none", "pause", "poweroff", "reset"), "devices/watchdog"),
])
def test_supported_device_models_are_valid(name: str, values: tuple[str, ...], where: str,
                                           schema: etree.RelaxNG) -> None:
    for value in values:
        text = domain_xml(server({}, {name: value}), DISKS, HOST)
        assert schema.validate(etree.fromstring(text)), (value, schema.error_log)
        assert value in ET.fromstring(text).find(where).attrib.values()


@given(name=st.text(max_size=60), project=st.text(max_size=20), flavor=st.text(max_size=20),
       command=st.text(max_size=40))
def test_arbitrary_user_text_is_escaped(name: str, project: str, flavor: str, command: str) -> None:
    instance = server({}, {"os_command_line": command}, display_name=name, project_id=project)
    instance.flavor.name = flavor
    root = define(instance, TRIO)
    assert root.findtext("uuid") == instance.uuid
    assert [child.tag for child in root if child.tag == "devices"] == ["devices"]


def test_domain_definition_is_deterministic() -> None:
    make = [domain_xml(server({"hw:cpu_cores": "2"}, {"hw_disk_bus": "scsi"}, flavor={"vcpus": 4},
                              network_info=[interface()]), ALL_DISKS, HOST) for _ in range(2)]
    assert make[0] == make[1]


def test_domain_has_uuid_name_memory_and_vcpus() -> None:
    root = define(server(flavor={"vcpus": 3, "memory_mb": 100}))
    assert root.get("type") == "qemu"
    assert root.findtext("uuid") == "5b4f9b8a-2f0c-4f39-9f2e-0a1b2c3d4e5f"
    assert root.findtext("name") == "instance-0000002a"
    assert (root.findtext("memory"), root.find("memory").get("unit")) == (str(100 * 1024), "KiB")
    assert root.findtext("vcpu") == "3"


def test_domain_metadata_contains_instance_and_owner() -> None:
    element = define(server(display_name="web <1>")).find(f"metadata/{{{NAMESPACE}}}instance")
    assert element.findtext(f"{{{NAMESPACE}}}name") == "web <1>"
    assert element.find(f"{{{NAMESPACE}}}flavor").get("name") == "m1.nano"
    assert element.find(f"{{{NAMESPACE}}}owner/{{{NAMESPACE}}}project").get("uuid") == "project"
    assert owner_of(ET.tostring(element, encoding="unicode")) == "host1"
    # libvirt returns the element without the namespace.
    assert owner_of("<instance><host>h2</host></instance>") == "h2"
    assert owner_of("<instance/>") is None


def test_smbios_identifies_openstack() -> None:
    root = define(server())
    entries = {entry.get("name"): entry.text for entry in root.findall("sysinfo/system/entry")}
    assert entries["manufacturer"] == "OpenStack Foundation"
    assert entries["product"] == "OpenStack Nova"
    assert entries["serial"] == entries["uuid"] == "5b4f9b8a-2f0c-4f39-9f2e-0a1b2c3d4e5f"
    assert root.find("os/smbios").get("mode") == "sysinfo"
    none = define(server(), host_serial="")
    assert "serial" not in {entry.get("name") for entry in none.findall("sysinfo/system/entry")}


def test_local_disks_are_in_order() -> None:
    root = define(server(), ALL_DISKS)
    found = [(disk.get("device"), disk.find("target").get("dev"), disk.find("target").get("bus"),
              os.path.basename(disk.find("source").get("file")), disk.find("driver").get("type"))
             for disk in root.findall("devices/disk")]
    assert found == [
        ("disk", "vda", "virtio", "disk", "qcow2"), ("disk", "vdb", "virtio", "disk.eph0", "qcow2"),
        ("disk", "vdc", "virtio", "disk.eph1", "qcow2"), ("disk", "vdd", "virtio", "disk.swap", "qcow2"),
        ("cdrom", "hda", "ide", "disk.config", "raw"),
    ]
    assert root.find("devices/disk[@device='cdrom']/readonly") is not None


def test_backing_chain_is_complete_and_base_image_not_relabeled(schema: etree.RelaxNG) -> None:
    disks = dataclasses.replace(DISKS, root=dataclasses.replace(ROOT, base=("/cache/i.raw", "raw")))
    text = domain_xml(server(), disks, HOST)
    assert schema.validate(etree.fromstring(text)), schema.error_log
    base = ET.fromstring(text).find("devices/disk/backingStore")
    assert (base.find("source").get("file"), base.find("format").get("type")) == ("/cache/i.raw", "raw")
    assert base.find("source/seclabel").get("relabel") == "no"
    assert base.find("backingStore") is not None, "the backing chain is not terminated"


def encrypted(**where: Any) -> BlockDevice:
    connection = VolumeConnection(volume_id="v", serial="v", key=VolumeKey(key_id="k", passphrase="hush"), **where)
    return BlockDevice(source="volume", destination="volume", volume_id="v", connection=connection)


@pytest.mark.parametrize("where", [
    {"path": "/pool/v"}, {"path": "volumes/v", "protocol": "rbd", "hosts": [("10.0.0.1", "6789")],
                          "auth_user": "cinder", "secret_uuid": "457eb676-33da-42ec-9a8c-9293d545c337"}])
def test_encrypted_volume_refers_to_its_secret_without_the_passphrase(where: dict[str, Any],
                                                                      schema: etree.RelaxNG) -> None:
    text = domain_xml(server({}, {}, block_devices=[encrypted(**where)]), DISKS, HOST)
    assert schema.validate(etree.fromstring(text)), schema.error_log
    assert "hush" not in text
    disk = ET.fromstring(text).findall("devices/disk")[1]
    encryption = disk.find("source/encryption")
    assert (disk.find("driver").get("type"), encryption.get("format")) == ("raw", "luks")
    assert encryption.find("secret").attrib == {
        "type": "passphrase", "uuid": secret_of(server().uuid, "v")}


def test_volume_secrets_differ_per_server_and_volume() -> None:
    """Releasing the key of a server does not affect the key of another server."""
    assert len({secret_of(server, volume) for server in ("a", "b") for volume in ("v", "w")}) == 4


def test_encrypted_volume_without_connection_keeps_its_encryption() -> None:
    device = encrypted(path="/pool/v")
    before = domain_xml(server({}, {}, block_devices=[device]), DISKS, HOST)
    after = domain_xml(server({}, {}, block_devices=[msgspec.structs.replace(device, connection=None)]), DISKS, HOST,
                       before)
    known = [ET.fromstring(text).find("devices/disk/source/encryption/secret") for text in (before, after)]
    assert known[0].attrib == known[1].attrib


def test_buses_with_the_same_name_prefix_share_device_names() -> None:
    root = define(server({}, {"hw_disk_bus": "scsi", "hw_machine_type": "q35"}), ALL_DISKS)
    assert [(disk.find("target").get("dev"), disk.find("target").get("bus"))
            for disk in root.findall("devices/disk")][-2:] == [("sdd", "scsi"), ("sde", "sata")]
    assert root.find("devices/controller[@type='scsi']").get("model") == "virtio-scsi"


def test_image_with_kernel_boots_the_kernel() -> None:
    root = define(server({}, {"os_command_line": "quiet nova=1"}), TRIO)
    assert root.findtext("os/kernel") == TRIO.kernel
    assert root.findtext("os/initrd") == TRIO.ramdisk
    assert root.findtext("os/cmdline") == "root=/dev/vda console=tty0 console=ttyS0 no_timer_check quiet nova=1"
    assert root.find("os/boot") is None
    assert define(server({}, {"hw_disk_bus": "sata"}), TRIO).findtext("os/cmdline").startswith("root=/dev/sda ")


def test_emulated_guest_kernel_has_no_timer_check() -> None:
    """The check fails on a busy host, and the guest panics."""
    emulated = define(server({}, {}), TRIO)
    assert emulated.findtext("os/cmdline") == "root=/dev/vda console=tty0 console=ttyS0 no_timer_check"
    assert "no_timer_check" not in define(server({}, {}), TRIO, virt_type="kvm").findtext("os/cmdline")


def test_iso_image_is_a_bootable_cdrom() -> None:
    disks = dataclasses.replace(DISKS, root=LocalDisk(f"{PLACE}/disk", device="cdrom"))
    root = define(server(disk_format="iso"), disks)
    disk = root.find("devices/disk")
    assert (root.find("os/boot"), disk.get("device"), disk.find("boot").get("order")) == (None, "cdrom", "1")


def test_bridge_interface_is_defined_with_its_properties() -> None:
    root = define(server({}, {}, network_info=[interface(0), interface(1, bridge="")]))
    cards = root.findall("devices/interface")
    assert len(cards) == 1, "an interface without a bridge is in the definition"
    card = cards[0]
    assert (card.get("type"), card.find("source").get("bridge")) == ("bridge", "br-test")
    assert card.find("target").get("dev") == "tap-test0"
    assert card.find("mac").get("address") == "fa:16:3e:00:00:00"
    assert card.find("model").get("type") == "virtio"
    assert card.find("mtu").get("size") == "1450"
    assert card.find("driver") is None


def test_open_vswitch_interface_has_its_port_id(schema: etree.RelaxNG) -> None:
    vif = interface(0, bridge="", vif_type="ovs", details={"bridge_name": "br-int"})
    text = domain_xml(server(network_info=[vif]), DISKS, HOST)
    assert schema.validate(etree.fromstring(text)), schema.error_log
    card = ET.fromstring(text).find("devices/interface")
    assert card.find("source").get("bridge") == "br-int"
    assert card.find("virtualport/parameters").get("interfaceid") == vif.id


def test_multiqueue_count_equals_vcpus() -> None:
    wish = {"hw:vif_multiqueue_enabled": "yes"}
    many = define(server(wish, flavor={"vcpus": 4}, network_info=[interface()]))
    assert many.find("devices/interface/driver").get("queues") == "4"
    one = define(server(wish, network_info=[interface()]))
    assert one.find("devices/interface/driver") is None


def test_first_serial_port_is_logged() -> None:
    ports = define(server({"hw:serial_port_count": "2"})).findall("devices/serial")
    assert [port.get("type") for port in ports] == ["pty", "pty"]
    assert (ports[0].find("log").get("file"), ports[0].find("log").get("append")) == (DISKS.console_log, "on")
    assert ports[1].find("log") is None


def test_graphics_device_requires_an_enabled_console() -> None:
    assert define(server()).find("devices/graphics") is None
    graphics = define(server(), vnc_listen="127.0.0.1").find("devices/graphics")
    assert graphics.find("listen").get("address") == "127.0.0.1"


def test_spice_and_vnc_graphics_are_defined_together() -> None:
    root = define(server(), vnc_listen="127.0.0.1", spice=Spice("10.0.0.1", choices=(("streaming", "mode", "off"),)))
    assert [item.get("type") for item in root.findall("devices/graphics")] == ["vnc", "spice"]
    assert len(root.findall("devices/video")) == len(root.findall("devices/input")) == 1
    screen = root.find("devices/graphics[@type='spice']")
    assert (screen.get("defaultMode"), screen.find("listen").get("address"), screen.find("streaming").get("mode")) == (
        None, "10.0.0.1", "off")
    channel = root.find("devices/channel[@type='spicevmc']/target")
    assert channel.get("name") == "com.redhat.spice.0"
    assert define(server(), spice=Spice("::1", agent=False)).find("devices/channel") is None
    secure = define(server(), spice=Spice("::1", secure=True)).find("devices/graphics")
    assert secure.get("defaultMode") == "secure"


@pytest.mark.parametrize(("specs", "properties", "model"), [
    ({"hw:redirected_usb_ports": "2"}, {}, "qemu-xhci"), ({}, {"hw_redirected_usb_ports": "2"}, "qemu-xhci"),
    ({"hw:redirected_usb_ports": "2"}, {"hw_usb_model": "nec-xhci"}, "nec-xhci")])
def test_spice_guest_has_the_requested_usb_redirection_ports(specs: dict[str, str], properties: dict[str, str],
                                                             model: str) -> None:
    root = define(server(specs, properties), spice=Spice("::1"))
    assert [(item.get("bus"), item.get("type")) for item in root.findall("devices/redirdev")] == [
        ("usb", "spicevmc")] * 2
    assert root.find("devices/controller[@type='usb']").get("model") == model
    assert define(server({"hw:redirected_usb_ports": "0"})).find("devices/redirdev") is None


@pytest.mark.parametrize(("value", "changes", "properties"), [
    ("2", {}, {}), ("16", {"spice": Spice("::1")}, {}), ("many", {"spice": Spice("::1")}, {}),
    ("1", {"spice": Spice("::1")}, {"hw_usb_model": "none"})])
def test_usb_redirection_without_spice_or_controller_is_refused(value: str, changes: dict[str, Any],
                                                                properties: dict[str, str]) -> None:
    with pytest.raises(exception.InvalidInput, match=f"hw_redirected_usb_ports={value}"):
        define(server({"hw:redirected_usb_ports": value}, properties), **changes)


def test_rng_device_is_present_unless_disallowed() -> None:
    assert define(server()).find("devices/rng") is not None
    assert define(server({"hw_rng:allowed": "false"})).find("devices/rng") is None


def test_image_overrides_watchdog_action_of_the_flavor() -> None:
    root = define(server({"hw:watchdog_action": "reset"}, {"hw_watchdog_action": "pause"}))
    assert root.find("devices/watchdog").get("action") == "pause"
    assert define(server({}, {"hw_watchdog_action": "disabled"})).find("devices/watchdog") is None


def test_uefi_image_enables_firmware_and_secure_boot() -> None:
    root = define(server({}, {"hw_firmware_type": "uefi"}))
    assert root.find("os").get("firmware") == "efi"
    assert root.findtext("os/nvram") == f"{PLACE}/nvram"
    features = {item.get("name"): item.get("enabled") for item in root.findall("os/firmware/feature")}
    assert features["secure-boot"] == "no"
    secure = define(server({}, {"hw_firmware_type": "uefi", "os_secure_boot": "required", "hw_machine_type": "q35"}))
    assert secure.find("os/firmware/feature[@name='secure-boot']").get("enabled") == "yes"
    assert secure.find("pm/suspend-to-mem").get("enabled") == "no"
    assert secure.find("features/smm").get("state") == "on"
    assert define(server()).find("os").get("firmware") is None


def test_machine_type_is_from_image_configuration_or_architecture() -> None:
    assert define(server()).find("os/type").get("machine") == "pc"
    assert define(server(), machines={"x86_64": "q35"}).find("os/type").get("machine") == "q35"
    assert define(server({}, {"hw_machine_type": "pc-q35-7.2"})).find("os/type").get("machine") == "pc-q35-7.2"
    with pytest.raises(exception.InvalidInput, match="hw_machine_type=pdp11"):
        define(server({}, {"hw_machine_type": "pdp11"}), machine_names=frozenset({"pc"}))
    assert define(server({}, {"hw_machine_type": "pc-q35-7.2"}), ALL_DISKS).find(
        "devices/disk[@device='cdrom']/target").get("bus") == "sata"


@pytest.mark.parametrize(("specs", "properties", "word"), [
    ({}, {"hw_disk_bus": "xen"}, "hw_disk_bus"),
    ({}, {"hw_vif_model": "netfront"}, "hw_vif_model"),
    ({}, {"hw_video_model": "gop"}, "hw_video_model"),
    ({}, {"hw_disk_bus": "fdc"}, "hw_disk_bus"),
    ({}, {"hw_video_ram": "16"}, "hw_video_ram"),
    ({}, {"hw_firmware_type": "openfirmware"}, "hw_firmware_type"),
    ({"os:secure_boot": "required"}, {}, "os_secure_boot"),
    ({"hw:serial_port_count": "1"}, {"hw_serial_port_count": "2"}, "hw_serial_port_count"),
    ({"hw:serial_port_count": "9"}, {}, "serial_port_count"),
    ({"hw:boot_menu": "perhaps"}, {}, "boot_menu"),
    ({"quota:cpu_shares": "many"}, {}, "quota:cpu_shares"),
    ({"quota:vif_inbound_peak": "5"}, {}, "quota:vif_inbound_average"),
])
def test_invalid_hardware_properties_are_reported_by_name(specs: dict[str, str], properties: dict[str, str],
                                                          word: str) -> None:
    with pytest.raises(exception.InvalidInput, match=word):
        define(server(specs, properties, network_info=[interface()]))


@pytest.mark.parametrize(("specs", "properties"), [
    ({"hw:cpu_policy": "dedicated"}, {}), ({}, {"hw_cpu_policy": "mixed"}), ({"hw:mem_page_size": "large"}, {}),
    ({"hw:numa_nodes": "1"}, {}), ({"hw:tpm_version": "2.0"}, {}), ({"pci_passthrough:alias": "gpu:1"}, {}),
    ({}, {"hw_mem_encryption": "true"}),
])
def test_unsupported_hardware_requests_are_refused(specs: dict[str, str], properties: dict[str, str]) -> None:
    key = next(iter({**specs, **properties})).partition(":")[2] or next(iter(properties))
    with pytest.raises(exception.InvalidInput, match=key.removeprefix("hw_")):
        guest_config(server(specs, properties), HOST)


def test_hardware_requests_without_effect_are_accepted() -> None:
    guest_config(server({"hw:cpu_policy": "shared", "hw:mem_page_size": "any", "trait:CUSTOM_X": "required"},
                        {"hw_mem_encryption": "false", "something": "else"}), HOST)
