"""Values of virtual hardware properties: applied, excluded by a trait that the host lacks, or refused."""

from __future__ import annotations

import collections
import dataclasses
import xml.etree.ElementTree as ET
from typing import Any

import pytest
from lxml import etree

from nova import exception
from nova.api.validation import extra_specs
from nova.conf import CONF, register
from nova.objects.dedicated_resources.numa import GuestCell, GuestTopology
from nova.objects.requirements import hardware
from nova.objects.requirements.hardware_values import (
    ARCHITECTURES,
    BANDWIDTH_LIMITS,
    BLOCK_BUSES,
    CHOICES,
    CPU_REALTIME,
    DEVICE_TYPES,
    LOCKED_MEMORY,
    USB_REDIRECTION,
)
from nova.objects.requirements.requested_resources import check_resize, request_spec, requested_resources
from nova.objects.servers.instance import BlockDevice, Instance
from nova.virt.libvirt.node import inventory
from nova.virt.libvirt.node.capabilities import Capabilities
from nova.virt.libvirt.xml.guest_config import guest_config
from nova.virt.libvirt.xml.settings import GuestArchitecture, Settings, Spice
from tests.unit.virt.guests import interface, server
from tests.unit.virt.test_libvirt_domain_xml import ALL_DISKS, DISKS, TRIO, domain_xml, schema  # noqa: F401
from tests.unit.virt.test_libvirt_layout import volume

# The devices listed by QEMU 7.2 of Debian 12.
DEVICES = frozenset({
    "virtio-net-pci", "e1000", "e1000e", "rtl8139", "ne2k_pci", "pcnet", "vmxnet3", "lsi53c895a", "mptsas1068",
    "megasas", "pvscsi", "AC97", "ES1370", "intel-hda", "ich9-intel-hda", "sb16", "usb-audio", "nec-usb-xhci",
    "qemu-xhci", "intel-iommu", "virtio-iommu-pci", "virtio-tablet-pci"})
MACHINES = frozenset({"pc", "q35", "pc-q35-7.2", "pc-i440fx-7.2"})
HOST = Settings(owner="host1", virt_type="qemu", cpu_mode="host-model", vnc_listen="::1", spice=Spice("::1"),
                machine_names=MACHINES, cells=((0, (0, 1, 2, 3)),),
                foreign=(GuestArchitecture("i686", "qemu", "host-model", None, MACHINES),))
ARM = Settings(owner="arm1", virt_type="kvm", arch="aarch64", cpu_mode="host-passthrough", vnc_listen="::1")

# Property -> element and attribute of its value in the definition, and the values that differ there.
SHOWN: dict[str, tuple[str, str, dict[str, str | None]]] = {
    "hw_disk_bus": ("devices/disk[@device='disk']/target", "bus", {}),
    "hw_cdrom_bus": ("devices/disk[@device='cdrom']/target", "bus", {}),
    "hw_floppy_bus": ("devices/disk[@device='floppy']/target", "bus", {}),
    "hw_scsi_model": ("devices/controller[@type='scsi']", "model", {}),
    "hw_vif_model": ("devices/interface/model", "type", {}),
    "hw_video_model": ("devices/video/model", "type", {}),
    "hw_sound_model": ("devices/sound", "model", {}),
    "hw_usb_model": ("devices/controller[@type='usb']", "model", {}),
    "hw_viommu_model": ("devices/iommu", "model", {"auto": "intel"}),
    "hw_input_bus": ("devices/input[@type='tablet']", "bus", {}),
    "hw_pointer_model": ("devices/input[@bus='usb']", "type", {"usbtablet": "tablet"}),
    "hw_firmware_type": ("os", "firmware", {"uefi": "efi", "bios": None}),
    "hw_rng_model": ("devices/rng", "model", {}),
    "hw_watchdog_action": ("devices/watchdog", "action", {"disabled": None}),
    "img_hv_type": (".", "type", {}),
}
# Properties without a trait, which ImagePropertiesFilter compares with the supported instances of the host.
FILTERED = ("hw_vm_mode", "img_hv_type")
# Properties of other requests (a rescue, which has its own tests), or in combination with other properties.
ELSEWHERE = ("hw_rescue_bus", "hw_rescue_device", "hw_ephemeral_encryption_format", "hw_mem_encryption_model")
# Further properties required for a visible effect.
BESIDE = {"hw_scsi_model": {"hw_disk_bus": "scsi"}, "hw_tpm_model": {"hw_tpm_version": "2.0"}}


