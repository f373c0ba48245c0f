"""Size limits for files received from another host, derived from the server's flavor and image.

Each file has a name that belongs to the server and a limit of its own, so their sum is limited, too."""

from collections.abc import Iterator, Sequence

from nova import exception
from nova.conf import CONF
from nova.objects.servers.instance import Instance
from nova.objects.servers.moves import DiskFile
from nova.virt.images.image_formats import DISK_FORMATS
from nova.virt.images.qemuimg import most_bytes
from nova.virt.libvirt.files import disk_making
from nova.virt.libvirt.files.disks import CONFIG_DRIVE, KERNEL, NVRAM, RAMDISK, ROOT, SWAP, ephemeral_name, is_iso

_GIB, _MIB = 1 << 30, 1 << 20
# Limits of a config drive (a vfat drive has this size) and of the variables of firmware.
_SMALL = 64 * _MIB


def check(instance: Instance, files: Sequence[DiskFile], bases: Sequence[DiskFile]) -> None:
    """Check the names and sizes of the server's files, and the backing image (in ``bases``) of its root disk, before a
    copy. Raises MigrationError."""
    if len({file.name for file in files}) < len(files):
        raise exception.MigrationError(reason="the other host sends a file more than once")
    allowed = dict(_allowed(instance))
    for file in files:
        most = allowed.get(file.name)
        if most is None:
            raise exception.MigrationError(reason=f"{file.name} is no file of the server")
        if file.name == ROOT:
            base = _base(file, bases)
            _check_base(instance, file, base)
            most = most or base.size
        elif file.base:
            raise exception.MigrationError(reason=f"{file.name} has a backing image, which only root disks may have")
        if file.format == "raw":
            _check(file, file.length, most)
        else:
            _check(file, file.size, most)
            _check(file, file.length, most_bytes(file.size))


def _allowed(instance: Instance) -> Iterator[tuple[str, int]]:
    """Return (name, bytes of the disk) of the files that a server may have; 0 for the root disk, which has the size of
    its image."""
    if not instance.volume_backed:
        yield ROOT, 0 if is_iso(instance) else instance.flavor.root_gb * _GIB
    for index, (size, _filesystem) in enumerate(disk_making.ephemerals(instance, instance.flavor)):
        yield ephemeral_name(index), size * _GIB
    yield SWAP, instance.flavor.swap * _MIB
    yield CONFIG_DRIVE, _SMALL
    yield NVRAM, _SMALL
    yield KERNEL, CONF.compute.kernel_size_limit_mb * _MIB
    yield RAMDISK, CONF.compute.kernel_size_limit_mb * _MIB


def _base(file: DiskFile, bases: Sequence[DiskFile]) -> DiskFile:
    """Return the backing image of the disk, of zero bytes if there is none."""
    if not file.base:
        return DiskFile(name="")
    base = next((base for base in bases if base.name == file.base), None)
    if base is None:
        raise exception.MigrationError(reason=f"{file.name} has a backing file other than the server's image")
    return base


def _check_base(instance: Instance, file: DiskFile, base: DiskFile) -> None:
    """Check the backing image: a disk is never smaller, and the file is no larger than a download of the image may be.
    (The space of the image cache is checked before.)"""
    image = instance.image
    declared = (image.size or 0) if image is not None else 0
    _check(base, base.size, file.size)
    _check(base, base.length, max(declared, most_bytes(base.size), instance.flavor.root_gb * _GIB))
    if image is not None and (image.virtual_size or (declared and DISK_FORMATS.get(image.disk_format or "") == "raw")):
        _check(base, base.size, most_bytes(max(declared, image.virtual_size or 0)))


def _check(file: DiskFile, size: int, most: int) -> None:
    if not 0 <= size <= most:
        raise exception.MigrationError(
            reason=f"{file.name} of {size} bytes is larger than the server may have ({most} bytes)")
