"""Host-wide guest settings, read from the configuration once."""

import contextlib
import dataclasses
import uuid
from collections.abc import Collection, Sequence

from nova import exception
from nova.common import files
from nova.conf import CONF
from nova.objects.dedicated_resources.numa import HostTopology

_MACHINE_ID = "/etc/machine-id"


@dataclasses.dataclass(frozen=True)
class Spice:
    """SPICE settings. ``choices``: (element, attribute, value) that override QEMU's defaults."""

    listen: str
    agent: bool = True
    secure: bool = False
    choices: tuple[tuple[str, str, str], ...] = ()


@dataclasses.dataclass(frozen=True)
class GuestArchitecture:
    """Guest settings of one architecture: KVM or emulation, CPU, and machine types (empty if unknown)."""

    name: str
    virt_type: str
    cpu_mode: str | None = None
    cpu_model: str | None = None
    machines: frozenset[str] = frozenset()


@dataclasses.dataclass(frozen=True)
class Settings:
    """Host-wide guest settings. ``owner``: name of the nova-compute to which the domains belong. ``machines``: default
    machine types by architecture; ``machine_names``: all machine types (empty: unknown). ``host_serial``: serial number
    in SMBIOS (None: the server's id; "": none). ``balloon_period``: seconds between memory statistics (0: none).
    ``pcie_ports``: 0 for the ports that devices need plus spare ones. ``shared_cpus``: host CPUs for guests without
    dedicated CPUs (empty: all CPUs); ``cells``: these CPUs by NUMA cell; ``page_kb``: size of a small page in KiB.
    ``names``: template of domain names. ``foreign``: other guest architectures than the host's. ``secure_boot``: the
    host has firmware for secure boot. ``tpm``: versions and models of virtual TPMs."""

    owner: str
    virt_type: str = "kvm"
    arch: str = "x86_64"
    machines: dict[str, str] = dataclasses.field(default_factory=dict)
    machine_names: frozenset[str] = frozenset()
    cpu_mode: str | None = None
    cpu_model: str | None = None
    cpu_flags: tuple[str, ...] = ()
    cache: str = "none"
    discard: str | None = None
    host_serial: str | None = None
    vnc_listen: str | None = None
    spice: Spice | None = None
    serial_listen: str | None = None
    balloon_period: int = 10
    pcie_ports: int = 0
    shared_cpus: tuple[int, ...] = ()
    cells: tuple[tuple[int, tuple[int, ...]], ...] = ()
    page_kb: int = 4
    names: str = "instance-%08x"
    foreign: tuple[GuestArchitecture, ...] = ()
    secure_boot: bool = True
    tpm: frozenset[str] = frozenset()

    def architecture(self, name: str = "") -> GuestArchitecture | None:
        """Return the settings for guests of an architecture ("": the host's own), or None if it is not supported."""
        native = GuestArchitecture(self.arch, self.virt_type, self.cpu_mode, self.cpu_model, self.machine_names)
        return next((candidate for candidate in (native, *self.foreign) if candidate.name == (name or self.arch)), None)


def from_conf(owner: str, arch: str, host_uuid: str, direct_io: bool,
              machine_names: frozenset[str] = frozenset()) -> Settings:
    """Return the settings from the configuration, without the CPU model (see with_cpu)."""
    conf = CONF.libvirt
    caches = pairs("disk_cachemodes", conf.disk_cachemodes)
    return Settings(
        owner=owner, virt_type=conf.virt_type, arch=arch, machines=pairs("hw_machine_type", conf.hw_machine_type),
        machine_names=machine_names, cpu_mode=conf.cpu_mode, cpu_model=conf.cpu_models[0] if conf.cpu_models else None,
        cpu_flags=tuple(conf.cpu_model_extra_flags), cache=caches.get("file", "none" if direct_io else "writeback"),
        discard=conf.hw_disk_discard, host_serial=_host_serial(conf.sysinfo_serial, host_uuid),
        vnc_listen=CONF.vnc.server_listen if CONF.vnc.enabled else None,
        spice=_spice() if CONF.spice.enabled else None,
        serial_listen=CONF.serial_console.proxyclient_address if CONF.serial_console.enabled else None,
        balloon_period=conf.mem_stats_period_seconds, pcie_ports=conf.num_pcie_ports, names=CONF.instance_name_template)


def with_cpu(settings: Settings, modes: Collection[str], models: Collection[str]) -> Settings:
    """Return the settings with the CPU mode and model of guests on this host. Raises InvalidInput naming the option."""
    mode = settings.cpu_mode
    if mode is None:
        mode = "host-model" if "host-model" in modes else "none"
    if mode == "none":
        return dataclasses.replace(settings, cpu_mode=None, cpu_model=None)
    if mode not in modes:
        raise exception.InvalidInput(reason=f"[libvirt]cpu_mode {mode} is not possible on this host "
                                            f"with virt_type {settings.virt_type}")
    if mode != "custom":
        return dataclasses.replace(settings, cpu_mode=mode, cpu_model=None)
    for model in CONF.libvirt.cpu_models:
        if model in models:
            return dataclasses.replace(settings, cpu_mode=mode, cpu_model=model)
    raise exception.InvalidInput(
        reason=f"[libvirt]cpu_models {', '.join(CONF.libvirt.cpu_models) or '(empty)'}: none is possible on this host")


def with_cells(settings: Settings, topology: HostTopology | None) -> Settings:
    """Return the settings with the NUMA cells, page size and shared CPUs of the host."""
    if topology is None:
        return settings
    cells = tuple((cell.id, tuple(cell.cpus)) for cell in topology.cells)
    confined = CONF.compute.cpu_shared_set or CONF.compute.cpu_dedicated_set
    sizes = [pages.size_kb for cell in topology.cells for pages in cell.pages]
    return dataclasses.replace(
        settings, cells=cells, page_kb=min(sizes, default=settings.page_kb),
        shared_cpus=tuple(sorted(cpu for _cell, cpus in cells for cpu in cpus)) if confined else ())


def pairs(option: str, items: Sequence[str]) -> dict[str, str]:
    """Return the ``name=value`` items. Raises InvalidInput naming the option."""
    parsed = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not (name and equals and value):
            raise exception.InvalidInput(reason=f"[libvirt]{option}: {item} is not of the form name=value")
        parsed[name.strip()] = value.strip()
    return parsed


def _spice() -> Spice:
    conf = CONF.spice
    playback = None if conf.playback_compression is None else "on" if conf.playback_compression else "off"
    choices: tuple[tuple[str, str, str | None], ...] = (
        ("image", "compression", conf.image_compression), ("jpeg", "compression", conf.jpeg_compression),
        ("zlib", "compression", conf.zlib_compression), ("playback", "compression", playback),
        ("streaming", "mode", conf.streaming_mode))
    return Spice(listen=conf.server_listen, agent=conf.agent_enabled, secure=conf.require_secure,
                 choices=tuple((tag, attribute, value) for tag, attribute, value in choices if value is not None))


def _host_serial(kind: str, host_uuid: str) -> str | None:
    if kind == "unique":
        return None
    if kind == "none":
        return ""
    if kind in ("os", "auto"):
        with contextlib.suppress(OSError):  # in a container, the path may be a directory
            if identity := (files.text_of(_MACHINE_ID) or "").strip():
                return str(uuid.UUID(identity))
    if kind == "os":
        raise exception.InvalidInput(reason="[libvirt]sysinfo_serial os: the host has no /etc/machine-id")
    return host_uuid
