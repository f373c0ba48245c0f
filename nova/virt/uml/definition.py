"""The definition of a guest: the disks, interfaces and kernel arguments of its next start, stored in its directory."""

import os
import string
from collections.abc import Iterator

import msgspec

from nova import exception
from nova.common import files
from nova.conf import CONF
from nova.objects.networks.network import VIF
from nova.objects.servers.instance import BlockDevice, Instance
from nova.virt.guest_files import directories
from nova.virt.uml import cow, disks, supervisor

# The kernel supports 16 disks, ubda to ubdp.
_LETTERS = string.ascii_lowercase[:16]
# Partition types of Linux file systems in an MBR.
_MBR_LINUX, _GPT = 0x83, 0xEE
_VOLUME = "volume:"


class Disk(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A disk ubdLETTER. ``key``: the file name of a local disk, or volume:ID. ``path``: absolute path of a volume."""

    letter: str
    key: str
    path: str = ""
    read_only: bool = False

    @property
    def volume_id(self) -> str:
        return self.key.removeprefix(_VOLUME) if self.key.startswith(_VOLUME) else ""

    def setting(self) -> str:
        """Return the setting of the disk, for a kernel argument or a request to a running kernel. The path is relative
        to the guest's directory, since the path of a device may contain the separators of the setting."""
        # t: no discards, which copy-on-write files do not support; d: never read a copy-on-write header.
        flags = "t" if self.key.endswith(".cow") else "d"
        return f"ubd{self.letter}{'r' if self.read_only else ''}{flags}={self.file()}"

    def file(self) -> str:
        return f"volume.{self.letter}" if self.path else self.key


class Nic(msgspec.Struct, kw_only=True, omit_defaults=True):
    """An interface vecINDEX."""

    index: int
    mac: str
    device: str
    bridge: str
    mtu: int

    def setting(self) -> str:
        return f"vec{self.index}:transport=tap,ifname={self.device},mac={self.mac},depth=64"


class Definition(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The definition of a guest. The supervisor reads the fields in the first group."""

    kernel: str
    arguments: list[str]
    memory_directory: str
    uid: int | None = None
    serial: tuple[str, int] | None = None
    # --- fields of the driver
    uuid: str
    memory_mb: int
    disks: list[Disk] = []
    nics: list[Nic] = []
    ramdisk: str = ""
    rescued: bool = False
    config_drive: bool = False

    def disk(self, volume_id: str) -> Disk | None:
        """Return the disk of a volume."""
        return next((disk for disk in self.disks if volume_id and disk.volume_id == volume_id), None)

    def nic(self, mac: str) -> Nic | None:
        return next((nic for nic in self.nics if nic.mac == mac.lower()), None)

    def store(self, place: str) -> None:
        """Complete the arguments and write the definition."""
        self.arguments = self._arguments(place)
        files.replace(os.path.join(place, supervisor.DEFINITION), msgspec.json.encode(self))

    def _arguments(self, place: str) -> list[str]:
        root = next((disk for disk in self.disks if disk.letter == "a"), None)
        partition = _root_partition(os.path.join(place, root.path or root.key)) if root else ""
        return [f"mem={self.memory_mb}M", f"umid={supervisor.UMID}", f"uml_dir={supervisor.RUN}/",
                f"root=/dev/ubda{partition}", "rw", *(disk.setting() for disk in self.disks),
                *(nic.setting() for nic in self.nics), *([f"initrd={self.ramdisk}"] if self.ramdisk else []),
                # Restrict hostfs to a path that cannot exist: it must not mount directories of the host in the guest.
                "hostfs=/dev/null/none", "con=null", "ssl=null", "ssl0=fd:3", "console=ttyS0",
                *CONF.uml.kernel_arguments.split()]


def load(place: str) -> Definition | None:
    """Return the definition stored in the directory, or None."""
    text = files.text_of(os.path.join(place, supervisor.DEFINITION))
    return msgspec.json.decode(text, type=Definition) if text else None


def of_instance(instance: Instance, place: str, previous: Definition | None, uid: int | None,
                serial: tuple[str, int] | None, rescue: bool = False) -> Definition:
    """Return the definition of a guest whose local disks are in ``place``. Disks and interfaces that the guest had
    before keep their names. Raises InvalidDiskInfo, TooManyDiskDevices, VolumeUnusable, NetworkSetupError."""
    if disks.root_of(place) is None and instance.image is not None and not instance.volume_backed:
        raise exception.InvalidDiskInfo(reason="the root disk is missing on the host")
    if previous is not None and (previous.rescued or rescue):
        previous = msgspec.structs.replace(previous, disks=[
            disk for disk in previous.disks if disk.volume_id])
    ramdisk = disks.RESCUE_RAMDISK if rescue else disks.RAMDISK
    volumes = sorted(instance.volumes, key=lambda device: device.boot_index != 0)
    local = [Disk(letter="", key=name, read_only=name == disks.CONFIG_DRIVE) for name in disks.present(place)]
    connected = [disk for device in volumes if (disk := _volume(device, previous)) is not None]
    first = [Disk(letter="", key=disks.RESCUE)] if rescue else []
    ordered = [*first, *connected, *local] if instance.volume_backed else [*first, *local, *connected]
    names = {_VOLUME + (device.volume_id or ""): device.device_name or "" for device in volumes}
    definition = Definition(
        kernel=CONF.uml.kernel, arguments=[], memory_directory=CONF.uml.memory_directory, uid=uid, serial=serial,
        uuid=instance.uuid, memory_mb=instance.flavor.memory_mb, rescued=rescue,
        ramdisk=ramdisk if os.path.exists(os.path.join(place, ramdisk)) else "",
        config_drive=bool(instance.config_drive))
    for disk in ordered:
        add_disk(definition, disk, previous, names.get(disk.key, ""))
    for vif in instance.network_info:
        add_nic(definition, vif, previous)
    return definition


def _volume(device: BlockDevice, previous: Definition | None) -> Disk | None:
    """Return the disk of a connected volume, else the previous disk of this volume, or None."""
    if device.connection is None:
        return previous.disk(device.volume_id or "") if previous else None
    return volume_disk(device)


def volume_disk(device: BlockDevice) -> Disk:
    """Return the disk of a connected volume, still without a letter. Raises VolumeUnusable for a volume that this
    hypervisor cannot use."""
    connection, volume_id = device.connection, device.volume_id or ""
    assert connection is not None
    obstacle = next((text for applies, text in (
        (connection.protocol not in ("file", "block"), f"a connection by {connection.protocol}"),
        (connection.format != "raw" or connection.below, f"a file in the format {connection.format} or with snapshots"),
        (connection.key is not None, "an encrypted volume"), (connection.shareable, "a volume of several servers"),
        (connection.limits, "rate limits of a volume")) if applies), "")
    if obstacle:
        raise exception.VolumeUnusable(volume_id=volume_id, reason=f"User Mode Linux does not support {obstacle}")
    return Disk(letter="", key=_VOLUME + volume_id, path=os.path.realpath(connection.path),
                read_only=connection.read_only)


def add_disk(definition: Definition, disk: Disk, previous: Definition | None = None, wanted: str = "") -> Disk:
    """Add a disk and return it. Its letter is that of the ``previous`` definition, else that of the device name
    ``wanted``, else the first free one. Raises TooManyDiskDevices."""
    used = {other.letter for other in definition.disks}
    reserved = {other.letter for other in previous.disks} if previous else set()
    before = next((other.letter for other in (previous.disks if previous else ()) if other.key == disk.key), "")
    candidates = [before, wanted[-1:] if wanted[:-1].endswith("d") and not definition.rescued else "",
                  *(letter for letter in _LETTERS if letter not in reserved), *_LETTERS]
    letter = next((letter for letter in candidates if letter and letter in _LETTERS and letter not in used), "")
    if not letter:
        raise exception.TooManyDiskDevices(maximum=len(_LETTERS))
    if not definition.disks:
        letter = "a"  # the disk from which the guest boots
    added = msgspec.structs.replace(disk, letter=letter)
    definition.disks.append(added)
    return added


def add_nic(definition: Definition, vif: VIF, previous: Definition | None = None) -> Nic | None:
    """Add an interface; return it, or None if the host does not plug it. Raises NetworkSetupError."""
    bridge = vif.bridge or str(vif.details.get("bridge_name", ""))
    if not bridge:
        return None
    if vif.vif_type != "bridge":
        raise exception.NetworkSetupError(reason=f"User Mode Linux does not support interfaces of type {vif.vif_type}")
    used = {nic.index for nic in definition.nics}
    before = previous.nic(vif.mac) if previous else None
    reserved = {nic.index for nic in previous.nics} if previous else set()
    index = before.index if before is not None and before.index not in used else next(
        number for number in range(len(used | reserved) + 1) if number not in used | reserved)
    nic = Nic(index=index, mac=vif.mac.lower(), device=vif.devname, bridge=bridge, mtu=vif.mtu)
    definition.nics.append(nic)
    return nic


def _root_partition(path: str) -> str:
    """Return the number of the root partition of a disk: the largest partition with a Linux type in the MBR; "" if the
    disk has no partition table. Raises InvalidDiskInfo for a GPT, whose types do not identify a root partition."""
    try:
        with open(cow_base(path), "rb") as file:
            sector = file.read(512)
    except FileNotFoundError as error:
        raise exception.InvalidDiskInfo(reason="the image of the root disk is missing on the host") from error
    if sector[510:512] != b"\x55\xaa":
        return ""
    entries = [sector[446 + 16 * number:462 + 16 * number] for number in range(4)]
    sizes = {int.from_bytes(entry[12:16], "little"): number for number, entry in enumerate(entries, 1)
             if entry[4] == _MBR_LINUX}
    if any(entry[4] == _GPT for entry in entries):
        raise exception.InvalidDiskInfo(reason="User Mode Linux guests cannot boot from a disk with a GPT")
    return str(sizes[max(sizes)]) if sizes else ""


def cow_base(path: str) -> str:
    """Return the file that contains the partition table of a disk: its backing file, if it has one."""
    return cow.base_of(path) if path.endswith(".cow") else path


def all_of_host() -> Iterator[tuple[str, Definition]]:
    """Return (directory, definition) of each guest on this host."""
    for uuid in sorted(directories.retained_servers()):
        place = directories.directory(uuid)
        definition = load(place)
        if definition is not None:
            yield place, definition
