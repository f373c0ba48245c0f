"""Copy-on-write files of User Mode Linux (format version 3).

Content: a header with the path, size and modification time of the backing file, a bitmap with a bit per sector (1: the
sector is in this file), and the sectors. The kernel refuses a backing file with another size or modification time.

The processes of the guest can write the whole file, also its header. So the host stores the path of the backing file in
a second file, the record, and reads the header only before the guest's first start."""

import os
import struct
from typing import BinaryIO

import numpy as np

from nova import exception
from nova.virt.images import qemuimg

_MAGIC, _VERSION, _FORMAT = 0x4F4F4F4D, 3, 0
_SECTOR, _ALIGNMENT, _PATH = 512, 4096, 4096
_HEADER = struct.Struct(f">IIIQIII{_PATH}s")
_CHUNK = 1 << 22
RECORD = ".base"  # suffix of the record of a copy-on-write file


class Layout:
    """The offsets in a copy-on-write file of a disk of ``size`` bytes."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.bitmap_at = _aligned(_HEADER.size)
        self.bitmap_length = -(-size // (8 * _SECTOR))
        self.data_at = _aligned(self.bitmap_at + self.bitmap_length)


def _aligned(offset: int) -> int:
    return -(-offset // _ALIGNMENT) * _ALIGNMENT


def create(path: str, base: str) -> None:
    """Create an empty copy-on-write file of the raw image ``base``."""
    status = os.stat(base)
    name = os.path.abspath(base)
    if len(os.fsencode(name)) >= _PATH:
        raise exception.InvalidDiskInfo(reason="the path of the image is too long")
    with open(path, "xb") as file:
        file.write(_header(name, status))
        file.truncate(Layout(status.st_size).data_at + status.st_size)


def record(path: str, target: str) -> None:
    """Write to ``target`` the record of a copy-on-write file that no guest has used yet."""
    with open(path, "rb") as file:
        size, base = _read_header(file)
    with open(target, "x", encoding="utf-8", errors="surrogateescape") as record_file:
        record_file.write(f"{size} {base}")


def base_of(path: str) -> str:
    """Return the path of the backing file. Raises InvalidDiskInfo if the file has no record."""
    return _recorded(path)[1]


def size_of(path: str) -> int:
    """Return the size of the disk in bytes. Raises InvalidDiskInfo if the file has no record."""
    return _recorded(path)[0]


def _recorded(path: str) -> tuple[int, str]:
    try:
        with open(path + RECORD, encoding="utf-8", errors="surrogateescape") as file:
            size, _, base = file.read().partition(" ")
        return int(size), base
    except (FileNotFoundError, ValueError) as error:
        raise exception.InvalidDiskInfo(reason="the record of the disk's image is missing or damaged") from error


def renew(path: str) -> None:
    """Write the header again with the current modification time of the backing file: the image cache may have fetched
    the same image again. Raises InvalidDiskInfo if the backing file is missing or has another size."""
    size, base = _recorded(path)
    try:
        status = os.stat(base)
    except FileNotFoundError as error:
        raise exception.InvalidDiskInfo(reason="the image of the disk is missing on the host") from error
    if status.st_size != size:
        raise exception.InvalidDiskInfo(reason="the size of the disk's image has changed on the host")
    with open(path, "r+b") as file:
        file.write(_header(base, status))


def _header(base: str, status: os.stat_result) -> bytes:
    return _HEADER.pack(_MAGIC, _VERSION, int(status.st_mtime), status.st_size, _SECTOR, _ALIGNMENT, _FORMAT,
                        os.fsencode(base))


def flatten(path: str, target: str) -> None:
    """Write the disk to the new raw file ``target``, sparse and without a backing file."""
    size, base = _recorded(path)
    layout = Layout(size)
    copy(base, target)
    with open(path, "rb") as file:
        file.seek(layout.bitmap_at)
        bitmap = file.read(layout.bitmap_length)
        if len(bitmap) < layout.bitmap_length:
            raise exception.InvalidDiskInfo(reason="the disk is damaged")
        bits = np.unpackbits(np.frombuffer(bitmap, np.uint8), bitorder="little")
        edges = np.flatnonzero(np.diff(np.concatenate(([0], bits, [0])).astype(np.int8)))
        with open(target, "r+b") as output:
            for first, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
                _copy_sectors(file, layout.data_at, output, first * _SECTOR, min(end * _SECTOR, size))
            output.truncate(size)


def copy(source: str, target: str, size: int | None = None) -> None:
    """Copy a raw image, sparse; shares blocks (reflink) if the file system can. ``size``: new size in bytes."""
    qemuimg.run(["cp", "--reflink=auto", "--sparse=always", "--no-preserve=all", source, target], qemuimg.COPY_TIMEOUT)
    if size is not None:
        os.truncate(target, size)


def _copy_sectors(file: BinaryIO, data_at: int, output: BinaryIO, start: int, end: int) -> None:
    file.seek(data_at + start)
    output.seek(start)
    while start < end:
        data = file.read(min(_CHUNK, end - start))
        if not data:
            raise exception.InvalidDiskInfo(reason="the disk is damaged")
        output.write(data)
        start += len(data)


def _read_header(file: BinaryIO) -> tuple[int, str]:
    """Return the size of the disk and the path of the backing file."""
    _magic, _version, _time, size, _sector, _alignment, _format, name = _HEADER.unpack(file.read(_HEADER.size))
    return size, os.fsdecode(name.rstrip(b"\0"))
