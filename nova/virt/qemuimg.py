"""qemu-img, with its time and memory bounded and every format named: nothing is ever probed.

Errors: DiskFull when the file system is full, InvalidDiskInfo for everything else.
"""

from __future__ import annotations

import json
import logging
import os
import struct
import subprocess
from typing import Any, BinaryIO

from nova import exception
from nova.conf import CONF

LOG = logging.getLogger(__name__)

# Reading a header is a matter of seconds; copying a large image may take its time.
INFO_TIMEOUT = 60
COPY_TIMEOUT = 4 * 3600

_FULL = ("no space left on device", "disk quota exceeded", "file too large")

_QCOW2_MAGIC = b"QFI\xfb"
_QCOW2_DATA_FILE = 1 << 2
_QCOW2_BACKING_FORMAT = 0xE2792ACA
_MAGICS = (
    (0, _QCOW2_MAGIC, "qcow2"),
    (0, b"QED\x00", "qed"),
    (0, b"KDMV", "vmdk"),
    (0, b"COWD", "vmdk"),
    (0, b"# Disk DescriptorFile", "vmdk"),
    (0, b"vhdxfile", "vhdx"),
    (0, b"conectix", "vpc"),
    (0, b"WithoutFreeSpace", "parallels"),
    (0, b"WithouFreSpacExt", "parallels"),
    (0, b"LUKS\xba\xbe", "luks"),
    (0x40, b"\x7f\x10\xda\xbe", "vdi"),
    (0x8001, b"CD001", "iso"),
)


def run(command: list[str], timeout: float, cpu: int | None = None) -> str:
    """Run a tool on an image within the limits; its standard output.

    ``cpu``: seconds of CPU time (None: no limit but ``timeout``).
    """
    limits = [f"--as={CONF.libvirt.images_address_space_limit << 30}"]
    if cpu:
        limits.append(f"--cpu={cpu}")
    try:
        done = subprocess.run(["prlimit", *limits, "--", *command], capture_output=True, text=True, errors="replace",
                              timeout=timeout, env={**os.environ, "LC_ALL": "C"}, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired as late:
        raise exception.InvalidDiskInfo(reason=f"{command[0]} took longer than {timeout:g} seconds") from late
    if done.returncode == 0:
        return done.stdout
    output = (done.stderr or done.stdout).strip()
    LOG.warning("%s failed with %s: %s", " ".join(command), done.returncode, output)
    if any(text in output.lower() for text in _FULL):
        raise exception.DiskFull(reason=f"{command[0]} found no space left")
    if done.returncode < 0:
        raise exception.InvalidDiskInfo(reason=f"{command[0]} was killed: it needed too much time or memory")
    # the first line without the paths of this host
    reason = output.splitlines()[-1].rpartition(": ")[2] if output else f"exit code {done.returncode}"
    raise exception.InvalidDiskInfo(reason=f"{os.path.basename(command[0])}: {reason}")


def info(path: str, image_format: str) -> dict[str, Any]:
    """What ``qemu-img info`` says of an image that is read as ``image_format`` (also while a guest has it)."""
    out = run(["qemu-img", "info", "-U", "--output=json", "-f", image_format, path], INFO_TIMEOUT,
              cpu=CONF.libvirt.images_cpu_time_limit)
    return dict(json.loads(out))


def create_overlay(path: str, base: str, base_format: str, size: int) -> None:
    """A new qcow2 image of ``size`` bytes that stands on ``base``."""
    run(["qemu-img", "create", "-q", "-f", "qcow2", "-F", base_format, "-b", base, path, str(size)], INFO_TIMEOUT)


def create(path: str, image_format: str, size: int) -> None:
    """A new, empty, sparse image of ``size`` bytes."""
    run(["qemu-img", "create", "-q", "-f", image_format, path, str(size)], INFO_TIMEOUT)


def resize(path: str, image_format: str, size: int) -> None:
    """Make an image ``size`` bytes large, never smaller."""
    run(["qemu-img", "resize", "-q", "-f", image_format, path, str(size)], INFO_TIMEOUT)


def rebase(path: str, base: str, base_format: str) -> None:
    """An overlay stands on the same image under another name now."""
    run(["qemu-img", "rebase", "-u", "-f", "qcow2", "-F", base_format, "-b", base, path], INFO_TIMEOUT)


def convert(source: str, source_format: str, target: str, target_format: str) -> None:
    """Copy an image into another format, sparse."""
    run(["qemu-img", "convert", "-f", source_format, "-O", target_format, source, target], COPY_TIMEOUT)


def sniff(path: str) -> str | None:
    """The format that the first bytes of a file claim (None: no format that is known: raw)."""
    with open(path, "rb") as file:
        head = file.read(0x8100)
    for offset, magic, name in _MAGICS:
        if head[offset:offset + len(magic)] == magic:
            return name
    return None


class Qcow2Header:
    """The few fields of a qcow2 header that matter here, read without any tool."""

    def __init__(self, path: str) -> None:
        """Raises ValueError when the file is no qcow2 image."""
        with open(path, "rb") as file:
            head = file.read(104)
            if len(head) < 72 or head[:4] != _QCOW2_MAGIC:
                raise ValueError(f"{path} is no qcow2 image")
            version, backing_at, backing_size, _bits, self.virtual_size = struct.unpack(">IQIIQ", head[4:32])
            features = struct.unpack(">Q", head[72:80])[0] if version >= 3 and len(head) >= 80 else 0
            self.data_file = bool(features & _QCOW2_DATA_FILE)
            self.encrypted = struct.unpack(">I", head[32:36])[0] != 0
            self.backing: str | None = None
            self.backing_format: str | None = None
            if backing_at:
                length = struct.unpack(">I", head[100:104])[0] if version >= 3 and len(head) >= 104 else 72
                self.backing_format = _extension(file, length, _QCOW2_BACKING_FORMAT)
                file.seek(backing_at)
                self.backing = file.read(min(backing_size, 1023)).decode("utf-8", "surrogateescape")


def _extension(file: BinaryIO, start: int, wanted: int) -> str | None:
    """The text of a header extension; the extensions follow the header, each padded to 8 bytes."""
    file.seek(start)
    for _ in range(16):
        kind, length = struct.unpack(">II", file.read(8).ljust(8, b"\0"))
        if kind == 0:
            return None
        content = file.read(-(-min(length, 1 << 16) // 8) * 8)[:length]
        if kind == wanted:
            return content.decode("ascii", "replace")
    return None
