"""The virtual hardware that a flavor and an image request, parsed and checked without knowing a host. A value that no
host can provide raises InvalidInput, which names the property: clients receive it as a 400. A value that only some
hosts can provide is a required trait (:func:`required_traits`), so schedulers choose no other host."""

import dataclasses
import re
from collections.abc import Iterable, Iterator

from nova import exception
from nova.objects.accounts.flavor import Flavor
from nova.objects.images.image import Image
from nova.objects.requirements import guest_numa
from nova.objects.requirements import hardware_values as values
from nova.objects.requirements.cpu_topology import Topology, topology
from nova.objects.requirements.properties import Properties, canonical_architecture, choice, number, truth

_MULTIQUEUE_MAX = 256
_SERIAL_PORTS_MAX = 4
_USB_PORTS_MAX = 15
_DISK_LIMITS = ("total_bytes_sec", "read_bytes_sec", "write_bytes_sec", "total_iops_sec", "read_iops_sec",
                "write_iops_sec")
# Ranges of the flavor's limits that libvirt and QEMU accept: a server with another value could start on no host. Zero
# stands for no limit.
_LIMIT_RANGES = {
    "quota:cpu_shares": (2, 262_144),
    "quota:cpu_period": (1_000, 1_000_000),
    "quota:cpu_quota": (1_000, 17_592_186_044_415),
    **{f"quota:disk_{limit}": (1, 10**15) for limit in _DISK_LIMITS},
    "hw_rng:rate_bytes": (1, 2**32 - 1),
    "hw_rng:rate_period": (1, 2**32 - 1),
}
_MACHINE = re.compile(r"[A-Za-z0-9._+-]{1,64}")
# Machine types without a PCI bus, or of another hypervisor.
_UNUSABLE_MACHINES = ("microvm", "isapc", "none", "xenfv", "xenpv")

Limits = tuple[tuple[str, int], ...]  # (name of the limit, value) pairs


@dataclasses.dataclass(frozen=True)
class Hardware:
    """The requested virtual hardware of one guest, without the list of its disks and interfaces. "" and None leave the
    choice to the host. ``architecture`` is that of the guest. ``rng`` is (bytes, milliseconds), () for an unlimited
    rate, or None for no device. ``video_ram`` is in MiB. ``vif_limits`` are limits by direction. ``packed``: virtio
    devices use packed rings. ``iso``: the root disk is the image of a CD."""

    vcpus: int
    memory_mb: int
    architecture: str = ""
    hypervisor: str = ""
    vm_mode: str = ""
    requested_machine: str = ""
    topology: Topology | None = None
    windows: bool = False
    iso: bool = False
    firmware: str = ""
    secure_boot_wish: str = ""
    boot_menu: bool = False
    command_line: str = ""
    hidden: bool = False
    pmu: bool | None = None
    hpet: bool = False
    cpu_limits: Limits = ()
    disk_bus: str = ""
    cdrom_bus: str = ""
    floppy_bus: str = "fdc"
    scsi_model: str = "virtio-scsi"
    disk_limits: Limits = ()
    vif_model: str = "virtio"
    vif_queues: int = 1
    packed: bool = False
    vif_limits: tuple[tuple[str, Limits], ...] = ()
    serial_ports: int = 1
    video_model: str | None = None
    video_ram: int = 0
    usb_model: str | None = None
    usb_ports: int = 0
    input_bus: str | None = None
    sound_model: str | None = None
    watchdog: str | None = None
    rng: tuple[int, ...] | None = ()
    guest_agent: bool = False
    locked_memory: bool = False
    viommu_model: str | None = None
    tpm_version: str | None = None
    tpm_model: str | None = None


