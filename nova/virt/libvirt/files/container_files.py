"""The files of a container: its root file system, and its config drive as a file system.

The root file system is a raw file per guest, which libvirt mounts when the container starts. Its image is a file
system, a partitioned disk whose largest Linux partition has a file system, or a tar archive (also compressed). The
kernel of the host mounts these file systems, so an image could attack the kernel through its file system drivers."""

import functools
import json
import os
import tempfile
from collections.abc import Callable
from typing import Any

from nova import exception
from nova.common.files import remove
from nova.objects.accounts.flavor import disk_too_small
from nova.objects.servers.instance import Instance
from nova.operations.framework.guest_driver import BootFiles
from nova.virt.images import qemuimg
from nova.virt.images.imagecache import format_of
from nova.virt.libvirt.files import disks

_GIB = 1 << 30
_MIB = 1 << 20
_TIMEOUT = 600
_DRIVE_LABEL = "config-2"
# Offsets and magic numbers of compressed files (gzip, xz, zstd), and of a tar archive.
_ARCHIVES = ((0, b"\x1f\x8b"), (0, b"\xfd7zXZ\x00"), (0, b"(\xb5/\xfd"), (257, b"ustar"))
_EXT = ("ext2", "ext3", "ext4")
# Partition types of Linux file systems: of an MBR, and of a GPT (data, x86-64 root, i386 root, ARM64 root).
_LINUX = ("83", "0FC63DAF-8483-4772-8E79-3D69D8477DE4", "4F68BCE3-E8CD-4DB1-96E7-FBCAF984B709",
          "44479540-F297-41B2-9AF7-D131D5F0458A", "B921B045-1DF0-41C3-AF44-4C6F280D3FAE")

# Script that unpacks an archive into a new file system. The mount exists only in the script's own mount namespace;
# nodev and nosuid make device files and set-user-id programs of the archive unusable. The script has its own
# pid namespace: when the script is killed at the timeout, the kernel kills all of its processes.
_IN_NAMESPACES = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
_UNPACK = """set -e
mount --make-rprivate /
mount -o loop,nodev,nosuid "$1" "$2"
tar --extract --file "$3" --directory "$2" --numeric-owner --same-owner --preserve-permissions
umount "$2"
"""


def check(instance: Instance) -> None:
    """Raise InvalidInput if the server has a disk that containers cannot have."""
    flavor, problem = instance.flavor, ""
    if instance.volume_backed:
        problem = "a root disk on a volume"
    elif flavor.swap:
        problem = f"the swap disk of the flavor {flavor.name}"
    elif flavor.ephemeral_gb or any(device.is_ephemeral for device in instance.block_devices):
        problem = f"the ephemeral disk of the flavor {flavor.name}"
    elif instance.image is not None and instance.image.disk_format == "iso":
        problem = "an image in the format iso"
    if problem:
        raise exception.InvalidInput(reason=f"{problem} is not supported by containers")


def builders(instance: Instance, files: BootFiles) -> dict[str, Callable[[str], None]]:
    """Return the function that creates each file of a container, by file name."""
    made: dict[str, Callable[[str], None]] = {}
    if files.root:
        made[disks.ROOT_FILE_SYSTEM] = functools.partial(
            make_root, base=files.root, base_format=format_of(files.root) or files.root_format,
            size=instance.flavor.root_gb * _GIB)
    if files.config_drive:
        made[disks.CONFIG_DRIVE] = functools.partial(make_drive, files.config_drive)
    return made


def make_root(path: str, base: str, base_format: str, size: int) -> None:
    """Create the root file system of ``size`` bytes (0: size of the image) from a cached image. Raises
    FlavorDiskTooSmall, InvalidDiskInfo, InvalidInput, DiskFull."""
    if not os.path.isfile(base):
        raise exception.InvalidDiskInfo(reason="the server's image is not in the image cache of the host")
    if base_format == "raw" and _is_archive(base):
        if not size:
            raise exception.InvalidInput(reason="a container from a tar archive needs a flavor with a root disk")
        _unpack(base, path, size)
        return
    have = disks.virtual_size(base, base_format)
    if size and have > size:
        raise disk_too_small(size, have)
    _copy_raw(base, base_format, path, have)
    _reduce_to_file_system(path)
    grow_root(path, max(size, os.stat(path).st_size))


def grow_root(path: str, size: int) -> None:
    """Grow the file to ``size`` bytes, and the file system in it. File systems other than ext2, ext3 and ext4 cannot
    grow while they are not mounted, and keep their size."""
    if os.stat(path).st_size < size:
        os.truncate(path, size)
    if _probe(path).get("TYPE") in _EXT:
        # The exit code 1 of e2fsck means that errors were corrected.
        qemuimg.run(["sh", "-c", 'e2fsck -f -p "$1" || [ $? -eq 1 ]', "e2fsck", path], _TIMEOUT)
        qemuimg.run(["resize2fs", path], _TIMEOUT)


