"""The definition of a container (virt_type lxc), and the check of the hardware that a server requests for it.

A container has the kernel of its host. Device models in image properties are ignored; properties that need a virtual
machine are refused."""

import dataclasses
import xml.etree.ElementTree as ET
from collections.abc import Sequence

from nova import exception
from nova.objects.requirements.hardware import hardware
from nova.objects.requirements.properties import Properties
from nova.objects.servers.instance import Instance
from nova.virt.libvirt.files import container_files
from nova.virt.libvirt.files.disks import LocalDisks
from nova.virt.libvirt.xml import device_xml, domain_xml, guest_parts
from nova.virt.libvirt.xml.guest_config import GuestConfig, refuse_properties
from nova.virt.libvirt.xml.layout import GuestDisk
from nova.virt.libvirt.xml.settings import Settings
from nova.virt.libvirt.xml.xmltree import element

_INIT = "/sbin/init"
# The mount point of the config drive in the container, from which cloud-init reads it.
_CONFIG_DRIVE = "/config-drive"
# Microseconds of a scheduling period. The quota is one whole period for each VCPU of the flavor.
_PERIOD = 100_000


def container_config(instance: Instance, settings: Settings, is_new: bool = True) -> GuestConfig:
    """Return the checked configuration of a container. Raises InvalidInput naming a property or disk that containers
    cannot have, only if ``is_new``: a server that ran before is not refused."""
    wishes = Properties.of(instance)
    wanted = hardware(wishes, not is_new)
    if is_new:
        container_files.check(instance)
        for name, value, supported in (("hw_architecture", wanted.architecture, settings.arch),
                                       ("hw_vm_mode", wanted.vm_mode, "exe"),
                                       ("img_hv_type", wanted.hypervisor, "lxc")):
            if value not in ("", supported):
                raise exception.InvalidInput(reason=f"{name}={value} is not supported by this hypervisor, whose "
                                                    f"guests have {supported}")
        refuse_properties(wishes)
        parts = guest_parts.parts_of(instance, settings)
        for is_wanted, feature in (
                (wanted.firmware == "uefi", "hw_firmware_type=uefi"), (wanted.viommu_model, "hw_viommu_model"),
                (wanted.tpm_version, "hw:tpm_version"),
                (wanted.secure_boot_wish == "required", "secure boot"), (wanted.watchdog, "hw_watchdog_action"),
                (wanted.locked_memory, "hw_locked_memory"), (wanted.disk_limits, "quota:disk_*"),
                (parts.devices, "pci_passthrough:alias"),
                (any(cell.page_kb for cell in parts.cells), "hw:mem_page_size")):
            if is_wanted:
                raise exception.InvalidInput(reason=f"{feature} is not supported by containers")
    values = {field.name: getattr(wanted, field.name) for field in dataclasses.fields(wanted)} | {
        "architecture": settings.arch, "packed": False, "vif_queues": 1, "serial_ports": 1, "disk_bus": "virtio"}
    return GuestConfig(**values, machine="", virt_type="lxc", uuid=instance.uuid,
                       parts=guest_parts.parts_of(instance, settings))


def container_xml(instance: Instance, config: GuestConfig, local: LocalDisks, volumes: Sequence[GuestDisk],
                  settings: Settings) -> str:
    """Return the definition of the container as domain XML."""
    domain = ET.Element("domain", type="lxc")
    element(domain, "uuid", instance.uuid)
    element(domain, "name", instance.name_by(settings.names))
    domain_xml.add_metadata(domain, instance, settings)
    element(domain, "memory", config.memory_mb * 1024, unit="KiB")
    # Add a hard limit: <memory> limits a container's RAM, but not the swap space that it uses.
    element(element(domain, "memtune"), "hard_limit", config.memory_mb * 1024, unit="KiB")
    pinned = sorted({host for _cpu, hosts in config.parts.pins for host in hosts})
    element(domain, "vcpu", config.vcpus, cpuset=guest_parts.numbers(pinned or config.parts.cpuset) or None)
    tune = element(domain, "cputune")
    limits = dict(config.cpu_limits)
    # The container sees all CPUs of the host. The flavor's VCPUs only limit its CPU time.
    limits = {"period": _PERIOD, "quota": config.vcpus * limits.get("period", _PERIOD), **limits}
    for tag in ("shares", "period", "quota"):
        if tag in limits:
            element(tune, tag, limits[tag])
    boot = element(domain, "os")
    element(boot, "type", "exe", arch=config.architecture)
    element(boot, "init", _INIT)
    for argument in config.command_line.split():
        element(boot, "initarg", argument)
    # cloud-init recognizes OpenStack by this variable of the first process.
    element(boot, "initenv", "OpenStack Nova", name="product_name")
    features = element(domain, "features")
    element(element(features, "capabilities", policy="default"), "mknod", state="off")
    # A container that has no interfaces would use the network of the host if privnet were missing.
    element(features, "privnet")
    element(domain, "clock", offset="utc")
    element(domain, "on_poweroff", "destroy")
    element(domain, "on_reboot", "restart")
    element(domain, "on_crash", "destroy")
    devices = element(domain, "devices")
    if local.root is not None:
        _add_file_system(devices, local.root.path, "/")
    if local.config_drive is not None:
        element(_add_file_system(devices, local.config_drive.path, _CONFIG_DRIVE), "readonly")
    for disk in volumes:
        device_xml.add_disk(devices, disk, config, settings)
    for vif in instance.network_info:
        if device_xml.is_plugged(vif):
            device_xml.add_interface(devices, vif, config)
    element(element(devices, "console", type="pty"), "target", type="lxc", port=0)
    ET.indent(domain)
    return ET.tostring(domain, encoding="unicode")


def _add_file_system(devices: ET.Element, path: str, target: str) -> ET.Element:
    item = element(devices, "filesystem", type="file", accessmode="passthrough")
    element(item, "driver", type="loop", format="raw")
    element(item, "source", file=path)
    element(item, "target", dir=target)
    return item