def hardware(wishes: Properties, existing: bool = False) -> Hardware:
    """Return the requested hardware. Raises InvalidInput naming the property that no host can provide. ``existing``:
    the server was accepted by a release that ignored some properties. Unknown values of choices are then still
    ignored, so that the server can be started and moved."""
    picked = {property_.name: property_.chosen(wishes, existing) for property_ in values.CHOICES}
    machine = _machine(wishes, picked)
    if not existing:
        _check_ignored_before(wishes, picked, machine)
        _check_limits(wishes)
    firmware = picked["hw_firmware_type"] or ""
    usb_ports = _usb_ports(wishes)
    model = picked["hw_vif_model"] or "virtio"
    queues = min(wishes.vcpus, _MULTIQUEUE_MAX) if wishes.flag("vif_multiqueue_enabled") else 1
    hidden = wishes.specs.get("hw:hide_hypervisor_id", wishes.specs.get(
        "hide_hypervisor_id", wishes.image.get("img_hide_hypervisor_id")))
    return Hardware(
        vcpus=wishes.vcpus, memory_mb=wishes.memory_mb, architecture=_architecture(wishes, existing),
        hypervisor=picked["img_hv_type"] or "", vm_mode=picked["hw_vm_mode"] or "", requested_machine=machine,
        topology=topology(wishes), windows=wishes.image.get("os_type") == "windows", iso=wishes.disk_format == "iso",
        firmware=firmware, secure_boot_wish=_secure_boot(wishes, firmware, machine),
        boot_menu=wishes.flag("boot_menu"), command_line=wishes.image.get("os_command_line") or "",
        hidden=truth("hw:hide_hypervisor_id", hidden),
        pmu=None if wishes.get("pmu") is None else wishes.flag("pmu"), hpet=wishes.image_flag("hw_time_hpet"),
        cpu_limits=_given([
            ("shares", wishes.spec_number("quota:cpu_shares")), ("period", wishes.spec_number("quota:cpu_period")),
            ("quota", wishes.spec_number("quota:cpu_quota", low=-1))]),
        disk_bus=picked["hw_disk_bus"] or "", cdrom_bus=picked["hw_cdrom_bus"] or "",
        floppy_bus=picked["hw_floppy_bus"] or "fdc", scsi_model=picked["hw_scsi_model"] or "virtio-scsi",
        disk_limits=_given((name, wishes.spec_number(f"quota:disk_{name}")) for name in _DISK_LIMITS),
        vif_model=model, vif_queues=queues if model == "virtio" else 1, packed=wishes.flag("virtio_packed_ring"),
        vif_limits=_vif_limits(wishes), serial_ports=_serial_ports(wishes), video_model=picked["hw_video_model"],
        video_ram=_video_ram(wishes), usb_model=picked["hw_usb_model"] or ("qemu-xhci" if usb_ports else None),
        usb_ports=usb_ports, input_bus=picked["hw_input_bus"] or ("usb" if picked["hw_pointer_model"] else None),
        sound_model=picked["hw_sound_model"],
        watchdog=None if picked["hw_watchdog_action"] == "disabled" else picked["hw_watchdog_action"],
        rng=_rng(wishes), guest_agent=wishes.image_flag("hw_qemu_guest_agent"), locked_memory=_locked_memory(wishes),
        viommu_model=picked["hw_viommu_model"], tpm_version=picked["hw_tpm_version"], tpm_model=picked["hw_tpm_model"])


def required_traits(flavor: Flavor, image: Image | None, existing: bool = False) -> set[str]:
    """Return the traits that a host needs for this hardware. Raises InvalidInput as :func:`hardware` does."""
    wishes = Properties(flavor, image)
    wanted = hardware(wishes, existing)
    traits = {property_.trait_of(property_.chosen(wishes, existing)) for property_ in values.CHOICES} - {""}
    if wanted.architecture:
        traits.add(values.architecture_trait(wanted.architecture))
    if wanted.requested_machine:
        traits.add(values.machine_trait(wanted.requested_machine, wanted.architecture))
        # The machine type is more specific than the trait, which describes the host's default machine.
        if is_i440fx(wanted.requested_machine):
            traits.discard("COMPUTE_STORAGE_BUS_IDE")
    for is_requested, trait in (
            (wanted.locked_memory, values.LOCKED_MEMORY), (_realtime(flavor, image), values.CPU_REALTIME),
            (wanted.vif_limits, values.BANDWIDTH_LIMITS), (wanted.usb_ports, values.USB_REDIRECTION)):
        if is_requested:
            traits.add(trait)
    return traits


