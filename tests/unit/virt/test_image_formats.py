"""Images are identified by their content before any tool opens them, and refer to no other file."""

from __future__ import annotations

import pathlib
import struct

import pytest

from nova import exception
from nova.virt.images import image_formats

MIB = 1 << 20
SECTOR = 512
GD_AT_END = (1 << 64) - 1
DESCRIPTOR = b"""# Disk DescriptorFile
version=1
CID=873fc090
parentCID=ffffffff
createType="monolithicSparse"
# Extent description
RW 16384 SPARSE "disk.vmdk"
# The Disk Data Base
#DDB
ddb.virtualHWVersion = "4"
"""


def vmdk(descriptor: bytes = DESCRIPTOR, sectors: int = 16384, length: int = 20, directory: int = 21,
         footer: int | None = None) -> bytes:
    def header(count: int, where: int) -> bytes:
        return struct.pack("<4sIIQQQQIQQ", b"KDMV", 1, 3, count, 128, 1, length, 512, 0, where).ljust(SECTOR, b"\0")

    made = header(sectors, GD_AT_END if footer is not None else directory) + descriptor.ljust(20 * SECTOR, b"\0")
    made = made.ljust(MIB, b"\0")
    if footer is None:
        return made
    marker = struct.pack("<QII", 0, 0, 3).ljust(SECTOR, b"\0")
    return made + marker + header(footer, directory) + bytes(SECTOR)


def qcow2(backing: bytes = b"", features: int = 0, crypt: int = 0, size: int = 8 * MIB, version: int = 3) -> bytes:
    start = 512 if backing else 0
    head = struct.pack(">4sIQIIQIIQQIIQQQQII", b"QFI\xfb", version, start, len(backing), 16, size, crypt,
                       1, 0x30000, 0x10000, 1, 0, 0, features, 0, 0, 4, 104)
    return (head.ljust(512, b"\0") + backing).ljust(MIB, b"\0")


def vhd(kind: int, size: int = 8 * MIB, geometry: tuple[int, int, int] = (240, 4, 17)) -> bytes:
    return struct.pack(">8s32xQQHBBI", b"conectix", size, size, *geometry, kind).ljust(SECTOR, b"\0")


def check(place: pathlib.Path, content: bytes, disk_format: str | None) -> int:
    path = place / "image"
    path.write_bytes(content)
    return image_formats.check(str(path), disk_format)


@pytest.mark.parametrize(("content", "disk_format", "size"), [
    (b"data".ljust(MIB, b"\0"), "raw", MIB),
    (b"#!ipxe\nchain http://boot\n".ljust(600, b" ") + "ü".encode() * MIB, "raw", 600 + 2 * MIB),
    (b"\x1f\x8b".ljust(MIB, b"\0"), "ari", MIB),
    (bytes(510) + b"\x55\xaa" + bytes(MIB), "raw", MIB + 512),
    (bytes(0x8001) + b"CD001" + bytes(MIB), "iso", 0x8006 + MIB),
    (bytes(0x8001) + b"CD001" + bytes(MIB), "raw", 0x8006 + MIB),
    (qcow2(), "qcow2", 8 * MIB),
    (vmdk(), "vmdk", 8 * MIB),
    (vmdk(sectors=4096, footer=16384), "vmdk", 8 * MIB),
    (vhd(3) + bytes(MIB), "vhd", 240 * 4 * 17 * SECTOR),
    (bytes(8 * MIB) + vhd(2), "vhd", 240 * 4 * 17 * SECTOR),
])
def test_disk_size_is_read_from_the_image_header(tmp_path: pathlib.Path, content: bytes, disk_format: str,
                                                 size: int) -> None:
    assert check(tmp_path, content, disk_format) == max(size, 8 * MIB if disk_format == "vhd" else 0)


@pytest.mark.parametrize(("content", "disk_format"), [
    # The format differs from the declared format, or is not supported.
    (qcow2(), "raw"), (vmdk(), "raw"), (vmdk(), "qcow2"), (b"COWD" + bytes(MIB), "vmdk"), (b"COWD" + bytes(MIB), "raw"),
    (b"QED\0" + bytes(MIB), "raw"), (b"LUKS\xba\xbe" + bytes(MIB), "raw"), (b"WithoutFreeSpace" + bytes(MIB), "raw"),
    (bytes(MIB), "iso"), (bytes(MIB), "vhd"), (bytes(MIB), "vhdx"), (b"vhdxfile" + bytes(MIB), "vhdx"),
    (b"vhdxfile" + bytes(MIB), "raw"), (b"KDMV" + bytes(MIB), "raw"), (bytes(MIB), "ploop"), (bytes(MIB), None),
    (b"", "qcow2"), (b"QFI\xfb", "qcow2"), (b"KDMV", "vmdk"), (DESCRIPTOR.ljust(MIB, b"\0"), "raw"),
    # Two formats in the same file.
    (qcow2()[:0x8001] + b"CD001" + bytes(MIB), "qcow2"), (qcow2()[:0x8001] + b"CD001" + bytes(MIB), "iso"),
    # References to other files.
    (qcow2(backing=b"/etc/shadow"), "qcow2"), (qcow2(features=4), "qcow2"), (qcow2(features=1 << 40), "qcow2"),
    (qcow2(version=1), "qcow2"), (qcow2(crypt=2), "qcow2"),
    (DESCRIPTOR, "vmdk"), (DESCRIPTOR.replace(b"monolithicSparse", b"monolithicFlat"), "vmdk"),
    (vmdk(DESCRIPTOR.replace(b"monolithicSparse", b"monolithicFlat")), "vmdk"),
    (vmdk(DESCRIPTOR.replace(b"disk.vmdk", b"/etc/shadow")), "vmdk"),
    (vmdk(sectors=0), "vmdk"), (vmdk(footer=0), "vmdk"),
    (vmdk(b'createtype="monolithicsparse"\n' + DESCRIPTOR.replace(b"monolithicSparse", b"monolithicFlat")), "vmdk"),
    (vmdk(DESCRIPTOR + b'parentFileNameHint="/etc/shadow"\n'), "vmdk"),
    # QEMU reads beyond the length in the header.
    (vmdk(DESCRIPTOR.ljust(SECTOR, b"\n") + b'parentFileNameHint="secret.raw"\n', length=1), "vmdk"),
    (vhd(4) + bytes(MIB), "vhd"), (bytes(MIB) + vhd(4), "vhd"),
])
def test_image_of_another_format_or_with_external_references_is_refused(tmp_path: pathlib.Path, content: bytes,
                                                                        disk_format: str | None) -> None:
    with pytest.raises(exception.ImageUnacceptable) as refusal:
        check(tmp_path, content, disk_format)
    assert "/" not in refusal.value.message


def test_largest_declared_disk_size_is_returned(tmp_path: pathlib.Path) -> None:
    assert check(tmp_path, vmdk(sectors=1 << 50), "vmdk") == SECTOR << 50
    assert check(tmp_path, qcow2(size=1 << 62), "qcow2") == 1 << 62
    assert check(tmp_path, vhd(3, size=1 << 50) + bytes(MIB), "vhd") == 1 << 50