@pytest.fixture(autouse=True)
def conf() -> None:
    register(CONF)


def host_traits() -> set[str]:
    """Return the traits of a host like CI's, without UEFI firmware and with a kernel without rate limits."""
    found = Capabilities(
        arch="x86_64", host_uuid="", cpu_info={}, guests=(), disk_buses=frozenset(
            {"fdc", "ide", "scsi", "virtio", "usb", "sata"}),
        video_models=frozenset({"vga", "cirrus", "vmvga", "qxl", "virtio", "none", "bochs", "ramfb"}), uefi=True,
        emulators=(("x86_64", "", MACHINES), ("i686", "", MACHINES)), foreign=HOST.foreign,
        model_traits=frozenset(inventory.traits_of_devices(DEVICES, 9_000_000, "x86_64")))
    return set(inventory.traits_of_node(found))


def guest(specs: dict[str, str], properties: dict[str, str]) -> Instance:
    return server(specs, properties, flavor={"vcpus": 4}, network_info=[interface()],
                  block_devices=[volume(1, device_type="floppy")])


def outcome(name: str, value: str, is_spec: bool) -> str:
    """Process a value from the request to the definition, and return the outcome."""
    key = name.replace("_", ":", 1) if is_spec else name
    instance = guest({key: value} if is_spec else {}, {**BESIDE.get(name, {}), **({} if is_spec else {key: value})})
    try:
        asked = requested_resources(instance.flavor, instance.image)
    except exception.InvalidInput as error:
        named = key in str(error) or name in str(error)
        return "refused" if named else f"{key}={value} is refused, but not by its name: {error}"
    if set(asked.required) - host_traits():
        return "kept away by a trait"
    try:
        root = ET.fromstring(domain_xml(instance, ALL_DISKS, HOST))
    except exception.InvalidInput as error:
        named = name in FILTERED and name in str(error)
        return "kept away by a filter" if named else f"{key}={value} is refused only by the driver: {error}"
    if name == "hw_vm_mode":
        assert root.findtext("os/type") == value
        return "obeyed"
    where, attribute, words = SHOWN[name]
    shown = {item.get(attribute) for item in root.findall(where)} or {None}
    assert shown == {words.get(value, value)}, f"{key}={value} is accepted, but the definition has {shown}"
    return "obeyed"


def test_hardware_property_values_are_applied_excluded_or_refused() -> None:
    covered: dict[str, list[str]] = collections.defaultdict(list)
    for choice in CHOICES:
        if choice.name in ELSEWHERE:
            continue
        for is_spec in (False, True) if choice.in_flavor else (False,):
            for value in (*choice.values, "nonsense", "fdc"):
                end = outcome(choice.name, value, is_spec)
                assert end == "refused" or value in choice.values
                covered[end].append(f"{choice.spec if is_spec else choice.name}={value}")
    for end, items in covered.items():
        print(f"\n{end} ({len(items)}): {', '.join(items)}")
    assert set(covered) == {"obeyed", "refused", "kept away by a trait", "kept away by a filter"}
    assert {"hw_disk_bus=fdc", "hw_cdrom_bus=fdc"} <= set(covered["refused"])
    assert {"hw_scsi_model=ibmvscsi", "hw_sound_model=pcspk", "hw:sound_model=pcspk"} <= set(
        covered["kept away by a trait"])


