"""Checks of image files in Python, before any tool reads them, and without opening other files.

Inspectors of oslo.utils detect the format and refuse references to other files. They read some headers differently from
QEMU; this module adds the checks that they miss."""

import contextlib
import os
import struct
from collections.abc import Iterator

from oslo_utils.imageutils import format_inspector
from oslo_utils.imageutils.format_inspector import FileInspector, ImageFormatError, SafetyCheckFailed

from nova import exception
from nova.virt.images.qemuimg import Qcow2Header

# Glance's disk formats and their names in QEMU. Kernels, ramdisks and machine images are raw data.
DISK_FORMATS = {"raw": "raw", "ami": "raw", "aki": "raw", "ari": "raw", "iso": "raw", "qcow2": "qcow2", "vmdk": "vmdk",
                "vdi": "vdi", "vhd": "vpc", "vhdx": "vhdx"}

_CHUNK = 256 << 10
# Bytes read from the start of a file, and (for the footers of VMDK and VHD) from its end, to identify its format.
_HEAD = 16 << 20
_TAIL = 64 << 10

# Formats by their first bytes, including formats without an inspector.
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
    (0x8001, b"CD001", "iso"))
# Formats that the content of any raw disk may match.
_CONTENT = frozenset({"raw", "gpt"})

_SECTOR = 512
_VMDK_HEADER = struct.Struct("<4sIIQQQQIQQ")
_VMDK_GD_AT_END = 0xFFFFFFFFFFFFFFFF
# Bytes of the descriptor that QEMU searches for the name of a parent image, regardless of the length in the header.
_VMDK_DESCRIPTOR = 20 * _SECTOR
_VHD_FOOTER = struct.Struct(">8s32xQQHBBI")
_VHD_FIXED, _VHD_DYNAMIC = 2, 3

_ELSEWHERE = "the image refers to another file"


def check(path: str, disk_format: str | None) -> int:
    """Return the size in bytes of the virtual disk in an image file, from its header. Raises ImageUnacceptable (without
    an id) if the content does not match Glance's ``disk_format``, is damaged or encrypted, or refers to other files."""
    if disk_format not in DISK_FORMATS:
        raise _refuse(f"disk format {disk_format} is not supported")
    inspectors = inspect(path)
    claimed = frozenset(inspectors) - _CONTENT
    if disk_format == "vhd" and claimed <= {"iso"}:  # A fixed VHD has no header; _check_vhd checks its footer.
        return _check_vhd(path, _VHD_FIXED)
    if DISK_FORMATS[disk_format] == "raw":
        if claimed - {"iso"}:
            raise _refuse(f"its content is in the format {', '.join(sorted(claimed))}, not {disk_format}")
        if disk_format == "iso" and not claimed:
            raise _refuse("its content is not in the format iso")
        return os.stat(path).st_size
    if claimed != {disk_format}:
        raise _refuse(f"its content is not in the format {disk_format}")
    inspector = inspectors[disk_format]
    if inspector is None:
        raise _refuse(f"its content is not well-formed in the format {disk_format}")
    try:
        inspector.safety_check()
    except SafetyCheckFailed as error:
        if error.failures.keys() & {"backing_file", "data_file"}:
            raise _refuse(_ELSEWHERE) from error
        raise _refuse(f"it is not a safe {disk_format} ({', '.join(sorted(error.failures))})") from error
    except ImageFormatError as error:
        raise _refuse(f"its content is not well-formed in the format {disk_format}") from error
    more = {"qcow2": _check_qcow2, "vmdk": _check_vmdk, "vhd": _check_vhd}.get(disk_format)
    try:
        return max(more(path) if more else 0, inspector.virtual_size)
    except (ValueError, struct.error, KeyError) as error:  # the file is truncated
        raise _refuse(f"its content is not well-formed in the format {disk_format}") from error


def inspect(path: str) -> dict[str, FileInspector | None]:
    """Return the formats that the file matches, with their inspectors (None: no inspector accepted the file). Includes
    "raw" and "gpt" (a partition table) if they match."""
    inspectors = {name: kind() for name, kind in format_inspector.ALL_FORMATS.items()}
    for piece in _pieces(path):
        for name, inspector in list(inspectors.items()):
            try:
                inspector.eat_chunk(piece)
            except Exception:  # not in this format, or malformed
                del inspectors[name]
    matches: dict[str, FileInspector | None] = {}
    for name, inspector in inspectors.items():
        inspector.finish()
        with contextlib.suppress(Exception):
            if inspector.format_match:
                matches[name] = inspector
    with open(path, "rb") as file:
        head = file.read(_MAGICS[-1][0] + 16)
    for offset, magic, name in _MAGICS:
        if head.startswith(magic, offset):
            matches.setdefault(name, None)
    return matches


def _pieces(path: str) -> Iterator[bytes]:
    """Yield the beginning and the end of the file."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        while file.tell() < _HEAD and (piece := file.read(_CHUNK)):
            yield piece
        if file.tell() < size:
            file.seek(max(file.tell(), size - _TAIL))
            yield file.read(_TAIL)


def _check_qcow2(path: str) -> int:
    header = Qcow2Header(path)
    if header.backing is not None or header.data_file:
        raise _refuse(_ELSEWHERE)
    if header.encrypted:
        raise _refuse("the image is encrypted")
    return int(header.virtual_size)


def _check_vmdk(path: str) -> int:
    """Return the size in bytes. Raises ImageUnacceptable unless the file is self-contained: sparse headers with a
    sector count (otherwise QEMU opens the files that the descriptor names), one createType, and no parent."""
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


def _check_vhd(path: str, kind: int = _VHD_DYNAMIC) -> int:
    """Return the largest of the three sizes in a VHD footer, since QEMU chooses a size depending on the creator. A
    fixed VHD has the footer only at its end."""
    with open(path, "rb") as file:
        if kind == _VHD_FIXED:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _SECTOR))
        footer = file.read(_SECTOR)
    if len(footer) < _VHD_FOOTER.size or not footer.startswith(b"conectix"):
        raise _refuse("its content is not in the format vhd")
    _cookie, original, current, cylinders, heads, sectors, disk_type = _VHD_FOOTER.unpack(footer[:_VHD_FOOTER.size])
    if disk_type != kind:
        raise _refuse(_ELSEWHERE)
    return int(max(original, current, cylinders * heads * sectors * _SECTOR))


def _refuse(reason: str) -> exception.ImageUnacceptable:
    return exception.ImageUnacceptable(image_id="", reason=reason)