def check_disk(device_type: str | None, disk_bus: str | None) -> None:
    """Check the device type and the bus of a block device. Raises InvalidInput for what no host can provide."""
    kind = choice("device_type", device_type or None, values.DEVICE_TYPES) or "disk"
    choice(f"disk_bus of a {kind}", disk_bus or None, values.BLOCK_BUSES[kind])


def disk_traits(buses: Iterable[str | None]) -> set[str]:
    """Return the traits that a host needs for block devices on these buses."""
    return {f"COMPUTE_STORAGE_BUS_{bus.upper()}" for bus in buses if bus}


def is_i440fx(machine: str) -> bool:
    return machine == "pc" or machine.startswith(("pc-i440fx-", "pc-0.", "pc-1."))


# --- single properties -----------------------------------------------------------------------------
def _architecture(wishes: Properties, existing: bool) -> str:
    """Return the architecture of the guest, or "" for that of the host; hw_emulation_architecture takes precedence."""
    for name in ("hw_emulation_architecture", "hw_architecture"):
        value = wishes.image.get(name)
        if value and canonical_architecture(value) in values.ARCHITECTURES:
            return canonical_architecture(value)
        if value and not existing:
            raise exception.InvalidInput(reason=f"{name}={value} is not a known architecture")
    return ""


def _machine(wishes: Properties, picked: dict[str, str | None]) -> str:
    machine = wishes.image.get("hw_machine_type") or ""
    if machine and (not _MACHINE.fullmatch(machine) or machine.partition("-")[0] in _UNUSABLE_MACHINES):
        raise exception.InvalidInput(reason=f"hw_machine_type={machine} is not supported: servers need a PCI bus")
    for name in ("hw_disk_bus", "hw_cdrom_bus"):
        if picked[name] == "ide" and "q35" in machine:
            raise exception.InvalidInput(reason=f"{name}=ide and hw_machine_type={machine} exclude each other")
    model = picked["hw_viommu_model"]
    if model in ("intel", "virtio", "auto") and is_i440fx(machine):
        raise exception.InvalidInput(reason=f"hw_viommu_model={model} and hw_machine_type={machine} exclude each other")
    return machine


def _secure_boot(wishes: Properties, firmware: str, machine: str) -> str:
    """Return required, optional or ""."""
    wanted = wishes.specs.get("os:secure_boot") or wishes.image.get("os_secure_boot") or ""
    choice("os_secure_boot", wanted or None, ("required", "optional", "disabled"))
    if wanted == "required" and firmware != "uefi":
        raise exception.InvalidInput(reason="os_secure_boot=required needs hw_firmware_type=uefi")
    if wanted == "required" and is_i440fx(machine):
        raise exception.InvalidInput(
            reason=f"os_secure_boot=required and hw_machine_type={machine} exclude each other; use q35")
    return "" if wanted == "disabled" or firmware != "uefi" else wanted


def _check_ignored_before(wishes: Properties, picked: dict[str, str | None], machine: str) -> None:
    """Raise InvalidInput for properties that earlier releases ignored; existing servers may have them."""
    for name in values.FLAGS:
        truth(name, wishes.image.get(name))
    guest = _architecture(wishes, existing=False)
    if guest not in ("", "x86_64", "i686") and (machine == "q35" or is_i440fx(machine)):
        raise exception.InvalidInput(reason=f"hw_machine_type={machine} and hw_architecture={guest} exclude each other")
    for name, value in (("hw_input_bus", "usb"), ("hw_pointer_model", "usbtablet")):
        if picked["hw_usb_model"] == "none" and picked[name] == value:
            raise exception.InvalidInput(reason=f"{name}={value} and hw_usb_model=none exclude each other")
    version, model = picked["hw_tpm_version"], picked["hw_tpm_model"]
    if model and not version:
        raise exception.InvalidInput(reason=f"hw_tpm_model={model} needs hw_tpm_version")
    if model == "tpm-crb" and version == "1.2":
        raise exception.InvalidInput(reason="hw_tpm_model=tpm-crb and hw_tpm_version=1.2 exclude each other")
    choice("hw:tpm_secret_security", wishes.specs.get("hw:tpm_secret_security"), ("user", "host", "deployment"))