def test_architecture_requires_a_host_with_its_qemu() -> None:
    ends = collections.Counter()
    for name in ("hw_architecture", "hw_emulation_architecture"):
        for value in (*sorted(ARCHITECTURES), "amd64", "i386", "arm64"):
            instance = server({}, {name: value})
            asked = requested_resources(instance.flavor, instance.image).required
            if set(asked) - host_traits():
                ends["kept away"] += 1
                with pytest.raises(exception.InvalidInput, match="hw_architecture"):
                    guest_config(instance, HOST)
                continue
            found = ET.fromstring(domain_xml(instance, DISKS, HOST)).find("os/type").get("arch")
            assert found == {"amd64": "x86_64", "i386": "i686"}.get(value, value)
            ends[found] += 1
    print(dict(ends))
    assert set(ends) == {"kept away", "x86_64", "i686"}
    with pytest.raises(exception.InvalidInput, match="hw_architecture=pdp11"):
        requested_resources(server().flavor, server({}, {"hw_architecture": "pdp11"}).image)


@pytest.mark.parametrize(("specs", "properties", "words"), [
    ({"hw:locked_memory": "true"}, {}, "hw:locked_memory=true needs"),
    ({"hw:cpu_realtime": "true"}, {}, "hw:cpu_realtime=true needs"),
    ({"hw:cpu_realtime": "true", "hw:cpu_policy": "dedicated"}, {}, "hw:cpu_realtime_mask"),
    ({}, {"hw_viommu_model": "intel", "hw_machine_type": "pc"}, "hw_viommu_model=intel and hw_machine_type=pc"),
    ({}, {"hw_tpm_model": "tpm-crb"}, "hw_tpm_version"),
    ({}, {"hw_tpm_model": "tpm-crb", "hw_tpm_version": "1.2"}, "exclude"),
    ({}, {"os_secure_boot": "required"}, "needs hw_firmware_type=uefi"),
    ({"os:secure_boot": "required"}, {"hw_firmware_type": "uefi", "hw_machine_type": "pc"}, "hw_machine_type=pc"),
    ({}, {"hw_disk_bus": "ide", "hw_machine_type": "q35"}, "hw_disk_bus=ide"),
    ({}, {"hw_machine_type": "microvm"}, "hw_machine_type=microvm"),
    ({}, {"hw_machine_type": "pc", "hw_architecture": "aarch64"}, "hw_architecture=aarch64"),
    ({}, {"hw_input_bus": "usb", "hw_usb_model": "none"}, "hw_input_bus=usb"),
    ({}, {"hw_video_ram": "64"}, "hw_video_ram"), ({}, {"hw_video_ram": "many"}, "hw_video_ram"),
    ({}, {"hw_cpu_sockets": "3", "hw_cpu_max_sockets": "2"}, "hw_cpu_sockets=3"),
    ({"hw:serial_port_count": "9"}, {}, "serial_port_count"), ({}, {"hw_pmu": "perhaps"}, "hw_pmu=perhaps"),
    ({}, {"hw_qemu_guest_agent": "perhaps"}, "hw_qemu_guest_agent"),
    ({"quota:vif_inbound_peak": "5"}, {}, "quota:vif_inbound_average"),
    ({"quota:cpu_shares": "many"}, {}, "quota:cpu_shares"), ({"hw_rng:rate_bytes": "-1"}, {}, "hw_rng:rate_bytes"),
])
def test_inconsistent_flavor_and_image_are_refused_at_request(
        specs: dict[str, str], properties: dict[str, str], words: str) -> None:
    instance = server(specs, properties, flavor={"vcpus": 2})
    with pytest.raises(exception.InvalidInput, match=words):
        request_spec(instance, instance.flavor)


