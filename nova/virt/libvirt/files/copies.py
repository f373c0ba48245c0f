"""Copies of a guest's files from another host, made on the destination host of a move.

A file gets its final name when it is complete, and the directory records the source disks of the copy. So a copy
continues after a crash, and files of an earlier copy are not used. Only the file names of the server are accepted, each
with a maximum size from the server's flavor and image. So the sum of the sizes is limited, too."""

import contextlib
import errno
import functools
import hashlib
import logging
import os
import re
import stat
import struct
import subprocess
from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO

import msgspec

from nova import exception
from nova.common import files
from nova.conf import CONF
from nova.objects.servers.instance import Instance
from nova.objects.servers.moves import DiskFile, DiskSource
from nova.virt.guest_files import directories, disk_server
from nova.virt.images import qemuimg
from nova.virt.images.image_formats import DISK_FORMATS
from nova.virt.images.imagecache import ImageCache
from nova.virt.images.qemuimg import most_bytes
from nova.virt.libvirt.files import disk_making, disks
from nova.virt.libvirt.files.disks import (
    CONFIG_DRIVE,
    KERNEL,
    NVRAM,
    RAMDISK,
    ROOT,
    ROOT_FILE_SYSTEM,
    SWAP,
    ephemeral_name,
    is_iso,
)

LOG = logging.getLogger(__name__)

# File in the directory of an unfinished copy, with the token of its source disks.
_COPIED_FROM = "copied-from"

# Rest of a cached image's file name after the image id: digests of its verification and of its source host, format.
_BASE = re.compile(r"(?P<variant>(-[0-9a-f]{32})?)(-from-[0-9a-f]{16})?\.(?P<format>raw|qcow2)")
_ORIGIN = 16  # hexadecimal digits of the digest of a source host

# A function that creates the file at a path.
Copier = Callable[[str], None]


def begin(uuid: str, token: str, host: str) -> str:
    """Return the guest's directory, empty or with files already copied from the same disks."""
    place = directories.directory(uuid)
    owner = directories.owner(place)
    mark = os.path.join(place, _COPIED_FROM)
    if os.path.isdir(place) and not (owner and owner.host == host and files.text_of(mark) == token):
        LOG.warning("[instance: %s] Removing the files that an earlier move left on this host", uuid)
        directories.take(uuid, host)
        directories.remove(uuid, host)
    directories.make(uuid, host)
    directories.once(place, _COPIED_FROM, functools.partial(directories.write, token))
    return place


def is_incomplete(uuid: str) -> bool:
    """Return True if the guest's directory holds an unfinished copy."""
    return os.path.exists(os.path.join(directories.directory(uuid), _COPIED_FROM))


def complete(uuid: str) -> None:
    """Mark the copy of the guest's files as complete."""
    directories.remove_files(uuid, [_COPIED_FROM])


def receive(instance: Instance, place: str, file: DiskFile, source: DiskSource, seen: str = "") -> None:
    """Copy one file to the directory ``place``. ``seen``: the file's directory on a shared file system, or "". Raises
    MigrationError if the file is not one of a guest, or names other files of this host: the source is not trusted."""
    check_name(file)
    copy = (functools.partial(_copy, os.path.join(seen, file.name), file.length) if seen else
            functools.partial(disk_server.fetch, instance.uuid, source, file.name, file.length))
    base = base_of(instance, file, source)
    directories.once(place, file.name, lambda path: _copy_on_base(copy, file, base, path))


def check_name(file: DiskFile) -> None:
    """Raise MigrationError unless files with this name and format move with guests."""
    if disks.format_to_copy(file.name) != file.format:
        raise exception.MigrationError(reason=f"{file.name} ({file.format}) is not a file of a server")


