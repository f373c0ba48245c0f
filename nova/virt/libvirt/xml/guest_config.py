"""What a guest's virtual hardware is to be: flavor and image, read once and checked, before anything is made.

Everything that follows (layout.py, domain_xml.py, device_xml.py) works with these plain values.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from nova import exception
from nova.objects.instance import Instance
from nova.objects.requirements.cpu_topology import Topology, topology
from nova.objects.requirements.properties import Properties, choice, is_unset, number, truth
from nova.virt.libvirt.xml.guest_parts import Parts, parts_of
from nova.virt.libvirt.xml.settings import Settings

# Values of image properties and extra specs that are supported, and what libvirt calls them.
DISK_BUSES = ("virtio", "scsi", "sata", "ide", "usb", "fdc")
SCSI_MODELS = ("virtio-scsi", "lsilogic", "lsisas1068", "lsisas1078", "buslogic", "ibmvscsi", "vmpvscsi")
VIF_MODELS = ("virtio", "e1000", "e1000e", "rtl8139", "ne2k_pci", "pcnet", "vmxnet3")
VIDEO_MODELS = ("cirrus", "vga", "vmvga", "qxl", "virtio", "bochs", "none")
SOUND_MODELS = ("ac97", "es1370", "ich6", "ich9", "pcspk", "sb16", "usb")
USB_MODELS = ("none", "nec-xhci", "qemu-xhci")
WATCHDOG_ACTIONS = ("none", "pause", "poweroff", "reset", "disabled")

_DEFAULT_MACHINES = {"x86_64": "pc", "i686": "pc", "aarch64": "virt", "riscv64": "virt", "s390x": "s390-ccw-virtio",
                     "ppc64": "pseries", "ppc64le": "pseries"}
_MULTIQUEUE_MAX = 256
_SERIAL_PORTS_MAX = 4
# The wish for USB ports of a screen, and how many there may be.
_USB_PORTS, _USB_PORTS_MAX = "redirected_usb_ports", 15
_DISK_LIMITS = ("total_bytes_sec", "read_bytes_sec", "write_bytes_sec", "total_iops_sec", "read_iops_sec",
                "write_iops_sec")

Limits = tuple[tuple[str, int], ...]


@dataclasses.dataclass(frozen=True)
class GuestConfig:
    """The virtual hardware of one guest, apart from its disks and interfaces themselves.

    Limits are (libvirt's name, value) pairs. ``pmu`` None: as the hypervisor has it. ``rng`` is (bytes, milliseconds)
    or () for as fast as it goes, None for no such device. ``vif_limits``: limits by direction.
    """

    vcpus: int
    memory_mb: int
    machine: str
    uuid: str = ""
    topology: Topology | None = None
    windows: bool = False
    # the root disk is an image of a CD
    iso: bool = False
    uefi: bool = False
    secure_boot: bool = False
    boot_menu: bool = False
    command_line: str = ""
    hidden: bool = False
    pmu: bool | None = None
    hpet: bool = False
    cpu_limits: Limits = ()
    disk_bus: str = "virtio"
    cdrom_bus: str = "ide"
    scsi_model: str = "virtio-scsi"
    disk_limits: Limits = ()
    vif_model: str = "virtio"
    vif_queues: int = 1
    vif_packed: bool = False
    vif_limits: tuple[tuple[str, Limits], ...] = ()
    serial_ports: int = 1
    # The TCP ports of the host that they are reached by; none: they are terminals of the host.
    serial_tcp: tuple[int, ...] = ()
    video_model: str | None = None
    # MiB
    video_ram: int = 0
    usb_model: str | None = None
    # By which a screen by SPICE lends the guest devices of the user's machine.
    usb_ports: int = 0
    sound_model: str | None = None
    watchdog: str | None = None
    rng: tuple[int, ...] | None = ()
    guest_agent: bool = False
    parts: Parts = dataclasses.field(default_factory=Parts)


def guest_config(instance: Instance, settings: Settings) -> GuestConfig:
    """Parse and check. Raises InvalidInput naming the property that this host cannot give."""
    if settings.virt_type not in ("kvm", "qemu"):
        raise exception.InvalidInput(reason=f"guests of type {settings.virt_type} are not supported")
    wishes = Properties(instance)
    for key, value in _refused(wishes):
        raise exception.InvalidInput(reason=f"{key}={value} is not supported by this hypervisor")
    machine = _machine(wishes, settings)
    firmware = wishes.image_choice("hw_firmware_type", ("uefi", "bios"))
    hidden = wishes.specs.get("hw:hide_hypervisor_id", wishes.specs.get(
        "hide_hypervisor_id", wishes.image.get("img_hide_hypervisor_id")))
    model = wishes.image_choice("hw_vif_model", VIF_MODELS) or "virtio"
    queues = min(wishes.vcpus, _MULTIQUEUE_MAX) if wishes.flag("vif_multiqueue_enabled") else 1
    return GuestConfig(
        vcpus=instance.flavor.vcpus, memory_mb=instance.flavor.memory_mb, machine=machine, uuid=instance.uuid,
        topology=topology(wishes), windows=wishes.image.get("os_type") == "windows",
        iso=instance.image is not None and instance.image.disk_format == "iso",
        uefi=firmware == "uefi", secure_boot=_secure_boot(wishes, firmware), boot_menu=wishes.flag("boot_menu"),
        command_line=wishes.image.get("os_command_line") or "", hidden=truth("hw:hide_hypervisor_id", hidden),
        pmu=None if wishes.get("pmu") is None else wishes.flag("pmu"), hpet=wishes.image_flag("hw_time_hpet"),
        cpu_limits=_cpu_limits(wishes), disk_bus=wishes.image_choice("hw_disk_bus", DISK_BUSES) or "virtio",
        cdrom_bus=wishes.image_choice("hw_cdrom_bus", DISK_BUSES) or _usual_cdrom_bus(machine, settings),
        scsi_model=wishes.image_choice("hw_scsi_model", SCSI_MODELS) or "virtio-scsi",
        disk_limits=_known((name, wishes.spec_number(f"quota:disk_{name}")) for name in _DISK_LIMITS),
        vif_model=model, vif_queues=queues if model == "virtio" else 1,
        vif_packed=wishes.flag("virtio_packed_ring") and model == "virtio", vif_limits=_vif_limits(wishes),
        serial_ports=_serial_ports(wishes), video_model=wishes.image_choice("hw_video_model", VIDEO_MODELS),
        video_ram=_video_ram(wishes), usb_model=_usb_model(wishes), usb_ports=_usb_ports(wishes, settings),
        sound_model=wishes.choice("sound_model", SOUND_MODELS), watchdog=_watchdog(wishes), rng=_rng(wishes),
        guest_agent=wishes.image_flag("hw_qemu_guest_agent"), parts=parts_of(instance, settings))


def default_machine(settings: Settings) -> str:
    """The operator's machine type for the architecture, else the usual one."""
    return settings.machines.get(settings.arch) or _DEFAULT_MACHINES.get(settings.arch, "pc")


# --- one by one ------------------------------------------------------------------------------------
def _machine(wishes: Properties, settings: Settings) -> str:
    wished = wishes.image.get("hw_machine_type")
    if settings.known_machines:
        choice("hw_machine_type", wished, settings.known_machines)
    return wished or default_machine(settings)


def _secure_boot(wishes: Properties, firmware: str | None) -> bool:
    wanted = wishes.specs.get("os:secure_boot") or wishes.image.get("os_secure_boot")
    choice("os_secure_boot", wanted, ("required", "optional", "disabled"))
    if wanted == "required" and firmware != "uefi":
        raise exception.InvalidInput(reason="os_secure_boot=required needs hw_firmware_type=uefi")
    return wanted in ("required", "optional") and firmware == "uefi"


def _usual_cdrom_bus(machine: str, settings: Settings) -> str:
    if settings.arch not in ("x86_64", "i686"):
        return "scsi"
    return "sata" if "q35" in machine else "ide"


def _cpu_limits(wishes: Properties) -> Limits:
    quota = number("quota:cpu_quota", wishes.specs.get("quota:cpu_quota"), low=-1)
    return _known([("shares", wishes.spec_number("quota:cpu_shares")),
                   ("period", wishes.spec_number("quota:cpu_period")), ("quota", quota)])


def _vif_limits(wishes: Properties) -> tuple[tuple[str, Limits], ...]:
    found = []
    for direction in ("inbound", "outbound"):
        values = _known((name, wishes.spec_number(f"quota:vif_{direction}_{name}"))
                        for name in ("average", "peak", "burst"))
        if dict(values).get("average"):
            found.append((direction, values))
        elif any(value for _name, value in values):
            raise exception.InvalidInput(reason=f"quota:vif_{direction}_average is missing")
    return tuple(found)


def _serial_ports(wishes: Properties) -> int:
    wanted = wishes.bounded_number("hw_serial_port_count", "hw:serial_port_count")
    allowed = wishes.spec_number("hw:serial_port_count")
    count = wanted if wanted is not None else allowed if allowed is not None else 1
    if count > _SERIAL_PORTS_MAX:
        raise exception.InvalidInput(reason=f"hw:serial_port_count={count} is more than {_SERIAL_PORTS_MAX}")
    return count


def _video_ram(wishes: Properties) -> int:
    ram = wishes.image_number("hw_video_ram") or 0
    most = wishes.spec_number("hw_video:ram_max_mb") or 0
    if ram > most:
        raise exception.InvalidInput(reason=f"hw_video_ram={ram} is more than the flavor allows ({most})")
    return ram


def _usb_ports(wishes: Properties, settings: Settings) -> int:
    value = wishes.get(_USB_PORTS)
    count = number(f"hw_{_USB_PORTS}", value) or 0
    if count > _USB_PORTS_MAX:
        raise exception.InvalidInput(reason=f"hw_{_USB_PORTS}={value} is more than {_USB_PORTS_MAX}")
    if count and settings.spice is None:
        raise exception.InvalidInput(reason=f"hw_{_USB_PORTS}={value} needs a host with screens by SPICE")
    if count and wishes.get("usb_model") == "none":
        raise exception.InvalidInput(reason=f"hw_{_USB_PORTS}={value} and hw_usb_model=none exclude each other")
    return count


def _usb_model(wishes: Properties) -> str | None:
    """The usual controller has no room for devices of users."""
    return wishes.choice("usb_model", USB_MODELS) or (
        "qemu-xhci" if number(f"hw_{_USB_PORTS}", wishes.get(_USB_PORTS)) else None)


def _watchdog(wishes: Properties) -> str | None:
    """What it does when the guest hangs: the image decides before the flavor."""
    action = wishes.image.get("hw_watchdog_action") or wishes.specs.get("hw:watchdog_action")
    choice("hw_watchdog_action", action, WATCHDOG_ACTIONS)
    return None if action == "disabled" else action


def _rng(wishes: Properties) -> tuple[int, ...] | None:
    if not truth("hw_rng:allowed", wishes.specs.get("hw_rng:allowed"), default=True):
        return None
    rate, period = wishes.spec_number("hw_rng:rate_bytes"), wishes.spec_number("hw_rng:rate_period")
    return (rate, period or 1000) if rate else ()


def _known(values: Iterator[tuple[str, int | None]] | list[tuple[str, int | None]]) -> Limits:
    return tuple((name, value) for name, value in values if value is not None)


# Wishes that promise a property of the host which this driver cannot give: refused, never ignored.
_REFUSED_SPECS = ("hw:pmem", "hw:tpm_version", "hw:viommu_model", "hw:cpu_realtime", "hw:locked_memory",
                  "hw:mem_encryption", "hw:ephemeral_encryption", "hw:maxphysaddr_mode", "accel:device_profile")
_REFUSED_PROPERTIES = ("hw_tpm_version", "hw_viommu_model", "hw_locked_memory", "hw_mem_encryption",
                       "hw_ephemeral_encryption", "hw_firmware_stateless",
                       "hw_maxphysaddr_mode")


def _refused(wishes: Properties) -> Iterator[tuple[str, str | None]]:
    for source, keys in ((wishes.specs, _REFUSED_SPECS), (wishes.image, _REFUSED_PROPERTIES)):
        yield from ((key, source[key]) for key in keys if not is_unset(source.get(key)))