# Extra spec -> further required extra specs, and the trait of the hosts that support it.
NEEDS: dict[str, tuple[dict[str, str], str]] = {
    "hw:locked_memory": ({"hw:mem_page_size": "small"}, LOCKED_MEMORY),
    "hw:cpu_realtime": ({"hw:cpu_policy": "dedicated", "hw:cpu_realtime_mask": "^0"}, CPU_REALTIME),
    "quota:vif_inbound_average": ({}, BANDWIDTH_LIMITS), "quota:vif_outbound_average": ({}, BANDWIDTH_LIMITS),
    "hw:redirected_usb_ports": ({}, USB_REDIRECTION),
    "hw:virtio_packed_ring": ({}, "COMPUTE_NET_VIRTIO_PACKED"),
    "hw:mem_encryption": ({}, "HW_CPU_X86_AMD_SEV"), "hw:ephemeral_encryption": ({}, "COMPUTE_EPHEMERAL_ENCRYPTION"),
    "accel:device_profile": ({}, "COMPUTE_ACCELERATORS"), "hw:tpm_version": ({}, "COMPUTE_SECURITY_TPM_2_0"),
}
VALUES = {"hw:redirected_usb_ports": "2", "hw:tpm_version": "2.0"}


def test_optional_host_features_are_required_traits() -> None:
    assert set(NEEDS) <= set(extra_specs.EXACT)
    for name, (beside, trait) in NEEDS.items():
        value = VALUES.get(name, "true" if name.startswith("hw:") else "5")
        asked = requested_resources(server({name: value, **beside}, {}, flavor={"vcpus": 2}).flavor)
        assert trait in asked.required, name
    print(f"covered: {NEEDS}")


def test_default_machine_type_fits_the_other_properties() -> None:
    def machine(**properties: str) -> str:
        return ET.fromstring(domain_xml(server({}, properties), DISKS, HOST)).find("os/type").get("machine")

    assert machine(hw_firmware_type="uefi", os_secure_boot="required") == "q35"
    assert machine(hw_viommu_model="intel") == "q35"
    assert machine(hw_firmware_type="uefi", os_secure_boot="optional") == "pc"
    optional = ET.fromstring(domain_xml(server({}, {"hw_firmware_type": "uefi", "os_secure_boot": "optional"}), DISKS,
                                        HOST))
    assert optional.find("os/firmware/feature[@name='secure-boot']").get("enabled") == "no"


def test_existing_server_with_previously_ignored_properties_can_move() -> None:
    for properties in ({"hw_tpm_model": "tpm-crb"}, {"hw_pointer_model": "joystick"}, {"hw_vm_mode": "vax"},
                       {"hw_architecture": "pdp11"}, {"hw_input_bus": "usb", "hw_usb_model": "none"}):
        instance = server({}, properties)
        with pytest.raises(exception.InvalidInput):
            request_spec(instance, instance.flavor)
        instance.launched_at = instance.created_at
        request_spec(instance, instance.flavor)
        check_resize(instance, server(flavor={"vcpus": 4}).flavor)
        guest_config(instance, HOST, existing="")


def test_architecture_of_an_existing_guest_is_kept() -> None:
    """The guest was created by a release that ignored the property."""
    config = guest_config(server({}, {"hw_architecture": "i686"}), HOST, existing="x86_64")
    assert config.architecture == "x86_64"
    assert guest_config(server({}, {"hw_architecture": "aarch64"}), HOST, existing="").architecture == "x86_64"
    assert guest_config(server({}, {"hw_vm_mode": "xen"}), HOST, existing="x86_64").virt_type == "qemu"


