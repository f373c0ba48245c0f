"""Properties of QEMU's machines, by guest architecture."""

import dataclasses

# Values of image properties that this driver can define. node/inventory.py selects those that the host's QEMU supports.
DISK_BUSES = ("virtio", "scsi", "sata", "ide", "usb")
SCSI_MODELS = ("virtio-scsi", "lsilogic", "lsisas1068", "lsisas1078", "vmpvscsi", "ibmvscsi")
VIF_MODELS = ("virtio", "e1000", "e1000e", "rtl8139", "ne2k_pci", "pcnet", "vmxnet3", "igb")
VIDEO_MODELS = ("cirrus", "vga", "vmvga", "qxl", "virtio", "bochs", "none")
SOUND_MODELS = ("ac97", "es1370", "ich6", "ich9", "pcspk", "sb16", "usb", "virtio")
_PCI_SOUND = ("ac97", "es1370", "ich6", "ich9", "usb", "virtio")


@dataclasses.dataclass(frozen=True)
class Platform:
    """Machines of an architecture. ``machine``: the default machine type. ``console``: the kernel's name of the first
    serial port. ``video`` and ``input_bus``: defaults for guests with a screen. ``uefi``: None (not supported),
    "possible" or "default". ``serial_ports``: maximum number of serial ports."""

    machine: str
    console: str = "ttyS0"
    video: str = "virtio"
    input_bus: str = "usb"
    uefi: str | None = None
    watchdog: str = "i6300esb"
    serial_ports: int = 4
    smbios: bool = False
    viommu: tuple[str, ...] = ()
    disk_buses: tuple[str, ...] = DISK_BUSES
    scsi_models: tuple[str, ...] = SCSI_MODELS
    vif_models: tuple[str, ...] = VIF_MODELS
    video_models: tuple[str, ...] = VIDEO_MODELS
    sound_models: tuple[str, ...] = SOUND_MODELS

    @property
    def has_usb(self) -> bool:
        return "usb" in self.disk_buses


_X86 = Platform("pc", video="vga", uefi="possible", smbios=True, viommu=("intel", "virtio", "auto"))
_ARM = Platform("virt", "ttyAMA0", smbios=True, viommu=("smmuv3", "virtio", "auto"), sound_models=_PCI_SOUND,
                disk_buses=("virtio", "scsi", "sata", "usb"))
_POWER = Platform("pseries", "hvc0", "vga", disk_buses=("virtio", "scsi", "usb"), sound_models=_PCI_SOUND,
                  video_models=("vga", "virtio", "bochs", "cirrus", "none"))
_PLATFORMS = {
    "x86_64": _X86, "i686": _X86, "aarch64": dataclasses.replace(_ARM, uefi="default"),
    "armv7l": dataclasses.replace(_ARM, uefi="possible", smbios=False), "ppc64": _POWER, "ppc64le": _POWER,
    "riscv64": Platform("virt", disk_buses=("virtio", "scsi", "sata", "usb"), sound_models=_PCI_SOUND),
    # s390x devices are on the channel subsystem. There is no PCI for guests, no USB and no sound.
    "s390x": Platform("s390-ccw-virtio", "ttysclp0", input_bus="virtio", watchdog="diag288", serial_ports=1,
                      disk_buses=("virtio", "scsi"), scsi_models=("virtio-scsi",), vif_models=("virtio",),
                      video_models=("virtio", "none"), sound_models=())}
_OTHER = Platform("pc")

X86 = ("x86_64", "i686")
# Architectures that a host with a suitable QEMU offers in addition to its own.
FOREIGN = (*X86, "aarch64", "ppc64", "ppc64le", "s390x")


def platform_of(architecture: str) -> Platform:
    return _PLATFORMS.get(architecture, _OTHER)
