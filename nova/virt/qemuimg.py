"""qemu-img, with its time and memory bounded and every format named: nothing is ever probed.

What reads an image that a tenant sent (info, measure, convert) does so as [libvirt]images_user and is handed open
files: it reaches no other file that this user may not read. Errors: DiskFull when the file system is full,
InvalidDiskInfo for everything else; users are not told what a tool said, since that would tell them of the host.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import pwd
import struct
import subprocess
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

from nova import exception
from nova.conf import CONF

LOG = logging.getLogger(__name__)

# Reading a header is a matter of seconds; copying a large image may take its time.
INFO_TIMEOUT = 60
COPY_TIMEOUT = 4 * 3600
# Seconds of CPU time to convert a GiB.
_CPU_PER_GIB = 60

_FULL = ("no space left on device", "disk quota exceeded", "file too large")

# What prlimit and setpriv exit with when there is no such command.
_NO_SUCH_COMMAND = 127

_GIB = 1 << 30
_QCOW2_MAGIC = b"QFI\xfb"
_QCOW2_DATA_FILE = 1 << 2
_QCOW2_LUKS = 2
_QCOW2_BACKING_FORMAT = 0xE2792ACA


def run(command: list[str], timeout: float, cpu: int | None = None, length: int | None = None) -> str:
    """Run a tool on files of our own within the limits; its standard output.

    ``cpu``: seconds of CPU time (None: no limit but ``timeout``). ``length``: bytes that a file may become long.
    """
    limits = _limits(cpu) if length is None else [*_limits(cpu), f"--fsize={length}"]
    return _run(limits, command, timeout)


def info(path: str, image_format: str) -> dict[str, Any]:
    """What ``qemu-img info`` says of an image that is read as ``image_format`` (also while a guest has it).

    The file must be readable for [libvirt]images_user.
    """
    return _told(["qemu-img", "info", "-U", "--output=json", "-f", image_format], path)


def measure(path: str, image_format: str) -> int:
    """The bytes that an image takes at most on a file system, converted to raw (sparse) or qcow2.

    The file must be readable for [libvirt]images_user.
    """
    return int(_told(["qemu-img", "measure", "--output=json", "-f", image_format, "-O", "qcow2"], path)["required"])


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


def convert(source: str, source_format: str, target: str, target_format: str, size: int) -> None:
    """Copy an image, a disk of ``size`` bytes, into another format, sparse; not a byte more is written.

    The source must be readable for [libvirt]images_user.
    """
    cpu = CONF.libvirt.images_cpu_time_limit + -(-size // _GIB) * _CPU_PER_GIB
    with open(source, "rb") as file, _given(target) as made:
        _run_confined(["qemu-img", "convert", "-f", source_format, "-O", target_format, _lent(file), _lent(made)],
                      COPY_TIMEOUT, [file, made], cpu=cpu, length=most_bytes(size))


def flatten(source: str, target: str) -> None:
    """Copy a disk of ours and what it stands on (qcow2) into one new image of the same format."""
    run(["qemu-img", "convert", "-q", "-f", "qcow2", "-O", "qcow2", source, target], COPY_TIMEOUT,
        length=most_bytes(Qcow2Header(source).virtual_size))


def flat_size(source: str) -> int:
    """The bytes that the image which flatten() makes takes at most."""
    told = run(["qemu-img", "measure", "--output=json", "-f", "qcow2", "-O", "qcow2", source], INFO_TIMEOUT)
    return int(json.loads(told)["required"])


def most_bytes(size: int) -> int:
    """How long a file of any format may be that is a disk of ``size`` bytes: its tables take some, too."""
    return size + size // 512 + (16 << 20)


def is_iso(path: str) -> bool:
    """Whether the file has the file system of a CD-ROM."""
    with open(path, "rb") as file:
        file.seek(0x8001)
        return file.read(5) == b"CD001"


def user() -> tuple[int, int] | None:
    """The ids of [libvirt]images_user and its group; None: this process's own (it cannot become another).

    Raises InvalidInput: there is no such user.
    """
    name = str(CONF.libvirt.images_user or "")
    if os.geteuid() != 0 or not name:
        return None
    try:
        known = pwd.getpwnam(name)
    except KeyError as error:
        raise exception.InvalidInput(reason=f"[libvirt]images_user: there is no user {name}") from error
    return known.pw_uid, known.pw_gid


# --- inside ----------------------------------------------------------------------------------------
@contextlib.contextmanager
def _given(path: str) -> Iterator[BinaryIO]:
    """A new, empty file that [libvirt]images_user may write; ours again afterwards."""
    file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "r+b")
    with file:
        other = user()
        if other is not None:
            os.fchown(file.fileno(), *other)
        yield file
        if other is not None:
            os.fchown(file.fileno(), os.geteuid(), os.getegid())


def _told(command: list[str], path: str) -> dict[str, Any]:
    with open(path, "rb") as file:
        out = _run_confined([*command, _lent(file)], INFO_TIMEOUT, [file], cpu=CONF.libvirt.images_cpu_time_limit)
    return dict(json.loads(out))


def _lent(file: BinaryIO) -> str:
    """The name of an open file in a process that inherits it: whoever may not look into its directory may read it."""
    return f"/proc/self/fd/{file.fileno()}"


def _run_confined(command: list[str], timeout: float, files: Sequence[BinaryIO], cpu: int, length: int = 0) -> str:
    other = user()
    drop = [f"--reuid={other[0]}", f"--regid={other[1]}", "--clear-groups"] if other is not None else []
    return _run([*_limits(cpu), f"--fsize={length}", "--core=0", "--", "setpriv", *drop, "--no-new-privs"], command,
                timeout, files)


def _limits(cpu: int | None) -> list[str]:
    limits = [f"--as={CONF.libvirt.images_address_space_limit << 30}"]
    return ["prlimit", *limits, f"--cpu={cpu}"] if cpu else ["prlimit", *limits]


def _run(confine: list[str], command: list[str], timeout: float, files: Sequence[BinaryIO] = ()) -> str:
    tool = command[0]
    try:
        done = subprocess.run([*confine, "--", *command], capture_output=True, text=True, errors="replace",
                              timeout=timeout, stdin=subprocess.DEVNULL, pass_fds=[file.fileno() for file in files],
                              env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"})
    except subprocess.TimeoutExpired as late:
        raise exception.InvalidDiskInfo(reason=f"{tool} took longer than {timeout:g} seconds") from late
    if done.returncode == 0:
        return done.stdout
    output = (done.stderr or done.stdout).strip()
    LOG.warning("%s failed with %s: %s", " ".join(command), done.returncode, output)
    if any(text in output.lower() for text in _FULL):
        raise exception.DiskFull(reason=f"{tool} found no space left")
    if done.returncode == _NO_SUCH_COMMAND:
        raise exception.InvalidDiskInfo(reason=f"{tool} is not installed on the host")
    if done.returncode < 0:
        raise exception.InvalidDiskInfo(reason=f"{tool} was killed: it needed too much time or memory")
    raise exception.InvalidDiskInfo(reason=f"{tool} failed")


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
            cipher = struct.unpack(">I", head[32:36])[0]
            self.encrypted, self.luks = cipher != 0, cipher == _QCOW2_LUKS
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
