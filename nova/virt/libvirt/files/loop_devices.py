"""Loop devices of containers. A container can only have block devices. This module creates loop devices for volumes
that are files; libvirt creates those for the container's own file systems.

A volume with a loop device is recorded as a link in state_path, by server and serial number. So its device is found
again, and removed, after a restart of nova-compute or of the host."""

import contextlib
import glob
import os
import shutil
from collections.abc import Iterator

import msgspec

from nova import exception
from nova.common.files import remove
from nova.conf import CONF
from nova.objects.base import is_canonical
from nova.objects.servers.instance import BlockDevice
from nova.objects.volumes.volume import VolumeConnection
from nova.virt.images import qemuimg

_DIRECTORY = "loop-devices"
# Directory of links to the file systems of containers: libvirt refuses paths of more than 63 bytes for loop devices.
_LINKS = "/run/nova-lxc"
_TIMEOUT = 30  # seconds of a losetup command


def connect(uuid: str, serial: str, device: BlockDevice) -> BlockDevice:
    """Return the volume of a container as a block device; a volume that is a file gets a loop device. A volume that is
    not connected keeps the loop device that it has. Raises InvalidDiskInfo."""
    volume = device.connection
    record = os.path.join(_records(uuid), _name(serial))
    if volume is None:
        if not os.path.lexists(record):
            return device
        volume = VolumeConnection(volume_id=device.volume_id or "", path=os.readlink(record))
    if volume.protocol == "block":
        return device
    if volume.protocol != "file" or volume.format != "raw" or volume.below or volume.key:
        raise exception.InvalidDiskInfo(reason=f"volume {volume.volume_id} is {_description(volume)}, and containers "
                                               "can only have raw files and block devices")
    if volume.shareable:
        raise exception.InvalidDiskInfo(reason="containers do not support multi-attached volumes that are files")
    os.makedirs(os.path.dirname(record), exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(record)
    os.symlink(volume.path, record)
    loop = _device_of(volume.path) or qemuimg.run(
        ["losetup", "--find", "--show", *(["--read-only"] if volume.read_only else []), volume.path],
        _TIMEOUT).strip()
    return msgspec.structs.replace(device, connection=msgspec.structs.replace(volume, protocol="block", path=loop))


def link(uuid: str, path: str) -> str:
    """Return a link with a short path to the file system ``path`` of the container."""
    os.makedirs(_LINKS, mode=0o711, exist_ok=True)
    short = os.path.join(_LINKS, f"{uuid}{os.path.splitext(path)[1]}")
    if not os.path.islink(short) or os.readlink(short) != path:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(short)
        os.symlink(path, short)
    return short


def device(uuid: str, serial: str) -> str | None:
    """Return the loop device of a container's volume, or None."""
    record = os.path.join(_records(uuid), _name(serial))
    return _device_of(os.readlink(record)) if os.path.lexists(record) else None


def refresh(loop: str) -> int:
    """Grow the loop device to the size of its file; return the size in bytes."""
    qemuimg.run(["losetup", "--set-capacity", loop], _TIMEOUT)
    return size(loop)


def size(loop: str) -> int:
    with open(f"/sys/block/{os.path.basename(loop)}/size", encoding="ascii") as file:
        return int(file.read()) * 512


def is_mounted(block_device: str) -> bool:
    """Return True if a file system on the device is mounted, in any mount namespace."""
    try:
        os.close(os.open(block_device, os.O_RDONLY | os.O_EXCL))
    except OSError:
        return os.path.exists(block_device)
    return False


def release(uuid: str, serial: str) -> None:
    """Remove the loop device of a volume, if the volume has one."""
    record = os.path.join(_records(uuid), _name(serial))
    if os.path.lexists(record):
        loop = _device_of(os.readlink(record))
        if loop is not None:
            qemuimg.run(["losetup", "--detach", loop], _TIMEOUT)
        os.unlink(record)


def release_all(uuid: str) -> None:
    """Remove the loop devices of all volumes of a container, and the links to its file systems."""
    for serial in list(_serials(uuid)):
        release(uuid, serial)
    shutil.rmtree(_records(uuid), ignore_errors=True)
    remove(*glob.glob(f"{_LINKS}/{uuid}.*"))


def _records(uuid: str) -> str:
    if not is_canonical(uuid):
        raise exception.InvalidInput(reason=f"{uuid} is not a uuid")
    return os.path.join(CONF.state_path, _DIRECTORY, uuid)


def _name(serial: str) -> str:
    return serial.replace("/", "_").lstrip(".") or "_"


def _serials(uuid: str) -> Iterator[str]:
    with contextlib.suppress(FileNotFoundError):
        yield from os.listdir(_records(uuid))


def _device_of(file: str) -> str | None:
    """Return the loop device of a file, or None."""
    if not os.path.exists(file):
        return None
    output = qemuimg.run(["losetup", "--noheadings", "--output", "NAME", "--associated", file], _TIMEOUT)
    return next(iter(output.split()), None)


def _description(volume: VolumeConnection) -> str:
    if volume.key:
        return "encrypted"
    return f"a {volume.format} file" if volume.protocol == "file" else f"of the protocol {volume.protocol}"
