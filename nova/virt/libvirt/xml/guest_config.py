"""Virtual hardware of a guest: the requested hardware, validated and completed from the host's capabilities.

layout.py, domain_xml.py and device_xml.py create the definition of the guest from these values."""

import dataclasses

from nova import exception
from nova.objects.requirements.hardware import Hardware, hardware, is_i440fx
from nova.objects.requirements.properties import Properties, choice, is_unset
from nova.objects.servers.instance import Instance
from nova.virt.libvirt.xml.guest_parts import Parts, parts_of
from nova.virt.libvirt.xml.guest_platforms import X86, Platform, platform_of
from nova.virt.libvirt.xml.settings import GuestArchitecture, Settings


@dataclasses.dataclass(frozen=True)
class GuestConfig(Hardware):
    """The virtual hardware of one guest on this host, without disks and interfaces. ``virt_type``: kvm or qemu.
    ``serial_tcp``: TCP ports of the host for the serial ports (empty: the serial ports are terminals of the host)."""

    machine: str = "pc"
    virt_type: str = "qemu"
    cpu_mode: str | None = None
    cpu_model: str | None = None
    uuid: str = ""
    secure_boot: bool = False
    serial_tcp: tuple[int, ...] = ()
    parts: Parts = dataclasses.field(default_factory=Parts)

    @property
    def uefi(self) -> bool:
        return self.firmware == "uefi"

    @property
    def platform(self) -> Platform:
        return platform_of(self.architecture)

    @property
    def is_x86(self) -> bool:
        return self.architecture in X86

    @property
    def has_pcie(self) -> bool:
        """Return True if the machine has PCI Express, where each device needs its own port."""
        return "q35" in self.machine or self.machine.startswith("virt")


def guest_config(instance: Instance, settings: Settings, existing: str | None = None) -> GuestConfig:
    """Parse and check the requested hardware. Raises InvalidInput naming the property that this host cannot provide.
    ``existing``: architecture of a guest that was defined before ("": unknown); it does not change, and properties
    that an earlier release ignored are not refused. None: a new guest."""
    if settings.virt_type not in ("kvm", "qemu"):
        raise exception.InvalidInput(reason=f"guests of type {settings.virt_type} are not supported")
    wishes = Properties.of(instance)
    wanted = hardware(wishes, existing is not None)
    name = existing or wanted.architecture
    guest = settings.architecture(name) or (settings.architecture() if existing is not None else None)
    if guest is None:
        raise exception.InvalidInput(reason=f"hw_architecture={name} is not supported by this hypervisor")
    if existing is None and wanted.vm_mode not in ("", "hvm"):
        raise exception.InvalidInput(reason=f"hw_vm_mode={wanted.vm_mode} is not supported by this hypervisor")
    if existing is None and wanted.hypervisor not in ("", "qemu", guest.virt_type):  # images for KVM may have "qemu"
        raise exception.InvalidInput(reason=f"img_hv_type={wanted.hypervisor} is not supported by this hypervisor, "
                                            f"whose guests are of the type {guest.virt_type}")
    refuse_properties(wishes)
    _check_devices(wanted, platform_of(guest.name))
    if wanted.usb_ports and settings.spice is None:
        raise exception.InvalidInput(
            reason=f"hw_redirected_usb_ports={wanted.usb_ports} requires a host with SPICE consoles")
    choice("hw_tpm_version", wanted.tpm_version, settings.tpm if guest.name in X86 else ())
    choice("hw_tpm_model", wanted.tpm_model if wanted.tpm_version else None, settings.tpm)
    machine = _machine(wanted, guest, settings)
    secure = wanted.secure_boot_wish == "required" or (
        wanted.secure_boot_wish == "optional" and settings.secure_boot and "q35" in machine)
    if secure and guest.name in X86 and "q35" not in machine:
        raise exception.InvalidInput(reason=f"os_secure_boot={wanted.secure_boot_wish} needs hw_machine_type=q35, "
                                            f"not {machine}")
    has_kernel = bool(wishes.image.get("kernel_id") or instance.kernel_id)
    usual = platform_of(guest.name).uefi
    firmware = wanted.firmware or ("uefi" if usual == "default" and not has_kernel else "bios")
    if firmware == "uefi" and usual is None:
        raise exception.InvalidInput(reason=f"hw_firmware_type=uefi is not supported for {guest.name} guests")
    values = {field.name: getattr(wanted, field.name) for field in dataclasses.fields(wanted)} | {
        "architecture": guest.name, "firmware": firmware, "disk_bus": wanted.disk_bus or "virtio",
        "cdrom_bus": wanted.cdrom_bus or ("scsi" if guest.name not in X86 else "sata" if "q35" in machine else "ide")}
    return GuestConfig(
        **values, machine=machine, virt_type=guest.virt_type, cpu_mode=guest.cpu_mode, cpu_model=guest.cpu_model,
        uuid=instance.uuid, secure_boot=secure, parts=parts_of(instance, settings))


