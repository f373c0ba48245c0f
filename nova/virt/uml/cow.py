"""Copy-on-write files of User Mode Linux (format version 3).

A header with the path, size and modification time of the backing file, a bitmap with a bit per sector (1: the sector is
in this file), and the sectors. The kernel refuses a backing file with another size or modification time."""

import os
import struct
from typing import BinaryIO

import numpy as np

from nova import exception
from nova.virt.images import qemuimg

_MAGIC, _VERSION, _FORMAT = 0x4F4F4F4D, 3, 0
_SECTOR, _ALIGNMENT, _PATH = 512, 4096, 4096
_HEADER = struct.Struct(f">IIIQIII{_PATH}s")
_TIME_AT = 8  # offset of the modification time of the backing file
_CHUNK = 1 << 22


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
    name = os.fsencode(os.path.abspath(base))
    if len(name) >= _PATH:
        raise exception.InvalidDiskInfo(reason="the path of the image is too long")
    layout = Layout(status.st_size)
    with open(path, "xb") as file:
        file.write(_HEADER.pack(_MAGIC, _VERSION, int(status.st_mtime), status.st_size, _SECTOR, _ALIGNMENT, _FORMAT,
                                name))
        file.truncate(layout.data_at + status.st_size)


def base_of(path: str) -> str | None:
    """Return the path of the backing file, or None if the file is a raw disk. The caller knows that the host wrote the
    file: a guest can write such a header into a raw disk."""
    with open(path, "rb") as file:
        return _read_header(file)[1]


def renew(path: str) -> None:
    """Record the present modification time of the backing file, which was copied again with the same content. Raises
    InvalidDiskInfo if the backing file is missing or has another size."""
    with open(path, "r+b") as file:
        size, base = _read_header(file)
        if base is None:
            raise exception.InvalidDiskInfo(reason="the disk is damaged")
        try:
            status = os.stat(base)
        except FileNotFoundError as error:
            raise exception.InvalidDiskInfo(reason="the image of the disk is missing on the host") from error
        if status.st_size != size:
            raise exception.InvalidDiskInfo(reason="the image of the disk has another size")
        file.seek(_TIME_AT)
        file.write(struct.pack(">I", int(status.st_mtime)))


def flatten(path: str, target: str) -> None:
    """Write the disk to the new raw file ``target``, sparse and without a backing file."""
    with open(path, "rb") as file:
        size, base = _read_header(file)
        if base is None:
            raise exception.InvalidDiskInfo(reason="the disk is damaged")
        layout = Layout(size)
        copy(base, target)
        file.seek(layout.bitmap_at)
        bits = np.unpackbits(np.frombuffer(file.read(layout.bitmap_length), np.uint8), bitorder="little")
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


def _read_header(file: BinaryIO) -> tuple[int, str | None]:
    """Return the size of the disk and the path of the backing file, or (0, None) for another file."""
    data = file.read(_HEADER.size)
    if len(data) < _HEADER.size:
        return 0, None
    magic, version, _time, size, sector, alignment, _format, name = _HEADER.unpack(data)
    if (magic, version, sector, alignment) != (_MAGIC, _VERSION, _SECTOR, _ALIGNMENT):
        return 0, None
    return size, os.fsdecode(name.rstrip(b"\0"))