# --- devices ------------------------------------------------------------------------------------------
def test_packed_rings_apply_to_all_virtio_devices(schema: etree.RelaxNG) -> None:  # noqa: F811
    instance = server({}, {"hw_virtio_packed_ring": "true", "hw_input_bus": "virtio", "hw_video_model": "virtio",
                           "hw_qemu_guest_agent": "true"}, network_info=[interface()],
                      block_devices=[volume(1), volume(2, disk_bus="scsi")])
    text = domain_xml(instance, ALL_DISKS, HOST)
    assert schema.validate(etree.fromstring(text)), schema.error_log
    root = ET.fromstring(text)
    packed = {item.tag + (item.get("type") or "") for item in root.find("devices")
              if item.find("driver") is not None and item.find("driver").get("packed") == "on"}
    print(f"packed: {sorted(packed)}")
    assert packed == {"diskfile", "controllerscsi", "controllervirtio-serial", "interfacebridge", "inputtablet",
                      "inputkeyboard", "video", "rng", "memballoon"}
    assert all(disk.find("driver").get("packed") is None for disk in root.findall("devices/disk")
               if disk.find("target").get("bus") != "virtio")


def test_hypervisor_id_is_hidden_in_emulated_and_kvm_guests(schema: etree.RelaxNG) -> None:  # noqa: F811
    for mode, expected in (("host-model", ("host-model", None)), (None, ("custom", "qemu64"))):
        host = dataclasses.replace(HOST, cpu_mode=mode)
        text = domain_xml(server({}, {"img_hide_hypervisor_id": "true"}), DISKS, host)
        assert schema.validate(etree.fromstring(text)), schema.error_log
        cpu = ET.fromstring(text).find("cpu")
        assert (cpu.get("mode"), cpu.findtext("model")) == expected
        assert cpu.find("feature[@name='hypervisor']").get("policy") == "disable"
    kvm = ET.fromstring(domain_xml(server({}, {"img_hide_hypervisor_id": "true"}), DISKS,
                                   dataclasses.replace(HOST, virt_type="kvm")))
    assert kvm.find("features/kvm/hidden").get("state") == "on"


def test_locked_memory_request_sets_the_locked_element(schema: etree.RelaxNG) -> None:  # noqa: F811
    instance = server({"hw:locked_memory": "true", "hw:mem_page_size": "small"}, {}, numa_topology=GuestTopology(
        cells=[GuestCell(id=0, cpus=[0], memory_mb=128, host_cell=0, pagesize_kb=4)]))
    text = domain_xml(instance, DISKS, HOST)
    assert schema.validate(etree.fromstring(text)), schema.error_log
    assert ET.fromstring(text).find("memoryBacking/locked") is not None


@pytest.mark.parametrize("kernel", [False, True])
def test_arm_guest_has_arm_devices_and_firmware(kernel: bool, schema: etree.RelaxNG) -> None:  # noqa: F811
    instance = server({}, {}, network_info=[interface()], kernel_id="k" if kernel else "")
    text = domain_xml(instance, dataclasses.replace(ALL_DISKS, kernel=TRIO.kernel if kernel else None), ARM)
    assert schema.validate(etree.fromstring(text)), schema.error_log
    root = ET.fromstring(text)
    machine = root.find("os/type")
    assert (machine.get("arch"), machine.get("machine")) == ("aarch64", "virt")
    assert root.find("clock/timer") is None, "the guest has PC timers"
    assert root.find("features/apic") is None
    # Direct kernel boot needs no firmware.
    assert root.find("os").get("firmware") == (None if kernel else "efi")
    assert (root.find("features/acpi") is None) == kernel
    if kernel:
        assert "console=ttyAMA0" in root.findtext("os/cmdline")
    assert root.find("devices/video/model").get("type") == "virtio"
    assert {item.get("type") for item in root.findall("devices/input[@bus='usb']")} == {"tablet", "keyboard"}
    assert root.find("devices/controller[@type='usb']").get("model") == "qemu-xhci"
    assert root.find("devices/disk[@device='cdrom']/target").get("bus") == "scsi"


def test_i686_image_on_an_x86_64_host_has_an_i686_definition(schema: etree.RelaxNG) -> None:  # noqa: F811
    text = domain_xml(server({}, {"hw_architecture": "i386"}), DISKS, HOST)
    assert schema.validate(etree.fromstring(text)), schema.error_log
    root = ET.fromstring(text)
    assert (root.find("os/type").get("arch"), root.find("cpu").get("mode")) == ("i686", "host-model")
    assert root.find("clock/timer[@name='pit']") is not None


