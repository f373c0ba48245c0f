"""qemu-img with limits on time and memory. The format is always given; qemu-img never probes it.

Tools that read images of tenants (info, measure, convert) run as [libvirt]images_user with open file descriptors, so
they cannot open other files of the host. Errors: DiskFull if the file system is full, InvalidDiskInfo otherwise. The
output of tools is not included in errors, because it could reveal information about the host."""

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

# Timeouts in seconds for reading a header, and for copying a large image.
INFO_TIMEOUT = 60
COPY_TIMEOUT = 4 * 3600
# Seconds of CPU time that a conversion may use per GiB of the disk, in addition to [libvirt]images_cpu_time_limit.
_CPU_PER_GIB = 60

# Exit code of prlimit and setpriv if the command does not exist.
_NO_SUCH_COMMAND = 127

_GIB = 1 << 30
_QCOW2_MAGIC = b"QFI\xfb"
_QCOW2_DATA_FILE = 1 << 2
_QCOW2_LUKS = 2
_QCOW2_BACKING_FORMAT = 0xE2792ACA


def run(command: list[str], timeout: float, cpu: int | None = None, length: int | None = None) -> str:
    """Run a tool on the service's own files with limits; return its standard output. ``cpu``: seconds of CPU time
    (None: limited by ``timeout`` only). ``length``: maximum file size in bytes."""
    limits = _limits(cpu) if length is None else [*_limits(cpu), f"--fsize={length}"]
    return _run(limits, command, timeout)


def info(path: str, image_format: str) -> dict[str, Any]:
    """Return the output of ``qemu-img info`` for an image read as ``image_format``, also while a guest uses the image.
    [libvirt]images_user must be able to read the file."""
    return _json_output(["qemu-img", "info", "-U", "--output=json", "-f", image_format], path)


def measure(path: str, image_format: str) -> int:
    """Return the maximum size in bytes of an image on a file system after conversion to raw (sparse) or qcow2.
    [libvirt]images_user must be able to read the file."""
    command = ["qemu-img", "measure", "--output=json", "-f", image_format, "-O", "qcow2"]
    return int(_json_output(command, path)["required"])


def create_overlay(path: str, base: str, base_format: str, size: int) -> None:
    """Create a qcow2 image of ``size`` bytes with base image ``base``."""
    run(["qemu-img", "create", "-q", "-f", "qcow2", "-F", base_format, "-b", base, path, str(size)], INFO_TIMEOUT)


def create(path: str, image_format: str, size: int) -> None:
    """Create an empty, sparse image of ``size`` bytes."""
    run(["qemu-img", "create", "-q", "-f", image_format, path, str(size)], INFO_TIMEOUT)


def resize(path: str, image_format: str, size: int) -> None:
    """Grow an image to ``size`` bytes; never shrinks it."""
    run(["qemu-img", "resize", "-q", "-f", image_format, path, str(size)], INFO_TIMEOUT)


def rebase(path: str, base: str, base_format: str) -> None:
    """Change the name of the base image in an overlay; both base images must have the same content."""
    run(["qemu-img", "rebase", "-u", "-f", "qcow2", "-F", base_format, "-b", base, path], INFO_TIMEOUT)


