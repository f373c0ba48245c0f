"""What an image file is, found out in Python: before any tool reads it, and without opening another file.

Inspectors of oslo.utils tell the format and refuse what refers to other files. What they leave open, since they stop
at the first word where QEMU takes the next, is looked at here.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterator

from oslo_utils.imageutils import format_inspector
from oslo_utils.imageutils.format_inspector import FileInspector, ImageFormatError, SafetyCheckFailed

from nova import exception
from nova.virt.qemuimg import Qcow2Header

# Glance's disk formats and what QEMU calls them. Kernels, ramdisks and machine images are plain data.
DISK_FORMATS = {
    "raw": "raw", "ami": "raw", "aki": "raw", "ari": "raw", "iso": "raw",
    "qcow2": "qcow2", "vmdk": "vmdk", "vdi": "vdi", "vhd": "vpc", "vhdx": "vhdx",
}

_CHUNK = 256 << 10
# Where all that tells a format is, but for the footers of VMDK and VHD.
_HEAD = 16 << 20
_TAIL = 64 << 10

# By their first bytes, also those that no inspector knows or that it gave up.
_MAGICS = (
    (0, b"QFI\xfb", "qcow2"),
    (0, b"QED\x00", "qed"),
    (0, b"KDMV", "vmdk"),
    (0, b"COWD", "vmdk"),
    (0, b"# Disk DescriptorFile", "vmdk"),
    (0, b"vhdxfile", "vhdx"),
    (0, b"conectix", "vhd"),
    (0, b"WithoutFreeSpace", "parallels"),
    (0, b"WithouFreSpacExt", "parallels"),
    (0, b"LUKS\xba\xbe", "luks"),
    (0x40, b"\x7f\x10\xda\xbe", "vdi"),
    (0x8001, b"CD001", "iso"),
)
# What any disk may begin with.
_CONTENT = frozenset({"raw", "gpt"})

_SECTOR = 512
_VMDK_HEADER = struct.Struct("<4sIIQQQQIQQ")
_VMDK_GD_AT_END = 0xFFFFFFFFFFFFFFFF
# So much of it QEMU searches for the name of a parent, whatever length the header tells.
_VMDK_DESCRIPTOR = 20 * _SECTOR
_VHD_FOOTER = struct.Struct(">8s32xQQHBBI")
_VHD_FIXED, _VHD_DYNAMIC = 2, 3

_ELSEWHERE = "it refers to another file"


def check(path: str, disk_format: str | None) -> int:
    """The bytes of the disk that the image in the file is, as its header tells them.

    Raises ImageUnacceptable (without an id): its content is not in Glance's ``disk_format``, it is damaged or
    encrypted, or to read it other files would have to be read.
    """
    if disk_format not in DISK_FORMATS:
        raise _refuse(f"disk format {disk_format} is not supported")
    found = inspect(path)
    claimed = frozenset(found) - _CONTENT
    if disk_format == "vhd" and claimed <= {"iso"}:
        return _fixed_vhd(path)
    if DISK_FORMATS[disk_format] == "raw":
        if claimed - {"iso"}:
            raise _refuse(f"its content is in the format {', '.join(sorted(claimed))}, not {disk_format}")
        if disk_format == "iso" and not claimed:
            raise _refuse("its content is not in the format iso")
        return os.stat(path).st_size
    if claimed != {disk_format}:
        raise _refuse(f"its content is not in the format {disk_format}")
    inspector = found[disk_format]
    if inspector is None:
        raise _refuse(f"its content is not well-formed in the format {disk_format}")
    _check_safe(inspector, disk_format)
    more = {"qcow2": _check_qcow2, "vmdk": _check_vmdk, "vhd": _dynamic_vhd}.get(disk_format)
    try:
        return max(more(path) if more else 0, inspector.virtual_size)
    except (ValueError, struct.error, KeyError) as error:  # it is cut short somewhere
        raise _refuse(f"its content is not well-formed in the format {disk_format}") from error


def inspect(path: str) -> dict[str, FileInspector | None]:
    """The formats that the file may be taken for, with what looked at it (None: nothing understood it).

    "raw" and "gpt" (a partition table) are among them where they match.
    """
    inspectors = {name: kind() for name, kind in format_inspector.ALL_FORMATS.items()}
    for piece in _pieces(path):
        for name, inspector in list(inspectors.items()):
            try:
                inspector.eat_chunk(piece)
            except Exception:  # whatever it stumbled over: it is not that, or not well-formed
                del inspectors[name]
    found: dict[str, FileInspector | None] = {}
    for name, inspector in inspectors.items():
        inspector.finish()
        with contextlib.suppress(Exception):
            if inspector.format_match:
                found[name] = inspector
    with open(path, "rb") as file:
        head = file.read(_MAGICS[-1][0] + 16)
    for offset, magic, name in _MAGICS:
        if head.startswith(magic, offset):
            found.setdefault(name, None)
    return found


def _pieces(path: str) -> Iterator[bytes]:
    """The beginning of the file and its end."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        while file.tell() < _HEAD and (piece := file.read(_CHUNK)):
            yield piece
        if file.tell() < size:
            file.seek(max(file.tell(), size - _TAIL))
            yield file.read(_TAIL)