def make_drive(source: str, path: str) -> None:
    """Create an ext4 file system with the files of a config drive, since a kernel may not support ISO 9660 or vfat."""
    with tempfile.TemporaryDirectory() as place:
        if qemuimg.is_iso(source):
            _unpack_iso(source, place)
        else:
            qemuimg.run(["mcopy", "-s", "-n", "-m", "-i", source, "::*", place], _TIMEOUT)
        sizes = [os.stat(os.path.join(parent, name)).st_size for parent, _directories, names in os.walk(place)
                 for name in names]
        with open(path, "wb") as file:
            # Twice the size of the files, since each file uses whole blocks and an inode.
            file.truncate(_MIB + 2 * sum(size + 8192 for size in sizes) // _MIB * _MIB)
        qemuimg.run(["mke2fs", "-q", "-F", "-t", "ext4", "-O", "^has_journal", "-L", _DRIVE_LABEL, "-d", place, path],
                    _TIMEOUT)


def _unpack_iso(source: str, place: str) -> None:
    names = [name.lstrip("/") for name in qemuimg.run(["isoinfo", "-R", "-f", "-i", source], _TIMEOUT).splitlines()]
    directories = {os.path.dirname(name) for name in names}
    for directory in directories:
        os.makedirs(os.path.join(place, directory), exist_ok=True)
    for name in names:
        if name not in directories:
            qemuimg.run(["sh", "-c", 'exec isoinfo -R -x "/$1" -i "$2" > "$3/$1"', "isoinfo", name, source, place],
                        _TIMEOUT)


def _is_archive(path: str) -> bool:
    with open(path, "rb") as file:
        head = file.read(512)
    return any(head.startswith(magic, offset) for offset, magic in _ARCHIVES)


def _unpack(archive: str, path: str, size: int) -> None:
    with open(path, "wb") as file:
        file.truncate(size)
    qemuimg.run(["mke2fs", "-q", "-F", "-t", "ext4", "-L", "root", path], _TIMEOUT)
    with tempfile.TemporaryDirectory() as place:
        try:
            qemuimg.run([*_IN_NAMESPACES, "sh", "-c", _UNPACK, "tar", path, place, archive], qemuimg.COPY_TIMEOUT)
        except exception.DiskFull as error:
            raise exception.FlavorDiskTooSmall(
                f"The files of the image do not fit on the flavor's root disk of {size // _GIB} GiB.") from error
        except exception.InvalidDiskInfo as error:
            raise exception.InvalidDiskInfo(reason="the image cannot be unpacked as a tar archive") from error


def _copy_raw(source: str, source_format: str, path: str, size: int) -> None:
    if source_format == "raw":
        qemuimg.run(["cp", "--reflink=auto", "--sparse=always", source, path], qemuimg.COPY_TIMEOUT)
    else:
        qemuimg.convert(source, source_format, path, "raw", size)


def _reduce_to_file_system(path: str) -> None:
    """Replace the disk in the file by its largest Linux partition, if it is partitioned. Raises InvalidDiskInfo."""
    facts = _probe(path)
    if facts.get("TYPE"):
        return
    if not facts.get("PTTYPE"):
        raise exception.InvalidDiskInfo(reason="the image is neither a file system, nor a partitioned disk, nor a tar "
                                               "archive")
    try:
        table: dict[str, Any] = json.loads(qemuimg.run(["sfdisk", "--json", path], _TIMEOUT))["partitiontable"]
    except ValueError as error:  # not JSON: the names of partitions may contain any characters
        raise exception.InvalidDiskInfo(reason="the partition table of the image cannot be read") from error
    partitions = [item for item in table.get("partitions", []) if str(item.get("type", "")).upper() in _LINUX]
    if not partitions:
        raise exception.InvalidDiskInfo(reason="the image has no partition with a Linux file system")
    root = max(partitions, key=lambda item: int(item["size"]))
    sector = int(table.get("sectorsize", 512))
    whole = f"{path.removesuffix('.part')}.whole.part"
    os.rename(path, whole)
    try:
        qemuimg.run(["dd", f"if={whole}", f"of={path}", "bs=1M", "conv=sparse", "iflag=skip_bytes,count_bytes",
                     f"skip={int(root['start']) * sector}", f"count={int(root['size']) * sector}"],
                    qemuimg.COPY_TIMEOUT)
    finally:
        remove(whole)
    if not _probe(path).get("TYPE"):
        raise exception.InvalidDiskInfo(reason="the Linux partition of the image has no file system")


def _probe(path: str) -> dict[str, str]:
    """Return what blkid reports about the content of a file: TYPE of a file system, PTTYPE of a partition table."""
    output = qemuimg.run(["sh", "-c", 'blkid --probe --output export "$1" || [ $? -eq 2 ]', "blkid", path],
                         qemuimg.INFO_TIMEOUT)
    return dict(line.split("=", 1) for line in output.splitlines() if "=" in line)
