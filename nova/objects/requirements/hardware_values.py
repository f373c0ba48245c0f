"""The allowed values of virtual hardware properties, and the trait that a host needs for each."""

import dataclasses
import re

from nova.objects.requirements.properties import Properties, choice

# Features without a name in os-traits.
LOCKED_MEMORY = "CUSTOM_COMPUTE_LOCKED_MEMORY"
CPU_REALTIME = "CUSTOM_COMPUTE_CPU_REALTIME"
BANDWIDTH_LIMITS = "CUSTOM_COMPUTE_NET_BANDWIDTH_LIMITS"
USB_REDIRECTION = "CUSTOM_COMPUTE_USB_REDIRECTION"

# The architectures of os-traits; all others have a CUSTOM_ trait.
_NAMED_ARCHITECTURES = frozenset({"aarch64", "mipsel", "ppc64le", "riscv64", "s390x", "x86_64"})
ARCHITECTURES = _NAMED_ARCHITECTURES | frozenset({
    "alpha", "armv6", "armv7l", "armv7b", "cris", "i686", "ia64", "lm32", "m68k", "microblaze", "microblazeel", "mips",
    "mips64", "mips64el", "openrisc", "parisc", "parisc64", "ppc", "ppcle", "ppc64", "ppcemb", "s390", "sh4", "sh4eb",
    "sparc", "sparc64", "unicore32", "xtensa", "xtensaeb"})

_FOREIGN_BUSES = ("xen", "lxc", "uml")  # values of images for other hypervisors
BLOCK_BUSES = {
    "disk": ("virtio", "scsi", "sata", "ide", "usb", *_FOREIGN_BUSES),
    "cdrom": ("scsi", "sata", "ide", "usb", *_FOREIGN_BUSES),
    "floppy": ("fdc",),
    "lun": ("virtio", "scsi"),
}
DEVICE_TYPES = tuple(BLOCK_BUSES)
_ALL_BUSES = ("fdc", "virtio", "scsi", "sata", "ide", "usb", *_FOREIGN_BUSES)

# Booleans of images only.
FLAGS = ("hw_boot_menu", "hw_ephemeral_encryption", "hw_firmware_stateless", "hw_locked_memory", "hw_mem_encryption",
         "hw_pmu", "hw_qemu_guest_agent", "hw_time_hpet", "hw_vif_multiqueue_enabled", "hw_virtio_packed_ring",
         "img_hide_hypervisor_id")


@dataclasses.dataclass(frozen=True)
class Choice:
    """A property with a fixed set of values. ``prefix``: a host needs the trait with this prefix and the value; "": all
    hosts provide all values. ``free``: values that need no trait. ``in_flavor``: an extra spec (``hw:name``) may also
    set the property, and takes precedence unless ``image_first``."""

    name: str
    values: tuple[str, ...]
    prefix: str = ""
    free: tuple[str, ...] = ()
    in_flavor: bool = False
    image_first: bool = False

    @property
    def spec(self) -> str:
        """Return the name of the extra spec."""
        return self.name.replace("_", ":", 1)

    def chosen(self, wishes: Properties, existing: bool = False) -> str | None:
        """Return the requested value, or None. Raises InvalidInput for an unknown value, which is ignored for an
        ``existing`` server."""
        given = [(self.name, wishes.image.get(self.name))]
        if self.in_flavor:
            given.insert(1 if self.image_first else 0, (self.spec, wishes.specs.get(self.spec)))
        key, value = next((item for item in given if item[1]), (self.name, None))
        if self.name == "img_hv_type" and value is not None:
            value = value.lower()
        if existing and value not in self.values:
            return None
        return choice(key, value, self.values)

    def trait_of(self, value: str | None) -> str:
        """Return the trait that a host needs for a value; "": none."""
        if not value or not self.prefix or value in self.free:
            return ""
        return self.prefix + re.sub("[^A-Z0-9]", "_", value.upper())


