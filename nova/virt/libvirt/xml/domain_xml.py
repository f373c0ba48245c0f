"""Generation of libvirt domain XML for a server. Deterministic: equal input produces equal XML."""

import os
import xml.etree.ElementTree as ET
from collections.abc import Sequence

from nova import __version__
from nova.objects.servers.instance import OWNER_PROJECT_NAME, OWNER_USER_NAME, Instance
from nova.virt.libvirt.files.disks import LocalDisks
from nova.virt.libvirt.xml import definition, device_xml, guest_parts
from nova.virt.libvirt.xml.guest_config import GuestConfig
from nova.virt.libvirt.xml.layout import GuestDisk
from nova.virt.libvirt.xml.settings import Settings
from nova.virt.libvirt.xml.xmltree import clean, element

# Namespace of the metadata element that marks a domain as Nova's. Monitoring agents (ceilometer, exporters) read it.
NAMESPACE = "http://openstack.org/xmlns/libvirt/nova/1.1"

# CPU mode -> further attributes of the CPU.
_CPU_ATTRIBUTES = {"host-model": {"check": "partial"}, "host-passthrough": {"check": "none"},
                   "custom": {"match": "exact", "check": "partial"}}


def domain_xml(instance: Instance, config: GuestConfig, local: LocalDisks, disks: Sequence[GuestDisk],
               settings: Settings, previous: definition.Definition | None = None) -> str:
    """Return the definition. Devices keep their addresses in ``previous`` if it has the same machine type."""
    domain = ET.Element("domain", type=config.virt_type)
    element(domain, "uuid", instance.uuid)
    element(domain, "name", instance.name_by(settings.names))
    add_metadata(domain, instance, settings)
    element(domain, "memory", config.memory_mb * 1024, unit="KiB")
    shares = [mapping for mapping in instance.usable_shares if mapping.path]
    guest_parts.add_memory(domain, config.parts, shared=bool(shares), locked=config.locked_memory)
    element(domain, "vcpu", config.vcpus, cpuset=guest_parts.numbers(config.parts.cpuset) or None)
    if config.cpu_limits or config.parts.pins:
        tune = element(domain, "cputune")
        for tag, value in config.cpu_limits:
            element(tune, tag, value)
        guest_parts.add_pins(tune, config.parts)
    _system_information(domain, instance, config, settings)
    # The hardware differs between versions of a machine type: the guest keeps its version while the host supports it.
    had = previous.machine if previous is not None else ""
    family = {"pc": "pc-i440fx-", "q35": "pc-q35-"}.get(config.machine, f"{config.machine}-")
    guest = settings.architecture(config.architecture)
    machines = guest.machines if guest is not None else ()
    machine = had if had.startswith(family) and had in machines else config.machine
    _boot(domain, config, local, disks, machine, previous)
    _features(domain, config)
    _cpu(domain, config, settings)
    _clock(domain, config)
    if config.secure_boot and config.is_x86:  # otherwise the firmware resets the machine when it starts a kernel
        element(element(domain, "pm"), "suspend-to-mem", enabled="no")
    element(domain, "on_poweroff", "destroy")
    element(domain, "on_reboot", "restart")
    element(domain, "on_crash", "destroy")
    devices = device_xml.add(domain, config, disks, instance.network_info, shares, local.console_log, settings)
    if previous is not None and previous.machine == machine:
        definition.carry_over(devices, previous)
    ET.indent(domain)
    return ET.tostring(domain, encoding="unicode")


def owner_of(metadata: str) -> str | None:
    """Return the nova-compute host in a domain's metadata element, or None. libvirt omits the element's namespace."""
    try:
        return ET.fromstring(metadata).findtext("{*}host")  # noqa: S314 - libvirt's own output
    except ET.ParseError:
        return None


def add_metadata(domain: ET.Element, instance: Instance, settings: Settings) -> None:
    ET.register_namespace("nova", NAMESPACE)

    def add(parent: ET.Element, tag: str, text: object = None, **attributes: object) -> ET.Element:
        return element(parent, f"{{{NAMESPACE}}}{tag}", text, **attributes)

    flavor = instance.flavor
    nova = add(element(domain, "metadata"), "instance")
    add(nova, "package", version=__version__)
    add(nova, "host", settings.owner)
    add(nova, "name", instance.display_name)
    add(nova, "creationTime", instance.created_at.strftime("%Y-%m-%d %H:%M:%S"))
    size = add(nova, "flavor", name=clean(flavor.name), id=clean(flavor.flavorid))
    for tag, value in (("memory", flavor.memory_mb), ("disk", flavor.root_gb), ("swap", flavor.swap),
                       ("ephemeral", flavor.ephemeral_gb), ("vcpus", flavor.vcpus)):
        add(size, tag, value)
    owner = add(nova, "owner")
    names = instance.system_metadata
    add(owner, "user", names.get(OWNER_USER_NAME), uuid=clean(instance.user_id))
    add(owner, "project", names.get(OWNER_PROJECT_NAME), uuid=clean(instance.project_id))
    if instance.image_ref:
        add(nova, "root", type="image", uuid=clean(instance.image_ref))