def _check_safe(inspector: FileInspector, disk_format: str) -> None:
    try:
        inspector.safety_check()
    except SafetyCheckFailed as error:
        if error.failures.keys() & {"backing_file", "data_file"}:
            raise _refuse(_ELSEWHERE) from error
        raise _refuse(f"it is not a safe {disk_format} ({', '.join(sorted(error.failures))})") from error
    except ImageFormatError as error:
        raise _refuse(f"its content is not well-formed in the format {disk_format}") from error


def _check_qcow2(path: str) -> int:
    header = Qcow2Header(path)
    if header.backing is not None or header.data_file:
        raise _refuse(_ELSEWHERE)
    if header.encrypted:
        raise _refuse("it is encrypted")
    return int(header.virtual_size)


def _check_vmdk(path: str) -> int:
    """One file with all the data: a header that counts sectors (without, QEMU follows the descriptor to other files),
    one type, no parent."""
    with open(path, "rb") as file:
        headers = [_VMDK_HEADER.unpack(file.read(_VMDK_HEADER.size))]
        _magic, _version, _flags, _sectors, _grain, start, length = headers[0][:7]
        if headers[0][9] == _VMDK_GD_AT_END:
            file.seek(-2 * _SECTOR, os.SEEK_END)
            headers.append(_VMDK_HEADER.unpack(file.read(_VMDK_HEADER.size)))
        file.seek(start * _SECTOR)
        text = file.read(max(min(length * _SECTOR, 1 << 20), _VMDK_DESCRIPTOR)).lower()
    sectors = [header[3] for header in headers]
    alone = all(sectors) and all(header[0] == b"KDMV" for header in headers)
    if not alone or b"parentfilenamehint" in text or text.count(b"createtype") != 1:
        raise _refuse(_ELSEWHERE)
    return int(max(sectors)) * _SECTOR


def _vhd_size(footer: bytes, kind: int) -> int:
    """The largest of what a VHD's footer says of its size: who made it decides what QEMU takes."""
    if len(footer) < _VHD_FOOTER.size or not footer.startswith(b"conectix"):
        raise _refuse("its content is not in the format vhd")
    _cookie, original, current, cylinders, heads, sectors, found = _VHD_FOOTER.unpack(footer[:_VHD_FOOTER.size])
    if found != kind:
        raise _refuse(_ELSEWHERE)
    return int(max(original, current, cylinders * heads * sectors * _SECTOR))


def _dynamic_vhd(path: str) -> int:
    with open(path, "rb") as file:
        return _vhd_size(file.read(_SECTOR), _VHD_DYNAMIC)


def _fixed_vhd(path: str) -> int:
    """A disk as it is with a footer: nothing but its end tells what it is."""
    with open(path, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _SECTOR))
        return _vhd_size(file.read(_SECTOR), _VHD_FIXED)


def _refuse(reason: str) -> exception.ImageUnacceptable:
    return exception.ImageUnacceptable(image_id="", reason=reason)
