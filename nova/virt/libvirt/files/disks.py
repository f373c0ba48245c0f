"""The files of a guest on this host: its disks, kernel, config drive and console log."""

import contextlib
import dataclasses
import glob
import os
from collections.abc import Iterator

from nova import exception
from nova.objects.servers.instance import Instance
from nova.virt import console_logs
from nova.virt.guest_files import directories
from nova.virt.images import qemuimg

ROOT, SWAP, CONFIG_DRIVE, KERNEL, RAMDISK = "disk", "disk.swap", "disk.config", "kernel", "ramdisk"
NVRAM = "nvram"
TPM_STATES = {"1.2": "tpm-00.permall", "2.0": "tpm2-00.permall"}  # TPM version -> file name of swtpm
ROOT_FILE_SYSTEM = "rootfs.img"  # root disk of a container: raw, without partitions
# Names of the files of a rescue: the rescue's boot files, and the guest's definition before the rescue.
RESCUE, RESCUE_DRIVE, RESCUE_KERNEL, RESCUE_RAMDISK = (
    f"{name}.rescue" for name in (ROOT, CONFIG_DRIVE, KERNEL, RAMDISK))
RENAMED = {ROOT: RESCUE, CONFIG_DRIVE: RESCUE_DRIVE, KERNEL: RESCUE_KERNEL, RAMDISK: RESCUE_RAMDISK}
BEFORE_RESCUE = "unrescue.xml"
OF_RESCUE = (RESCUE, RESCUE_DRIVE, RESCUE_KERNEL, RESCUE_RAMDISK, BEFORE_RESCUE)  # removed in this order
_EPHEMERAL = "disk.eph"
_CONSOLE_LOG = "console.log"  # the log of the serial console, which virtlogd writes, rotates and keeps


@dataclasses.dataclass(frozen=True)
class LocalDisk:
    """A local disk. ``device``: disk, cdrom, or filesystem (of a container). ``base``: its backing image in the cache,
    as (path, format)."""

    path: str
    format: str = "qcow2"
    device: str = "disk"
    base: tuple[str, str] | None = None

    @property
    def name(self) -> str:
        return os.path.basename(self.path)


@dataclasses.dataclass(frozen=True)
class LocalDisks:
    """The existing files of a guest, in the order of its disks. ``nvram``: path of UEFI variables, existing or not."""

    console_log: str
    nvram: str = ""
    root: LocalDisk | None = None
    ephemerals: tuple[LocalDisk, ...] = ()
    swap: LocalDisk | None = None
    config_drive: LocalDisk | None = None
    kernel: str | None = None
    ramdisk: str | None = None


def ephemeral_name(index: int) -> str:
    return f"{_EPHEMERAL}{index}"


def name_in_metadata(name: str) -> str:
    """Return the name that disk_names() of nova.objects.servers.instance gives the disk; "" for other files."""
    if is_ephemeral(name):
        return f"ephemeral{name.removeprefix(_EPHEMERAL)}"
    return {ROOT: "root", SWAP: "swap"}.get(name, "")


def inspect_disks(instance: Instance) -> LocalDisks:
    """Return the existing files of a guest. Raises InvalidDiskInfo if its root disk is missing."""
    place = directories.directory(instance.uuid)

    def disk(name: str) -> LocalDisk | None:
        path = os.path.join(place, name)
        return LocalDisk(path) if os.path.exists(path) else None

    root, drive, file_system = disk(ROOT), disk(CONFIG_DRIVE), disk(ROOT_FILE_SYSTEM)
    if file_system is not None:
        root = dataclasses.replace(file_system, format="raw", device="filesystem")
    if root is None and instance.image is not None and not instance.volume_backed:
        raise exception.InvalidDiskInfo(reason="the root disk is missing on the host")
    if root is not None and file_system is None:
        root = dataclasses.replace(root, base=base_of(root.path), device="cdrom" if is_iso(instance) else "disk")
    if drive is not None:
        drive = LocalDisk(drive.path, "raw", "cdrom" if qemuimg.is_iso(drive.path) else "disk")
    ephemerals: list[LocalDisk] = []
    while (ephemeral := disk(ephemeral_name(len(ephemerals)))) is not None:
        ephemerals.append(ephemeral)
    kernel, ramdisk = disk(KERNEL), disk(RAMDISK)
    return LocalDisks(console_log=console_log(instance.uuid), nvram=os.path.join(place, NVRAM), root=root,
                      ephemerals=tuple(ephemerals), swap=disk(SWAP), config_drive=drive,
                      kernel=kernel.path if kernel else None, ramdisk=ramdisk.path if ramdisk else None)