# Architecture -> machine, console of the kernel, models of the screen, and bus of the pointer.
FOREIGN_GUESTS = {
    "aarch64": ("virt", "ttyAMA0", "virtio", "usb"), "ppc64": ("pseries", "hvc0", "vga", "usb"),
    "ppc64le": ("pseries", "hvc0", "vga", "usb"), "s390x": ("s390-ccw-virtio", "ttysclp0", "virtio", "virtio"),
    "i686": ("pc", "ttyS0", "vga", "usb")}
MANY = dataclasses.replace(HOST, virt_type="kvm", cpu_mode="host-passthrough", cpu_flags=("+pcid",), foreign=tuple(
    GuestArchitecture(name, "qemu", None) for name in FOREIGN_GUESTS))


@pytest.mark.parametrize("architecture", FOREIGN_GUESTS)
@pytest.mark.parametrize("name", ["hw_architecture", "hw_emulation_architecture"])
def test_guest_of_another_architecture_has_its_machine_and_devices(
        name: str, architecture: str, schema: etree.RelaxNG) -> None:  # noqa: F811
    machine, console, video, pointer = FOREIGN_GUESTS[architecture]
    # The architecture to emulate wins.
    other = {"hw_architecture": "x86_64"} if name == "hw_emulation_architecture" else {}
    instance = server({"hw:watchdog_action": "reset"}, {**other, name: architecture, "hw_rng_model": "virtio"},
                      network_info=[interface()], kernel_id="k")
    text = domain_xml(instance, dataclasses.replace(ALL_DISKS, kernel=TRIO.kernel), MANY)
    assert schema.validate(etree.fromstring(text)), schema.error_log
    root, is_x86 = ET.fromstring(text), architecture == "i686"
    kind = root.find("os/type")
    assert (root.get("type"), kind.get("arch"), kind.get("machine")) == ("qemu", architecture, machine)
    assert f"console={console}" in root.findtext("os/cmdline")
    assert root.find("cpu") is None, "the CPU of the host is not one of this architecture"
    assert bool(root.findall("clock/timer")) == bool(root.findall("features/apic")) == is_x86
    assert bool(root.findall("sysinfo")) == (architecture in ("aarch64", "i686"))
    assert root.find("devices/video/model").get("type") == video
    assert {item.get("bus") for item in root.findall("devices/input")} == {pointer}
    assert bool(root.findall("devices/controller[@type='usb']")) == (pointer == "usb" and not is_x86)
    assert root.find("devices/disk[@device='cdrom']/target").get("bus") == ("ide" if is_x86 else "scsi")
    assert root.find("devices/watchdog").get("model") == ("diag288" if architecture == "s390x" else "i6300esb")


def test_machine_type_of_another_architecture_needs_that_architecture() -> None:
    def kept_away(host: str, properties: dict[str, str]) -> bool:
        emulators = (("x86_64", "", MACHINES), ("aarch64", "", frozenset({"virt"})))
        machines = {"x86_64": MACHINES, "aarch64": frozenset({"virt"})}[host]
        others = tuple(GuestArchitecture(name, "qemu") for name in ("x86_64", "aarch64") if name != host)
        have = inventory.traits_of_node(Capabilities(arch=host, host_uuid="", cpu_info={}, guests=(), machines=machines,
                                                     emulators=emulators, foreign=others))
        wanted = server({}, properties)
        return bool(set(requested_resources(wanted.flavor, wanted.image).required) - set(have))

    virt, arm = {"hw_machine_type": "virt"}, {"hw_architecture": "arm64"}
    assert kept_away("x86_64", virt)
    assert not kept_away("x86_64", {**virt, **arm})
    assert not kept_away("aarch64", virt)
    assert not kept_away("aarch64", {**virt, **arm})
    assert not kept_away("x86_64", {"hw_machine_type": "pc-q35-7.2"})