def base_of(instance: Instance, file: DiskFile, source: DiskSource) -> str:
    """Return the path of a disk's backing image in this host's cache, copied if missing; "" if the disk has none. An
    image copied from another host is never used to build servers here, and images of this host are backing images only
    for servers of the same image. Raises MigrationError."""
    if not file.base:
        return ""
    base = next((base for base in source.bases if base.name == file.base), None)
    image_id = instance.image_ref
    named = _BASE.fullmatch(file.base.removeprefix(image_id))
    if base is None or named is None or not file.base.startswith(image_id) or named["format"] != file.base_format:
        raise exception.MigrationError(reason=f"{file.name} has a backing file other than the server's image")
    cache = ImageCache(used=disks.bases_in_use)
    name = base.name
    if not os.path.exists(os.path.join(cache.directory, name)):
        origin = hashlib.sha256(f"{source.host}/{name}".encode()).hexdigest()[:_ORIGIN]
        name = f"{image_id}{named['variant']}-from-{origin}.{named['format']}"
    copy = functools.partial(disk_server.fetch, instance.uuid, source, base_name(base.name), base.length)
    path = cache.adopt(name, copy, base.length)
    if disks.virtual_size(path, file.base_format) != base.size:
        raise exception.MigrationError(reason=f"the image {base.name} has another size in the cache of this host")
    return path


# --- source ----------------------------------------------------------------------------------------------
def describe(place: str) -> tuple[list[DiskFile], dict[str, DiskFile]]:
    """Return the files in ``place`` that move with the guest, and their backing images by path."""
    moved: list[DiskFile] = []
    bases: dict[str, DiskFile] = {}
    for name in sorted(os.listdir(place)):
        kind = disks.format_to_copy(name)
        if kind is None:
            continue
        path = os.path.join(place, name)
        base, base_format = "", ""
        if kind == "qcow2":
            header = qemuimg.Qcow2Header(path)
            if header.backing and header.backing_format:
                base, base_format = os.path.basename(header.backing), header.backing_format
                bases[header.backing] = _described(header.backing, base_format)
        moved.append(_described(path, kind, base, base_format))
    return moved, bases


def serve(uuid: str, place: str, host: str, moved: list[DiskFile], bases: dict[str, DiskFile]) -> DiskSource:
    """Serve these files and their backing images until disk_server.stop()."""
    source = disk_server.serve(uuid, [(file.name, os.path.join(place, file.name)) for file in moved]
                               + [(base_name(base.name), path) for path, base in bases.items()], host)
    return msgspec.structs.replace(source, files=moved, bases=list(bases.values()))


def base_name(name: str) -> str:
    """Return the name under which a backing image is served."""
    return f"base/{name}"


def _described(path: str, kind: str, base: str = "", base_format: str = "") -> DiskFile:
    return DiskFile(name=os.path.basename(path), format=kind, length=os.stat(path).st_size,
                    size=disks.virtual_size(path, kind), base=base, base_format=base_format)


# --- copying ---------------------------------------------------------------------------------------------
def _copy(source: str, length: int, path: str) -> None:
    """Copy a local file of ``length`` bytes. Shares blocks (reflink) if the file system can."""
    with _opened(source, length) as file:
        command = ["prlimit", f"--fsize={length}", "--", "cp", "--reflink=auto", "--sparse=always",
                   f"/proc/self/fd/{file.fileno()}", path]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=qemuimg.COPY_TIMEOUT,
                           env={**os.environ, "LC_ALL": "C"}, pass_fds=[file.fileno()])
        except subprocess.CalledProcessError as error:
            if "No space left" in error.stderr:
                raise exception.DiskFull(reason="no space for the server's disks") from error
            raise exception.MigrationError(reason=f"{os.path.basename(source)} could not be copied") from error
    with open(path, "r+b") as made:
        os.fsync(made.fileno())


@contextlib.contextmanager
def _opened(path: str, length: int) -> Iterator[BinaryIO]:
    """Open a file that another host may have written, without following links. Raises MigrationError."""
    name = os.path.basename(path)
    try:
        file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb")
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOENT, errno.ENXIO):
            raise
        raise exception.MigrationError(reason=f"{name} does not match the description of the other host") from error
    with file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_size != length:
            raise exception.MigrationError(reason=f"{name} does not match the description of the other host")
        yield file


def keep(source: str, place: str, name: str) -> None:
    """Copy the file ``source`` to the file ``name`` in the directory ``place``, unless that file exists."""
    directories.once(place, name, functools.partial(_copy, source, os.stat(source).st_size))