def base_of(path: str) -> tuple[str, str] | None:
    try:
        header = qemuimg.Qcow2Header(path)
    except ValueError as error:
        raise exception.InvalidDiskInfo(reason="the root disk is damaged") from error
    return (header.backing, header.backing_format) if header.backing and header.backing_format else None


def is_iso(instance: Instance) -> bool:
    return instance.image is not None and instance.image.disk_format == "iso"


def virtual_size(path: str, image_format: str) -> int:
    """Return the virtual size of an image in bytes. Raises InvalidDiskInfo."""
    if image_format == "raw":
        # A disk consists of whole sectors.
        return -(-os.stat(path).st_size // 512) * 512
    try:
        return int(qemuimg.Qcow2Header(path).virtual_size)
    except ValueError as error:
        raise exception.InvalidDiskInfo(reason="the image is not in the format qcow2") from error


def format_to_copy(name: str) -> str | None:
    """Return the format of a file that moves with a guest, or None for other files."""
    fixed = dict.fromkeys((CONFIG_DRIVE, KERNEL, RAMDISK, NVRAM, ROOT_FILE_SYSTEM, *TPM_STATES.values()), "raw")
    return fixed.get(name) or ("qcow2" if _is_disk(name) else None)


def has_any(place: str) -> bool:
    """Return True if the directory ``place`` contains a local disk."""
    with contextlib.suppress(FileNotFoundError):
        return any(_is_disk(name) for name in os.listdir(place))
    return False


def _is_disk(name: str) -> bool:
    return name in (ROOT, SWAP, ROOT_FILE_SYSTEM) or is_ephemeral(name)


def is_ephemeral(name: str) -> bool:
    return name.startswith(_EPHEMERAL) and name.removeprefix(_EPHEMERAL).isdigit()


def bases_in_use() -> set[str]:
    """Return the paths of the backing images of this host's guests. Raises OSError if a disk cannot be read; then the
    caller must not remove any image."""
    bases = set()
    for path in _guest_disks():
        with contextlib.suppress(FileNotFoundError, ValueError):
            backing = qemuimg.Qcow2Header(path).backing
            if backing:
                bases.add(backing)
    return bases


def promised_bytes() -> int:
    """Return the number of bytes by which the sparse disks on this host can still grow."""
    total = 0
    for path in _guest_disks():
        with contextlib.suppress(OSError, ValueError):
            status = os.stat(path)
            is_raw = os.path.basename(path) == ROOT_FILE_SYSTEM
            total += max(0, (status.st_size if is_raw else qemuimg.Qcow2Header(path).virtual_size)
                         - status.st_blocks * 512)
    return total


def _guest_disks() -> Iterator[str]:
    return (path for path in directories.all_files() if _is_disk(name := os.path.basename(path)) or name == RESCUE)


# --- console log -------------------------------------------------------------------------------------
def console_log(uuid: str) -> str:
    return os.path.join(directories.directory(uuid), _CONSOLE_LOG)


def console_output(uuid: str, lines: int | None = None) -> bytes:
    """Return the last ``lines`` of the console log (None: all). Raises ConsoleLogUnavailable."""
    path = console_log(uuid)
    # virtlogd renames a full log file to .0, the previous .0 to .1, and so on.
    older = sorted((piece for piece in glob.glob(glob.escape(path) + ".*") if piece.rpartition(".")[2].isdigit()),
                   key=lambda piece: int(piece.rpartition(".")[2]))
    return console_logs.output([path, *older], uuid, lines)