def _locked_memory(wishes: Properties) -> bool:
    locked = wishes.flag("locked_memory")
    if locked and not wishes.get("mem_page_size"):
        raise exception.InvalidInput(
            reason=f"{wishes.key('locked_memory')}={wishes.get('locked_memory')} needs a page size (hw:mem_page_size)")
    return locked


def _realtime(flavor: Flavor, image: Image | None) -> bool:
    """Return True if CPUs of the guest are scheduled in real time, which needs some dedicated and some other CPUs."""
    wanted = flavor.extra_specs.get("hw:cpu_realtime")
    if not truth("hw:cpu_realtime", wanted):
        return False
    policy = guest_numa.cpu_policy(flavor, image)
    if policy == guest_numa.SHARED:
        raise exception.InvalidInput(reason=f"hw:cpu_realtime={wanted} needs hw:cpu_policy dedicated or mixed")
    mask = guest_numa.either(flavor, image, "hw:cpu_realtime_mask")
    isolated = guest_numa.emulator_policy(flavor, image)
    named = guest_numa.cpu_mask(mask, flavor.vcpus) if mask else set(range(flavor.vcpus))
    if policy == guest_numa.DEDICATED and not isolated and len(named) == flavor.vcpus:
        raise exception.InvalidInput(
            reason="hw:cpu_realtime needs hw:cpu_realtime_mask, which leaves at least one CPU to the guest's own work")
    if not named:
        raise exception.InvalidInput(reason=f"hw:cpu_realtime_mask={mask} leaves no CPU to schedule in real time")
    return True


def _vif_limits(wishes: Properties) -> tuple[tuple[str, Limits], ...]:
    limits = []
    for direction in ("inbound", "outbound"):
        rates = _given((name, wishes.spec_number(f"quota:vif_{direction}_{name}"))
                       for name in ("average", "peak", "burst"))
        if dict(rates).get("average"):
            limits.append((direction, rates))
        elif any(value for _name, value in rates):
            raise exception.InvalidInput(reason=f"quota:vif_{direction}_average is missing")
    return tuple(limits)


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


def _usb_ports(wishes: Properties) -> int:
    """Return the number of USB ports by which a SPICE client can redirect devices of its machine to the guest."""
    value = wishes.get("redirected_usb_ports")
    count = number("hw_redirected_usb_ports", value) or 0
    if count > _USB_PORTS_MAX:
        raise exception.InvalidInput(reason=f"hw_redirected_usb_ports={value} is more than {_USB_PORTS_MAX}")
    if count and wishes.get("usb_model") == "none":
        raise exception.InvalidInput(reason=f"hw_redirected_usb_ports={value} and hw_usb_model=none exclude each other")
    return count


def _rng(wishes: Properties) -> tuple[int, ...] | None:
    if not truth("hw_rng:allowed", wishes.specs.get("hw_rng:allowed"), default=True):
        return None
    rate, period = wishes.spec_number("hw_rng:rate_bytes"), wishes.spec_number("hw_rng:rate_period")
    return (rate, period or 1000) if rate else ()


def _check_limits(wishes: Properties) -> None:
    """Check the limits of the flavor. Raises InvalidInput if a limit is out of range, or two exclude each other."""
    values = {name: wishes.spec_number(name, low=-1 if name == "quota:cpu_quota" else 0) or 0 for name in _LIMIT_RANGES}
    for name, (low, high) in _LIMIT_RANGES.items():
        if values[name] > 0 and not low <= values[name] <= high:
            raise exception.InvalidInput(reason=f"{name}={values[name]} is not between {low} and {high}")
    for what in ("bytes", "iops"):
        total = f"quota:disk_total_{what}_sec"
        for which in ("read", "write"):
            part = f"quota:disk_{which}_{what}_sec"
            if values[total] and values[part]:
                raise exception.InvalidInput(reason=f"{total} and {part} exclude each other")


def _given(limits: Iterator[tuple[str, int | None]] | list[tuple[str, int | None]]) -> Limits:
    return tuple((name, value) for name, value in limits if value is not None)