@pytest.mark.parametrize(("architecture", "properties", "words"), [
    ("aarch64", {"hw_disk_bus": "ide"}, "hw_disk_bus"), ("ppc64le", {"hw_cdrom_bus": "sata"}, "hw_cdrom_bus"),
    ("s390x", {"hw_vif_model": "e1000"}, "hw_vif_model"), ("s390x", {"hw_sound_model": "ac97"}, "hw_sound_model"),
    ("s390x", {"hw_video_model": "vga"}, "hw_video_model"), ("s390x", {"hw_usb_model": "qemu-xhci"}, "hw_usb_model"),
    ("s390x", {"hw_pointer_model": "usbtablet"}, "hw_pointer_model"),
    ("s390x", {"hw_serial_port_count": "2"}, "hw_serial_port_count=2"),
    ("ppc64le", {"hw_firmware_type": "uefi"}, "hw_firmware_type=uefi"),
    ("ppc64le", {"hw_machine_type": "q35"}, "hw_machine_type"),
    ("s390x", {"hw_viommu_model": "virtio"}, "hw_viommu_model")])
def test_devices_that_an_architecture_lacks_are_refused_by_name(
        architecture: str, properties: dict[str, str], words: str) -> None:
    machines = frozenset({FOREIGN_GUESTS[architecture][0]})
    host = dataclasses.replace(MANY, foreign=(GuestArchitecture(architecture, "qemu", None, None, machines),))
    with pytest.raises(exception.InvalidInput, match=words):
        guest_config(server({}, {"hw_architecture": architecture, **properties}), host)


def test_owner_metadata_contains_user_and_project_names() -> None:
    named = server(system_metadata={"owner_user_name": "Ada <1>", "owner_project_name": "engines"})
    for instance, names in ((named, ("Ada <1>", "engines")), (server(), (None, None))):
        owner = ET.fromstring(domain_xml(instance, DISKS, HOST)).find("metadata/{*}instance/{*}owner")
        assert (owner.find("{*}user").get("uuid"), owner.find("{*}project").get("uuid")) == ("user", "project")
        assert (owner.find("{*}user").text, owner.find("{*}project").text) == names


# --- disks --------------------------------------------------------------------------------------------
def booted(instance: Instance, local: Any = DISKS) -> list[str]:
    """Return the boot disks of the guest in boot order."""
    root = ET.fromstring(domain_xml(instance, local, HOST))
    assert root.find("os/boot") is None
    found = [(int(disk.find("boot").get("order")), disk.find("target").get("dev"))
             for disk in root.findall("devices/disk") if disk.find("boot") is not None]
    return [name for _order, name in sorted(found)]


def test_boot_order_follows_boot_index_of_all_disks() -> None:
    iso = dataclasses.replace(DISKS, root=dataclasses.replace(DISKS.root, device="cdrom"))
    installer = server(disk_format="iso", block_devices=[volume(1, "/dev/vda", boot_index=1), volume(2)])
    assert booted(installer, iso) == ["hda", "vda"]
    several = server(image=None, block_devices=[volume(1, boot_index=2), volume(2, boot_index=0), volume(3),
                                                volume(4, boot_index=1)])
    assert booted(several, dataclasses.replace(DISKS, root=None)) == ["vda", "vdd", "vdb"]
    blank = [BlockDevice(source="image", boot_index=0), BlockDevice(source="blank", boot_index=1, size_gb=1)]
    assert booted(server(block_devices=blank), ALL_DISKS) == ["vda", "vdb"]
    assert booted(server()) == ["vda"]


