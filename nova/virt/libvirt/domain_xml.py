"""From a described server to the definition of a libvirt domain. Pure: the same input, the same XML."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import Any

from nova import __version__, exception
from nova.objects.instance import Instance
from nova.virt.libvirt import devices
from nova.virt.libvirt.disks import LocalDisks
from nova.virt.libvirt.settings import Settings
from nova.virt.libvirt.topology import Topology, topology
from nova.virt.libvirt.wishes import Wishes, truth
from nova.virt.libvirt.xmltree import clean, element

# Marks a domain as Nova's; the element that monitoring agents (ceilometer, exporters) read.
NAMESPACE = "http://openstack.org/xmlns/libvirt/nova/1.1"

_DEFAULT_MACHINES = {"x86_64": "pc", "i686": "pc", "aarch64": "virt", "riscv64": "virt", "s390x": "s390-ccw-virtio",
                     "ppc64": "pseries", "ppc64le": "pseries"}


def domain_xml(instance: Instance, disks: LocalDisks, settings: Settings) -> str:
    """The definition. Raises InvalidInput when flavor or image wish what cannot be."""
    if settings.virt_type not in ("kvm", "qemu"):
        raise exception.InvalidInput(reason=f"guests of type {settings.virt_type} are not supported")
    wishes = Wishes(instance)
    domain = ET.Element("domain", type=settings.virt_type)
    element(domain, "uuid", instance.uuid)
    element(domain, "name", instance.name)
    _metadata(domain, instance, settings)
    element(domain, "memory", instance.flavor.memory_mb * 1024, unit="KiB")
    element(domain, "vcpu", instance.flavor.vcpus)
    _cpu_tuning(domain, wishes)
    _system_information(domain, instance, settings)
    machine = machine_type(wishes, settings)
    _boot(domain, instance, disks, wishes, settings, machine)
    _features(domain, wishes, settings)
    _cpu(domain, settings, topology(wishes))
    _clock(domain, wishes)
    element(domain, "on_poweroff", "destroy")
    element(domain, "on_reboot", "restart")
    element(domain, "on_crash", "destroy")
    devices.add(domain, instance, disks, wishes, settings, machine)
    ET.indent(domain)
    return ET.tostring(domain, encoding="unicode")


def machine_type(wishes: Wishes, settings: Settings) -> str:
    """The image's wish, else the operator's for the architecture, else the usual one."""
    wished = wishes.image("hw_machine_type")
    if settings.known_machines:
        wishes.choice("hw_machine_type", wished, settings.known_machines)
    return wished or default_machine(settings)


def default_machine(settings: Settings) -> str:
    return settings.machines.get(settings.arch) or _DEFAULT_MACHINES.get(settings.arch, "pc")


def owner_of(metadata: str) -> str | None:
    """The nova-compute host named by a domain's metadata element (None: it names none).

    libvirt gives the element without its namespace.
    """
    try:
        return ET.fromstring(metadata).findtext("{*}host")  # noqa: S314 - libvirt's own output
    except ET.ParseError:
        return None


def _metadata(domain: ET.Element, instance: Instance, settings: Settings) -> None:
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
    add(owner, "user", uuid=clean(instance.user_id))
    add(owner, "project", uuid=clean(instance.project_id))
    if instance.image_ref:
        add(nova, "root", type="image", uuid=clean(instance.image_ref))


def _cpu_tuning(domain: ET.Element, wishes: Wishes) -> None:
    values: dict[str, Any] = {
        "shares": wishes.spec_number("quota:cpu_shares"), "period": wishes.spec_number("quota:cpu_period"),
        "quota": wishes.number("quota:cpu_quota", wishes.specs.get("quota:cpu_quota"), low=-1),
    }
    if any(value is not None for value in values.values()):
        tune = element(domain, "cputune")
        for tag, value in values.items():
            if value is not None:
                element(tune, tag, value)


def _system_information(domain: ET.Element, instance: Instance, settings: Settings) -> None:
    """What the guest reads from its SMBIOS; cloud-init knows OpenStack by it."""
    if settings.arch not in ("x86_64", "i686", "aarch64"):
        return
    system = element(element(domain, "sysinfo", type="smbios"), "system")
    element(system, "entry", "OpenStack Foundation", name="manufacturer")
    element(system, "entry", "OpenStack Nova", name="product")
    element(system, "entry", __version__, name="version")
    serial = instance.uuid if settings.host_serial is None else settings.host_serial
    if serial:
        element(system, "entry", serial, name="serial")
    element(system, "entry", instance.uuid, name="uuid")
    element(system, "entry", "Virtual Machine", name="family")


def _boot(domain: ET.Element, instance: Instance, disks: LocalDisks, wishes: Wishes, settings: Settings,
          machine: str) -> None:
    firmware = wishes.choice("hw_firmware_type", wishes.image("hw_firmware_type"), ("uefi", "bios"))
    secure = _secure_boot(wishes, firmware)
    os = element(domain, "os", firmware="efi" if firmware == "uefi" else None)
    element(os, "type", "hvm", arch=settings.arch, machine=machine)
    if firmware == "uefi":
        choice = element(os, "firmware")
        for feature in ("secure-boot", "enrolled-keys"):
            element(choice, "feature", enabled="yes" if secure else "no", name=feature)
    if disks.kernel:
        element(os, "kernel", disks.kernel)
        if disks.ramdisk:
            element(os, "initrd", disks.ramdisk)
        element(os, "cmdline", _command_line(wishes, disks))
    else:
        element(os, "boot", dev="cdrom" if disks.root and disks.root.device == "cdrom" else "hd")
    if settings.arch in ("x86_64", "i686", "aarch64"):
        element(os, "smbios", mode="sysinfo")
    if wishes.flag("boot_menu"):
        element(os, "bootmenu", enable="yes")


def _secure_boot(wishes: Wishes, firmware: str | None) -> bool:
    wanted = wishes.specs.get("os:secure_boot") or wishes.image("os_secure_boot")
    wishes.choice("os_secure_boot", wanted, ("required", "optional", "disabled"))
    if wanted == "required" and firmware != "uefi":
        raise exception.InvalidInput(reason="os_secure_boot=required needs hw_firmware_type=uefi")
    return wanted in ("required", "optional") and firmware == "uefi"


def _command_line(wishes: Wishes, disks: LocalDisks) -> str:
    root = devices.root_device(disks, wishes)
    parts = [f"root={root}" if root else "", "console=tty0 console=ttyS0", wishes.image("os_command_line") or ""]
    return " ".join(part for part in parts if part)


def _features(domain: ET.Element, wishes: Wishes, settings: Settings) -> None:
    features = element(domain, "features")
    element(features, "acpi")
    if settings.arch in ("x86_64", "i686"):
        element(features, "apic")
    if settings.virt_type == "kvm":
        if wishes.image("os_type") == "windows":
            hyperv = element(features, "hyperv")
            element(hyperv, "relaxed", state="on")
            element(hyperv, "vapic", state="on")
            element(hyperv, "spinlocks", state="on", retries=8191)
        hidden = wishes.specs.get("hw:hide_hypervisor_id", wishes.specs.get(
            "hide_hypervisor_id", wishes.image("img_hide_hypervisor_id")))
        if truth("hw:hide_hypervisor_id", hidden):
            element(element(features, "kvm"), "hidden", state="on")
    if wishes.get("pmu") is not None:
        element(features, "pmu", state="on" if wishes.flag("pmu") else "off")
    if _secure_boot(wishes, wishes.image("hw_firmware_type")):
        element(features, "smm", state="on")


def _cpu(domain: ET.Element, settings: Settings, arrangement: Topology | None) -> None:
    mode = settings.cpu_mode
    if mode is None and arrangement is None:
        return
    attributes: dict[str, str] = {}
    if mode == "host-model":
        attributes = {"mode": mode, "check": "partial"}
    elif mode == "host-passthrough":
        attributes = {"mode": mode, "check": "none"}
    elif mode == "custom":
        attributes = {"mode": mode, "match": "exact", "check": "partial"}
    cpu = element(domain, "cpu", None, **attributes)
    if mode == "custom":
        element(cpu, "model", settings.cpu_model, fallback="forbid")
    if arrangement is not None:
        element(cpu, "topology", sockets=arrangement.sockets, cores=arrangement.cores, threads=arrangement.threads)
    if mode is not None:
        for flag in settings.cpu_flags:
            element(cpu, "feature", policy="disable" if flag.startswith("-") else "require", name=flag.lstrip("+-"))


def _clock(domain: ET.Element, wishes: Wishes) -> None:
    windows = wishes.image("os_type") == "windows"
    clock = element(domain, "clock", offset="localtime" if windows else "utc")
    element(clock, "timer", name="pit", tickpolicy="delay")
    element(clock, "timer", name="rtc", tickpolicy="catchup")
    hpet = truth("hw_time_hpet", wishes.image("hw_time_hpet"))
    element(clock, "timer", name="hpet", present="yes" if hpet else "no")