def _system_information(domain: ET.Element, instance: Instance, config: GuestConfig, settings: Settings) -> None:
    """Add the SMBIOS entries, by which cloud-init detects OpenStack."""
    if not config.platform.smbios:
        return
    system = element(element(domain, "sysinfo", type="smbios"), "system")
    serial = instance.uuid if settings.host_serial is None else settings.host_serial
    for name, value in (("manufacturer", "OpenStack Foundation"), ("product", "OpenStack Nova"),
                        ("version", __version__), ("serial", serial), ("uuid", instance.uuid),
                        ("family", "Virtual Machine")):
        if value:
            element(system, "entry", value, name=name)


def _boot(domain: ET.Element, config: GuestConfig, local: LocalDisks, disks: Sequence[GuestDisk], machine: str,
          previous: definition.Definition | None) -> None:
    boot = element(domain, "os", firmware="efi" if config.uefi else None)
    element(boot, "type", "hvm", arch=config.architecture, machine=machine)
    if config.uefi:
        choice = element(boot, "firmware")
        for feature in ("secure-boot", "enrolled-keys"):
            element(choice, "feature", enabled="yes" if config.secure_boot else "no", name=feature)
        # The UEFI variables are in the guest's directory and move with its disks; an existing file of libvirt is kept.
        had = previous.nvram if previous is not None else ""
        element(boot, "nvram", had if had and os.path.exists(had) else local.nvram)
    first = next((disk for disk in disks if disk.boot_order == 1), None)
    if local.kernel:
        element(boot, "kernel", local.kernel)
        if local.ramdisk:
            element(boot, "initrd", local.ramdisk)
        root = f"root=/dev/{first.target}" if first is not None else ""
        # Linux may find on a busy host that the timer of an emulated CPU does not work, and panic.
        timer = "no_timer_check" if config.virt_type == "qemu" and config.is_x86 else ""
        consoles = f"console=tty0 console={config.platform.console}"
        element(boot, "cmdline", " ".join(filter(None, (root, consoles, timer, config.command_line))))
    elif first is None:
        element(boot, "boot", dev="hd")
    if config.platform.smbios:
        element(boot, "smbios", mode="sysinfo")
    if config.boot_menu:
        element(boot, "bootmenu", enable="yes")


def _features(domain: ET.Element, config: GuestConfig) -> None:
    features = element(domain, "features")
    # ARM guests have ACPI tables only with UEFI firmware; other architectures than x86 and ARM never have them.
    if config.is_x86 or (config.architecture == "aarch64" and config.uefi):
        element(features, "acpi")
    if config.is_x86:
        element(features, "apic")
    if config.virt_type == "kvm":
        if config.windows:
            hyperv = element(features, "hyperv")
            element(hyperv, "relaxed", state="on")
            element(hyperv, "vapic", state="on")
            element(hyperv, "spinlocks", state="on", retries=8191)
        if config.hidden:
            element(element(features, "kvm"), "hidden", state="on")
        if config.viommu_model in ("intel", "auto") and config.is_x86:
            element(features, "ioapic", driver="qemu")
    if config.pmu is not None:
        element(features, "pmu", state="on" if config.pmu else "off")
    if config.secure_boot:
        element(features, "smm", state="on")


def _cpu(domain: ET.Element, config: GuestConfig, settings: Settings) -> None:
    mode, model, arrangement = config.cpu_mode, config.cpu_model, config.topology
    # An emulated guest detects a hypervisor by the CPU feature "hypervisor", which hidden=True removes.
    unmarked = config.hidden and config.virt_type == "qemu" and config.is_x86
    if mode is None and unmarked:
        mode, model = "custom", "qemu64" if config.architecture == "x86_64" else "qemu32"
    if mode is None and arrangement is None and not config.parts.cells:
        return
    cpu = element(domain, "cpu", mode=mode, **_CPU_ATTRIBUTES.get(mode or "", {}))
    if mode == "custom":
        element(cpu, "model", model, fallback="forbid")
    if arrangement is not None:
        element(cpu, "topology", sockets=arrangement.sockets, cores=arrangement.cores, threads=arrangement.threads)
    guest_parts.add_cells(cpu, config.parts)
    if config.cpu_mode is not None and config.architecture == settings.arch:
        for flag in settings.cpu_flags:
            if not (unmarked and flag.lstrip("+-") == "hypervisor"):
                element(cpu, "feature", policy="disable" if flag.startswith("-") else "require", name=flag.lstrip("+-"))
    if unmarked:
        element(cpu, "feature", policy="disable", name="hypervisor")


def _clock(domain: ET.Element, config: GuestConfig) -> None:
    clock = element(domain, "clock", offset="localtime" if config.windows else "utc")
    if not config.is_x86:
        return
    element(clock, "timer", name="pit", tickpolicy="delay")
    element(clock, "timer", name="rtc", tickpolicy="catchup")
    element(clock, "timer", name="hpet", present="yes" if config.hpet else "no")