def test_block_device_types_and_buses_are_applied_or_refused(schema: etree.RelaxNG) -> None:  # noqa: F811
    covered = collections.Counter()
    for kind in (None, *DEVICE_TYPES):
        for bus in (None, "fdc", "virtio", "scsi", "sata", "ide", "usb", "xen", "lxc", "uml", "nonsense"):
            allowed = bus is None or bus in BLOCK_BUSES[kind or "disk"]
            if not allowed:
                with pytest.raises(exception.InvalidInput, match=f"disk_bus of a {kind or 'disk'}={bus}"):
                    hardware.check_disk(kind, bus)
                covered["refused"] += 1
                continue
            hardware.check_disk(kind, bus)
            device = volume(1, device_type=kind, disk_bus=bus)
            device.connection.protocol = "block"
            instance = server(block_devices=[device])
            asked = request_spec(instance, instance.flavor).required_traits
            if set(asked) - host_traits():
                covered["kept away by a trait"] += 1
                continue
            text = domain_xml(instance, DISKS, HOST)
            assert schema.validate(etree.fromstring(text)), (kind, bus, schema.error_log)
            disk = ET.fromstring(text).findall("devices/disk")[1]
            usual = {"cdrom": "ide", "floppy": "fdc"}.get(kind or "disk", "virtio")
            assert (disk.get("device"), disk.find("target").get("bus")) == (kind or "disk", bus or usual)
            covered["obeyed"] += 1
    print(dict(covered))
    assert min(covered[end] for end in ("refused", "obeyed", "kept away by a trait")) > 0
    with pytest.raises(exception.InvalidInput, match="device_type"):
        hardware.check_disk("tape", None)


def test_local_disk_has_the_bus_of_its_block_device() -> None:
    devices = [BlockDevice(source="image", boot_index=0, disk_bus="scsi"),
               BlockDevice(source="blank", disk_bus="sata", size_gb=1), BlockDevice(source="blank", size_gb=1),
               BlockDevice(source="blank", guest_format="swap", disk_bus="ide")]
    root = ET.fromstring(domain_xml(server(block_devices=devices), ALL_DISKS, HOST))
    assert [disk.find("target").get("bus") for disk in root.findall("devices/disk")] == [
        "scsi", "sata", "virtio", "ide", "ide"]


def test_lun_device_type_is_refused_for_files() -> None:
    with pytest.raises(exception.InvalidDiskInfo, match="device_type=lun"):
        domain_xml(server(block_devices=[volume(1, device_type="lun")]), DISKS, HOST)


# --- host capabilities --------------------------------------------------------------------------------
def test_device_model_traits_come_from_the_qemu_device_list() -> None:
    found = inventory.traits_of_devices(DEVICES, 9_000_000, "x86_64")
    assert {"COMPUTE_NET_VIF_MODEL_E1000E", "COMPUTE_SOUND_MODEL_AC97", "COMPUTE_VIOMMU_MODEL_AUTO",
            "CUSTOM_COMPUTE_SCSI_MODEL_VMPVSCSI", "CUSTOM_COMPUTE_INPUT_BUS_VIRTIO"} <= found
    assert not {"COMPUTE_NET_VIF_MODEL_IGB", "COMPUTE_SOUND_MODEL_PCSPK", "CUSTOM_COMPUTE_SCSI_MODEL_IBMVSCSI",
                "CUSTOM_COMPUTE_SCSI_MODEL_BUSLOGIC"} & found
    newer = inventory.traits_of_devices(DEVICES | {"igb", "virtio-sound-pci"}, 10_004_000, "x86_64")
    assert {"COMPUTE_NET_VIF_MODEL_IGB", "COMPUTE_SOUND_MODEL_VIRTIO"} <= newer
    assert "COMPUTE_SOUND_MODEL_PCSPK" in inventory.traits_of_devices(DEVICES | {"-soundhw"}, 9_000_000, "x86_64")
    assert "COMPUTE_NET_VIF_MODEL_VIRTIO" in inventory.traits_of_devices(None, 9_000_000, "x86_64")
    assert inventory.devices_of("/nowhere/qemu-system-x86_64") is None
