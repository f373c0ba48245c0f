"""The files of a guest: CONF.instances_path/<uuid>/ with its disks, kernel, config drive and console log.

A file has its name only when it is complete; a crash leaves ``*.part`` files, which are made again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator

from nova import exception
from nova.conf import CONF
from nova.objects.instance import Instance
from nova.virt import qemuimg
from nova.virt.driver import Disks
from nova.virt.imagecache import format_of
from nova.virt.libvirt.console import log_path

ROOT, SWAP, CONFIG_DRIVE, KERNEL, RAMDISK = "disk", "disk.swap", "disk.config", "kernel", "ramdisk"
_DELETED = ".deleted"
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

_GIB = 1 << 30
_MIB = 1 << 20
_MKFS_TIMEOUT = 600

# How a file system is made and given a label.
_MKFS = {
    **{name: [f"mkfs.{name}", "-q", "-F", "-L"] for name in ("ext2", "ext3", "ext4")},
    "xfs": ["mkfs.xfs", "-q", "-f", "-L"],
    "vfat": ["mkfs.vfat", "-n"],
    "ntfs": ["mkfs.ntfs", "-q", "-F", "-f", "-L"],
}


@dataclasses.dataclass(frozen=True)
class LocalDisk:
    """``base``: the cached image that it stands on, as (path, format)."""

    path: str
    format: str = "qcow2"
    device: str = "disk"
    base: tuple[str, str] | None = None


@dataclasses.dataclass(frozen=True)
class LocalDisks:
    """The files of a guest as they are, in the order in which it sees its disks."""

    console_log: str
    root: LocalDisk | None = None
    ephemerals: tuple[LocalDisk, ...] = ()
    swap: LocalDisk | None = None
    config_drive: LocalDisk | None = None
    kernel: str | None = None
    ramdisk: str | None = None

    def all(self) -> list[LocalDisk]:
        return [disk for disk in (self.root, *self.ephemerals, self.swap, self.config_drive) if disk is not None]


def directory(uuid: str) -> str:
    """The directory of a guest. Raises InvalidInput for what is no uuid (it becomes part of a path)."""
    if not _UUID.fullmatch(uuid):
        raise exception.InvalidInput(reason=f"{uuid} is not a uuid")
    return os.path.join(CONF.instances_path, uuid)


# --- making ----------------------------------------------------------------------------------------
def make(instance: Instance, disks: Disks) -> None:
    """Make what is missing of a guest's files; files that are there are kept as they are.

    Raises FlavorDiskTooSmall, InvalidDiskInfo, DiskFull.
    """
    place = directory(instance.uuid)
    with _full_disk():
        _make_directories(place)
        if disks.root:
            root, root_format = disks.root, format_of(disks.root) or disks.root_format
            _once(place, ROOT, lambda path: _make_root(path, root, root_format, instance))
        for name, source in ((KERNEL, disks.kernel), (RAMDISK, disks.ramdisk), (CONFIG_DRIVE, disks.config_drive)):
            if source and os.path.abspath(source) != os.path.join(place, name):
                _once(place, name, _copier(source))
            elif source:
                os.chmod(source, 0o600)  # made in its place
        for index, (size, filesystem) in enumerate(_ephemerals(instance)):
            _once(place, _ephemeral_name(index), _formatter(f"ephemeral{index}", size * _GIB, filesystem))
        if instance.flavor.swap:
            _once(place, SWAP, _formatter("swap", instance.flavor.swap * _MIB, "swap"))


def make_instances_path() -> None:
    if not os.path.isdir(CONF.instances_path):
        os.makedirs(CONF.instances_path, exist_ok=True)
        os.chmod(CONF.instances_path, 0o755)  # noqa: S103


def _make_directories(place: str) -> None:
    # the hypervisor's user must reach the files, which libvirt gives to it alone while the guest runs
    make_instances_path()
    os.makedirs(place, exist_ok=True)
    os.chmod(place, 0o711)  # noqa: S103
    for name in os.listdir(place):
        if name.endswith(".part"):
            os.unlink(os.path.join(place, name))


def _once(place: str, name: str, build: Callable[[str], None]) -> None:
    path = os.path.join(place, name)
    if os.path.exists(path):
        return
    part = f"{path}.part"
    try:
        build(part)
        # disks and config drives hold secrets
        os.chmod(part, 0o600)
        os.rename(part, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part)


def _make_root(path: str, base: str, base_format: str, instance: Instance) -> None:
    if not os.path.isfile(base):
        raise exception.InvalidDiskInfo(reason="its image is not in the cache of the host")
    have = _virtual_size(base, base_format)
    # a flavor without a root disk takes the image as large as it is
    want = instance.flavor.root_gb * _GIB or have
    if have > want:
        raise exception.FlavorDiskTooSmall(
            f"Flavor's disk is too small for requested image. Flavor disk is {want} bytes, image is {have} bytes.")
    if _is_iso(instance):
        want = have
    qemuimg.create_overlay(path, base, base_format, want)


def _virtual_size(path: str, image_format: str) -> int:
    if image_format == "raw":
        # a disk consists of whole sectors
        return -(-os.stat(path).st_size // 512) * 512
    try:
        return int(qemuimg.Qcow2Header(path).virtual_size)
    except ValueError as error:
        raise exception.InvalidDiskInfo(reason="its image is not in the format qcow2") from error


def _copier(source: str) -> Callable[[str], None]:
    return lambda path: _copy(source, path)


def _copy(source: str, path: str) -> None:
    try:
        shutil.copyfile(source, path)
    except FileNotFoundError as error:
        raise exception.InvalidDiskInfo(reason=f"{os.path.basename(source)} is missing on the host") from error


def _ephemerals(instance: Instance) -> list[tuple[int, str]]:
    """(GiB, file system) of each; one of all that the flavor has where the request names none."""
    default = CONF.default_ephemeral_format or "ext4"
    asked = [disk for disk in instance.block_devices
             if disk.source == "blank" and disk.destination == "local" and disk.guest_format != "swap"]
    if asked:
        return [(disk.size_gb or instance.flavor.ephemeral_gb, disk.guest_format or default) for disk in asked]
    return [(instance.flavor.ephemeral_gb, default)] if instance.flavor.ephemeral_gb else []


def _ephemeral_name(index: int) -> str:
    return f"disk.eph{index}"


def _formatter(label: str, size: int, filesystem: str) -> Callable[[str], None]:
    return lambda path: _format(path, label, size, filesystem)


def _format(path: str, label: str, size: int, filesystem: str) -> None:
    """A qcow2 image with an empty file system (or swap space)."""
    if filesystem == "swap":
        command = ["mkswap", "-q", "-L", label]
    elif filesystem in _MKFS:
        command = [*_MKFS[filesystem], label]
    else:
        raise exception.InvalidDiskInfo(reason=f"file system {filesystem} of a disk is not supported")
    raw = f"{path.removesuffix('.part')}.raw.part"
    try:
        with open(raw, "wb") as file:
            file.truncate(size)
        try:
            qemuimg.run([*command, raw], _MKFS_TIMEOUT)
        except FileNotFoundError as error:
            raise exception.InvalidDiskInfo(reason=f"{command[0]} is not installed on the host") from error
        qemuimg.convert(raw, "raw", path, "qcow2")
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(raw)


# --- looking ---------------------------------------------------------------------------------------
def look(instance: Instance) -> LocalDisks:
    """The files of a guest as they are. Raises InvalidDiskInfo when its root disk is missing."""
    place = directory(instance.uuid)

    def disk(name: str) -> LocalDisk | None:
        path = os.path.join(place, name)
        return LocalDisk(path) if os.path.exists(path) else None

    root, drive = disk(ROOT), disk(CONFIG_DRIVE)
    if root is None and instance.image is not None and not instance.volume_backed:
        raise exception.InvalidDiskInfo(reason="its root disk is missing on the host")
    if root is not None:
        root = dataclasses.replace(root, base=_base_of(root.path), device="cdrom" if _is_iso(instance) else "disk")
    if drive is not None:
        drive = LocalDisk(drive.path, "raw", "cdrom" if qemuimg.sniff(drive.path) == "iso" else "disk")
    ephemerals: list[LocalDisk] = []
    while (ephemeral := disk(_ephemeral_name(len(ephemerals)))) is not None:
        ephemerals.append(ephemeral)
    kernel, ramdisk = disk(KERNEL), disk(RAMDISK)
    return LocalDisks(console_log=log_path(place), root=root, ephemerals=tuple(ephemerals), swap=disk(SWAP),
                      config_drive=drive, kernel=kernel.path if kernel else None,
                      ramdisk=ramdisk.path if ramdisk else None)


def _base_of(path: str) -> tuple[str, str] | None:
    try:
        header = qemuimg.Qcow2Header(path)
    except ValueError as error:
        raise exception.InvalidDiskInfo(reason="its root disk is damaged") from error
    return (header.backing, header.backing_format) if header.backing and header.backing_format else None


def _is_iso(instance: Instance) -> bool:
    return instance.image is not None and instance.image.disk_format == "iso"


def bases_in_use() -> set[str]:
    """The paths of the images that the disks of this host's guests stand on.

    Raises OSError when a disk cannot be read: nobody may take its image for unused then.
    """
    found = set()
    for path in _guest_disks():
        with contextlib.suppress(FileNotFoundError, ValueError):
            backing = qemuimg.Qcow2Header(path).backing
            if backing:
                found.add(backing)
    return found


def promised_bytes() -> int:
    """What the sparse disks of this host's guests may still grow by."""
    total = 0
    for path in _guest_disks():
        with contextlib.suppress(OSError, ValueError):
            total += max(0, qemuimg.Qcow2Header(path).virtual_size - os.stat(path).st_blocks * 512)
    return total