def refuse_properties(wishes: Properties) -> None:
    """Raise InvalidInput naming a requested property that libvirt guests cannot have on any host."""
    for source, keys in ((wishes.specs, REFUSED_SPECS), (wishes.image, REFUSED_PROPERTIES)):
        for key in keys:
            if not is_unset(source.get(key)):
                raise exception.InvalidInput(reason=f"{key}={source[key]} is not supported by this hypervisor")


def _check_devices(wanted: Hardware, platform: Platform) -> None:
    """Raise InvalidInput naming the property that requests a device which guests of this architecture cannot have."""
    for name, value, supported in (
            ("hw_disk_bus", wanted.disk_bus, platform.disk_buses),
            ("hw_cdrom_bus", wanted.cdrom_bus, platform.disk_buses),
            ("hw_scsi_model", wanted.scsi_model, platform.scsi_models),
            ("hw_vif_model", wanted.vif_model, platform.vif_models),
            ("hw_video_model", wanted.video_model, platform.video_models),
            ("hw_sound_model", wanted.sound_model, platform.sound_models),
            ("hw_viommu_model", wanted.viommu_model, platform.viommu)):
        choice(name, value or None, supported)
    for name, is_wanted in (
            ("hw_usb_model", wanted.usb_model not in (None, "none")), ("hw_pointer_model", wanted.input_bus == "usb"),
            ("hw_redirected_usb_ports", wanted.usb_ports)):
        if is_wanted and not platform.has_usb:
            raise exception.InvalidInput(reason=f"{name}: {platform.machine} machines have no USB")
    if wanted.serial_ports > platform.serial_ports:
        raise exception.InvalidInput(reason=f"hw_serial_port_count={wanted.serial_ports}: {platform.machine} machines "
                                            f"have at most {platform.serial_ports}")


def default_machine(settings: Settings, architecture: str = "") -> str:
    """Return the default machine type of an architecture ("": the host's): as configured, else that of the platform."""
    architecture = architecture or settings.arch
    return settings.machines.get(architecture) or platform_of(architecture).machine


def _machine(wanted: Hardware, guest: GuestArchitecture, settings: Settings) -> str:
    requested = wanted.requested_machine
    if guest.machines:
        choice("hw_machine_type", requested or None, guest.machines)
    machine = requested or default_machine(settings, guest.name)
    # The server requests a feature that i440FX machines lack, and no machine type: choose q35.
    if not requested and guest.name in X86 and is_i440fx(machine) and (
            wanted.secure_boot_wish == "required" or wanted.viommu_model):
        return "q35"
    if wanted.viommu_model and not ("q35" in machine or machine.startswith("virt")):
        raise exception.InvalidInput(reason=f"hw_viommu_model={wanted.viommu_model} needs hw_machine_type=q35")
    return machine


# Extra specs and image properties that this driver does not support. It refuses servers that request them.
REFUSED_SPECS = ("hw:pmem", "hw:cpu_realtime", "hw:mem_encryption", "hw:ephemeral_encryption",
                  "hw:maxphysaddr_mode", "accel:device_profile")
REFUSED_PROPERTIES = ("hw_mem_encryption", "hw_ephemeral_encryption", "hw_firmware_stateless",
                       "hw_maxphysaddr_mode")