def _copy_on_base(copy: Copier, file: DiskFile, base: str, path: str) -> None:
    """Copy a disk, and set its backing file to ``base``, the backing image on this host."""
    copy(path)
    if file.format != "qcow2":
        return
    try:
        header = qemuimg.Qcow2Header(path)
    except (ValueError, struct.error) as error:
        raise exception.MigrationError(reason=f"{file.name} is damaged") from error
    if header.data_file or (header.backing and not base):
        raise exception.MigrationError(reason=f"{file.name} refers to another file")
    if header.virtual_size != file.size:
        raise exception.MigrationError(
            reason=f"{file.name} of {header.virtual_size} bytes does not match the description of the other host")
    if base and (header.backing, header.backing_format) != (base, file.base_format):
        qemuimg.rebase(path, base, file.base_format)


_GIB, _MIB = 1 << 30, 1 << 20
# Maximum bytes of a config drive (a vfat drive has exactly this size), and of the UEFI variables.
_SMALL = 64 * _MIB


def check_allowed(instance: Instance, files: Sequence[DiskFile], bases: Sequence[DiskFile]) -> None:
    """Check the names and sizes of the server's files, and the backing image (in ``bases``) of its root disk, before a
    copy. Raises MigrationError."""
    if len({file.name for file in files}) < len(files):
        raise exception.MigrationError(reason="the other host sends two files with the same name")
    allowed = dict(_allowed(instance))
    for file in files:
        most = allowed.get(file.name)
        if most is None:
            raise exception.MigrationError(reason=f"{file.name} is not a file of the server")
        if file.name == ROOT:
            base = _base(file, bases)
            # The disk must not be smaller than its backing image, and the backing image not larger than the image.
            image = instance.image
            declared = (image.size or 0) if image is not None else 0
            _check_size(base, base.size, file.size)
            _check_size(base, base.length, max(declared, most_bytes(base.size), instance.flavor.root_gb * _GIB))
            virtual = (image.virtual_size or 0) if image is not None else 0
            if virtual or (declared and image is not None and DISK_FORMATS.get(image.disk_format or "") == "raw"):
                _check_size(base, base.size, most_bytes(max(declared, virtual)))
            most = most or base.size
        elif file.base:
            raise exception.MigrationError(reason=f"{file.name} has a backing image, which only root disks may have")
        if file.format == "raw":
            _check_size(file, file.length, most)
        else:
            _check_size(file, file.size, most)
            _check_size(file, file.length, most_bytes(file.size))


def _allowed(instance: Instance) -> Iterator[tuple[str, int]]:
    """Yield (name, maximum bytes) of the files that the server may have; 0 for a root disk: the size of its image."""
    if not instance.volume_backed:
        yield ROOT, 0 if is_iso(instance) else instance.flavor.root_gb * _GIB
        image = instance.image
        yield ROOT_FILE_SYSTEM, instance.flavor.root_gb * _GIB or (
            max(image.size or 0, image.virtual_size or 0) if image is not None else 0)
    for index, (size, _filesystem) in enumerate(disk_making.ephemerals(instance, instance.flavor)):
        yield ephemeral_name(index), size * _GIB
    yield SWAP, instance.flavor.swap * _MIB
    yield CONFIG_DRIVE, _SMALL
    yield NVRAM, _SMALL
    yield from dict.fromkeys(disks.TPM_STATES.values(), _MIB).items()
    yield KERNEL, CONF.compute.kernel_size_limit_mb * _MIB
    yield RAMDISK, CONF.compute.kernel_size_limit_mb * _MIB


def _base(file: DiskFile, bases: Sequence[DiskFile]) -> DiskFile:
    """Return the backing image of the disk; a DiskFile of zero bytes if the disk has none."""
    if not file.base:
        return DiskFile(name="")
    base = next((base for base in bases if base.name == file.base), None)
    if base is None:
        raise exception.MigrationError(reason=f"{file.name} has a backing file other than the server's image")
    return base


def _check_size(file: DiskFile, size: int, most: int) -> None:
    if not 0 <= size <= most:
        raise exception.MigrationError(
            reason=f"{file.name} of {size} bytes is larger than the server may have ({most} bytes)")