def _guest_disks() -> Iterator[str]:
    with contextlib.suppress(FileNotFoundError):
        for entry in os.scandir(CONF.instances_path):
            if _UUID.fullmatch(entry.name):
                with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                    for name in os.listdir(entry.path):
                        if name in (ROOT, SWAP) or name.startswith("disk.eph"):
                            yield os.path.join(entry.path, name)


# --- removing --------------------------------------------------------------------------------------
def kept() -> set[str]:
    """The uuids of the guests that have a directory here."""
    try:
        names = os.listdir(CONF.instances_path)
    except FileNotFoundError:
        return set()
    return {name for name in names if _UUID.fullmatch(name)}


def remove(uuid: str) -> None:
    """Remove a guest's directory; nothing there is fine. Half a removal is finished by the next one."""
    place = directory(uuid)
    with contextlib.suppress(FileNotFoundError):
        # renamed first: half a directory must not look like a guest
        _remove_tree(place + _DELETED)
        os.rename(place, place + _DELETED)
    _remove_tree(place + _DELETED)


def _remove_tree(path: str) -> None:
    try:
        shutil.rmtree(path)
    except FileNotFoundError:
        return


def supports_direct_io(path: str) -> bool:
    """Whether files below ``path`` can be read and written past the page cache."""
    probe = os.path.join(path, f".direct-io.{os.getpid()}")
    try:
        os.close(os.open(probe, os.O_CREAT | os.O_WRONLY | os.O_DIRECT, stat.S_IRUSR | stat.S_IWUSR))
        return True
    except OSError:
        return False
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(probe)


@contextlib.contextmanager
def _full_disk() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise exception.DiskFull(reason="no room for the server's disks") from error
        raise