def convert(source: str, source_format: str, target: str, target_format: str, size: int, options: str = "") -> None:
    """Convert an image of a disk of ``size`` bytes to another format, sparse. Fails if the output exceeds most_bytes().
    [libvirt]images_user must be able to read the source. ``options``: of the target format, as for ``qemu-img -o``."""
    cpu = CONF.libvirt.images_cpu_time_limit + -(-size // _GIB) * _CPU_PER_GIB
    with open(source, "rb") as file, _writable_for_user(target) as made:
        _run_confined(["qemu-img", "convert", "-f", source_format, "-O", target_format,
                       *(["-o", options] if options else []), _fd_path(file), _fd_path(made)],
                      COPY_TIMEOUT, [file, made], cpu=cpu, length=most_bytes(size))


def flatten(source: str, target: str, source_format: str = "qcow2") -> None:
    """Merge a disk of a guest and its base images into one new qcow2 image."""
    size = Qcow2Header(source).virtual_size if source_format == "qcow2" else os.stat(source).st_size
    run(["qemu-img", "convert", "-q", "-f", source_format, "-O", "qcow2", source, target], COPY_TIMEOUT,
        length=most_bytes(size))


def flat_size(source: str, source_format: str = "qcow2") -> int:
    """Return the maximum size in bytes of the image that flatten() creates."""
    output = run(["qemu-img", "measure", "--output=json", "-f", source_format, "-O", "qcow2", source], INFO_TIMEOUT)
    return int(json.loads(output)["required"])


def most_bytes(size: int) -> int:
    """Return the maximum file size, in any format, of a disk of ``size`` bytes, including tables."""
    return size + size // 512 + (16 << 20)


def is_iso(path: str) -> bool:
    """Return True if the file has a CD-ROM file system."""
    with open(path, "rb") as file:
        file.seek(0x8001)
        return file.read(5) == b"CD001"


def user() -> tuple[int, int] | None:
    """Return the ids of [libvirt]images_user and its group, or None for the user of this process if it is not root.
    Raises InvalidInput if there is no such user."""
    name = str(CONF.libvirt.images_user or "")
    if os.geteuid() != 0 or not name:
        return None
    try:
        account = pwd.getpwnam(name)
    except KeyError as error:
        raise exception.InvalidInput(reason=f"[libvirt]images_user: there is no user {name}") from error
    return account.pw_uid, account.pw_gid


@contextlib.contextmanager
def _writable_for_user(path: str) -> Iterator[BinaryIO]:
    """Create an empty file that [libvirt]images_user may write; at the end of the block the service owns it again."""
    file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "r+b")
    with file:
        other = user()
        if other is not None:
            os.fchown(file.fileno(), *other)
        yield file
        if other is not None:
            os.fchown(file.fileno(), os.geteuid(), os.getegid())


def _json_output(command: list[str], path: str) -> dict[str, Any]:
    with open(path, "rb") as file:
        out = _run_confined([*command, _fd_path(file)], INFO_TIMEOUT, [file], cpu=CONF.libvirt.images_cpu_time_limit)
    return dict(json.loads(out))


def _fd_path(file: BinaryIO) -> str:
    """Return the path by which a child process that inherits the file opens it, without access to its directory."""
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
    LOG.warning("Command %s failed with exit status %s: %s", " ".join(command), done.returncode, output)
    if any(text in output.lower() for text in ("no space left on device", "disk quota exceeded", "file too large")):
        raise exception.DiskFull(reason=f"{tool} found no space left")
    if done.returncode == _NO_SUCH_COMMAND:
        raise exception.InvalidDiskInfo(reason=f"{tool} is not installed on the host")
    if done.returncode < 0:
        raise exception.InvalidDiskInfo(reason=f"{tool} was killed: it needed too much time or memory")
    raise exception.InvalidDiskInfo(reason=f"{tool} failed")


class Qcow2Header:
    """The required fields of a qcow2 header, read without a tool."""

    def __init__(self, path: str) -> None:
        """Read the header. Raises ValueError if the file is not a qcow2 image."""
        with open(path, "rb") as file:
            head = file.read(104)
            if len(head) < 72 or head[:4] != _QCOW2_MAGIC:
                raise ValueError(f"{path} is not a qcow2 image")
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
    """Return the text of a header extension. Extensions follow the header, each padded to 8 bytes."""
    file.seek(start)
    for _ in range(16):
        kind, length = struct.unpack(">II", file.read(8).ljust(8, b"\0"))
        if kind == 0:
            return None
        content = file.read(-(-min(length, 1 << 16) // 8) * 8)[:length]
        if kind == wanted:
            return content.decode("ascii", "replace")
    return None