_BUS = "COMPUTE_STORAGE_BUS_"
CHOICES = (
    Choice("hw_disk_bus", BLOCK_BUSES["disk"], prefix=_BUS),
    Choice("hw_cdrom_bus", BLOCK_BUSES["cdrom"], prefix=_BUS),
    Choice("hw_floppy_bus", BLOCK_BUSES["floppy"], prefix=_BUS),
    Choice("hw_rescue_bus", _ALL_BUSES),
    Choice("hw_rescue_device", ("cdrom", "disk", "floppy", "fs", "lun")),
    Choice("hw_scsi_model", ("virtio-scsi", "lsilogic", "lsisas1068", "lsisas1078", "buslogic", "ibmvscsi", "vmpvscsi"),
           prefix="CUSTOM_COMPUTE_SCSI_MODEL_", free=("virtio-scsi",)),
    Choice("hw_vif_model", ("virtio", "e1000", "e1000e", "rtl8139", "ne2k_pci", "pcnet", "vmxnet3", "igb", "netfront",
                            "spapr-vlan", "lan9118", "sriov", "vmxnet"), prefix="COMPUTE_NET_VIF_MODEL_"),
    Choice("hw_video_model", ("cirrus", "vga", "vmvga", "qxl", "virtio", "bochs", "none", "gop", "xen"),
           prefix="COMPUTE_GRAPHICS_MODEL_"),
    Choice("hw_sound_model", ("ac97", "es1370", "ich6", "ich9", "pcspk", "sb16", "usb", "virtio"),
           prefix="COMPUTE_SOUND_MODEL_", in_flavor=True),
    Choice("hw_usb_model", ("none", "nec-xhci", "qemu-xhci"), prefix="COMPUTE_USB_MODEL_", free=("none",),
           in_flavor=True),
    Choice("hw_viommu_model", ("intel", "smmuv3", "virtio", "auto"), prefix="COMPUTE_VIOMMU_MODEL_", in_flavor=True),
    Choice("hw_input_bus", ("usb", "virtio"), prefix="CUSTOM_COMPUTE_INPUT_BUS_", free=("usb",)),
    Choice("hw_firmware_type", ("uefi", "bios"), prefix="COMPUTE_FIRMWARE_"),
    Choice("hw_pointer_model", ("usbtablet",)),
    Choice("hw_rng_model", ("virtio",)),
    Choice("hw_watchdog_action", ("none", "pause", "poweroff", "reset", "disabled"), in_flavor=True, image_first=True),
    # The required traits of these properties depend on several properties.
    Choice("hw_tpm_version", ("1.2", "2.0"), in_flavor=True),
    Choice("hw_tpm_model", ("tpm-tis", "tpm-crb"), in_flavor=True),
    Choice("hw_mem_encryption_model", ("amd-sev", "amd-sev-es", "amd-sev-snp", "intel-tdx"), in_flavor=True),
    Choice("hw_ephemeral_encryption_format", ("plain", "luks", "luksv2"), in_flavor=True),
    Choice("hw_maxphysaddr_mode", ("passthrough", "emulate"), in_flavor=True),
    # The filter by image properties compares these with the report of a host.
    Choice("hw_vm_mode", ("hvm", "xen", "uml", "exe")),
    Choice("img_hv_type", ("baremetal", "bhyve", "docker", "fake", "hyperv", "ironic", "kqemu", "kvm", "lxc", "lxd",
                           "openvz", "parallels", "phyp", "qemu", "test", "uml", "vbox", "vz", "vmware", "xen", "zvm",
                           "prsm")),
)


def architecture_trait(architecture: str) -> str:
    """Return the trait of hosts that run guests of this architecture."""
    custom = "" if architecture in _NAMED_ARCHITECTURES else "CUSTOM_"
    return f"{custom}COMPUTE_ARCH_{architecture.upper()}"


def machine_trait(machine: str, architecture: str = "") -> str:
    """Return the trait of hosts that run guests of this machine type ("": of the architecture of the host). Every x86
    host has pc and q35."""
    if machine in ("pc", "q35"):
        return architecture_trait(architecture or "x86_64")
    # Several architectures have a machine named virt; those of x86 have names of their own.
    kind = machine if architecture in ("", "x86_64", "i686") else f"{architecture}_{machine}"
    return "CUSTOM_COMPUTE_MACHINE_" + re.sub("[^A-Z0-9]", "_", kind.upper())
