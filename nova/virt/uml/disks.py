"""The local disks of guests: a copy-on-write root disk on a cached raw image, and raw disks.

A raw disk is never opened as a copy-on-write file, since its guest could have written a header that names any file of
the host. The file name alone determines the format."""

import functools
import os
from collections.abc import Callable

from nova import exception
from nova.common.files import remove
from nova.conf import CONF
from nova.objects.accounts.flavor import Flavor, disk_too_small
from nova.objects.requirements import local_disks
from nova.objects.servers.instance import Instance
from nova.operations.framework.guest_driver import BootFiles
from nova.virt.guest_files import directories
from nova.virt.images import qemuimg
from nova.virt.images.imagecache import ImageCache, format_of
from nova.virt.uml import cow

# Root disks: copy-on-write, or raw (moved and resized disks).
COW, RAW = "disk.cow", "disk"
RESCUE = "disk.rescue.cow"
SWAP, CONFIG_DRIVE, RAMDISK, RESCUE_RAMDISK = "disk.swap", "disk.config", "ramdisk", "ramdisk.rescue"
OF_RESCUE = (RESCUE, RESCUE + cow.RECORD, RESCUE_RAMDISK)
_EPHEMERAL = "disk.eph"
_GIB, _MIB = 1 << 30, 1 << 20
_MKFS = {name: [f"mkfs.{name}", "-q", "-F", "-L"] for name in ("ext2", "ext3", "ext4")} | {
    "xfs": ["mkfs.xfs", "-q", "-f", "-L"], "vfat": ["mkfs.vfat", "-n"]}


def ephemeral_name(index: int) -> str:
    return f"{_EPHEMERAL}{index}"


def is_ephemeral(name: str) -> bool:
    return name.startswith(_EPHEMERAL) and name.removeprefix(_EPHEMERAL).isdigit()


def root_of(place: str) -> str | None:
    """Return the name of the root disk in the guest's directory, or None if it has none."""
    return next((name for name in (RAW, COW) if os.path.exists(os.path.join(place, name))), None)


def present(place: str) -> list[str]:
    """Return the names of the guest's own disks, in the order in which the guest sees them."""
    names = [root_of(place)]
    index = 0
    while os.path.exists(os.path.join(place, ephemeral_name(index))):
        names.append(ephemeral_name(index))
        index += 1
    names += [name for name in (SWAP, CONFIG_DRIVE) if os.path.exists(os.path.join(place, name))]
    return [name for name in names if name]


def size_of(path: str) -> int:
    """Return the size in bytes of a guest's disk."""
    return cow.size_of(path) if path.endswith(".cow") else os.stat(path).st_size


def bases_in_use() -> set[str]:
    """Return the paths of the backing files of this host's guests. Raises OSError if a record cannot be read."""
    bases = set()
    for path in directories.all_files():
        if os.path.basename(path) in (COW + cow.RECORD, RESCUE + cow.RECORD):
            try:
                bases.add(cow.base_of(path.removesuffix(cow.RECORD)))
            except exception.InvalidDiskInfo as error:
                if os.path.exists(path):  # not removed meanwhile
                    raise OSError(f"{path} is damaged") from error
    return bases


# --- creation ------------------------------------------------------------------------------------------
def make(instance: Instance, files: BootFiles, host: str) -> None:
    """Create missing disks, and keep existing ones. ``host`` becomes the owner of the disks. Raises FlavorDiskTooSmall,
    InvalidDiskInfo, DiskFull."""
    with directories.full_disk():
        place = directories.make(instance.uuid, host)
        made = builders(instance, files)
        if not os.path.exists(os.path.join(place, COW)):
            remove(os.path.join(place, COW + cow.RECORD))  # left over from a crash
        if os.path.exists(os.path.join(place, RAW)):
            made.pop(COW + cow.RECORD, None)
        for name, build in made.items():
            if not (name in (COW, RAW) and root_of(place)):
                directories.once(place, name, build)


def make_anew(instance: Instance, files: BootFiles, host: str, token: str, keep_ephemerals: bool,
              give_up: Callable[[], None]) -> None:
    """Create all disks of a guest again, and replace the existing ones after ``give_up()`` has removed the guest.
    Raises the errors of make(), before anything is removed."""
    with directories.full_disk():
        place = directories.make(instance.uuid, host)
        retained = {name for name in os.listdir(place) if keep_ephemerals and is_ephemeral(name)}
        made = {name: build for name, build in builders(instance, files).items() if name not in retained}
        directories.replace(place, made, retained, token, give_up)


def make_rescue(instance: Instance, files: BootFiles, host: str) -> None:
    """Create the rescue disk, in addition to the guest's own disks."""
    if not files.root:
        raise exception.InstanceNotRescuable(instance_id=instance.uuid, reason="the rescue image is missing")
    with directories.full_disk():
        place = directories.make(instance.uuid, host)
        directories.remove_files(instance.uuid, OF_RESCUE)
        directories.once(place, RESCUE, functools.partial(_make_root, files.root, files.root_format, 0))
        directories.once(place, RESCUE + cow.RECORD, _record)
        if files.ramdisk:
            directories.once(place, RESCUE_RAMDISK, functools.partial(cow.copy, files.ramdisk))


def builders(instance: Instance, files: BootFiles) -> dict[str, Callable[[str], None]]:
    """Return the function that creates each file of the guest, by file name."""
    made: dict[str, Callable[[str], None]] = {}
    if files.root:
        made[RAW if files.alone else COW] = functools.partial(
            _make_root, files.root, files.root_format, instance.flavor.root_gb * _GIB, alone=files.alone)
        if not files.alone:
            made[COW + cow.RECORD] = _record
    for name, source in ((RAMDISK, files.ramdisk), (CONFIG_DRIVE, files.config_drive)):
        if source:
            made[name] = functools.partial(cow.copy, source)
    for index, (size, filesystem) in enumerate(ephemerals(instance, instance.flavor)):
        made[ephemeral_name(index)] = functools.partial(_format, f"ephemeral{index}", size * _GIB, filesystem)
    if swap := local_disks.swap_mb(instance.block_devices, instance.flavor):
        made[SWAP] = functools.partial(_format, "swap", swap * _MIB, "swap")
    return made


def ephemerals(instance: Instance, flavor: Flavor) -> list[tuple[int, str]]:
    """Return (GiB, file system) of each ephemeral disk."""
    default = CONF.default_ephemeral_format or "ext4"
    return [(size, filesystem or default)
            for size, filesystem in local_disks.ephemerals(instance.block_devices, flavor)]


def _make_root(image: str, image_format: str, size: int, path: str, alone: bool = False) -> None:
    if not os.path.isfile(image):
        raise exception.InvalidDiskInfo(reason="the server's image is not in the image cache of the host")
    base = _raw_base(image, format_of(image) or image_format, size)
    if alone:
        cow.copy(base, path)
    else:
        cow.create(path, base)


def _record(path: str) -> None:
    """Write the record of a new copy-on-write disk, which is a .part file beside the old disk during a rebuild."""
    disk = path.removesuffix(f"{cow.RECORD}.part")
    cow.record(f"{disk}.part" if os.path.exists(f"{disk}.part") else disk, path)


def _raw_base(image: str, image_format: str, size: int) -> str:
    """Return the path of a raw image of ``size`` bytes (0: the image's size) in the cache: the image itself, or a raw
    copy of that size. (A copy-on-write disk always has the size of its backing file.)"""
    have = (os.stat(image).st_size if image_format == "raw" else qemuimg.Qcow2Header(image).virtual_size)
    want = size or -(-have // 512) * 512
    if have > want:
        raise disk_too_small(want, have)
    if image_format == "raw" and have == want:
        return image

    def derive(path: str) -> None:
        if image_format == "raw":
            cow.copy(image, path, want)
        else:
            qemuimg.convert(image, image_format, path, "raw", have)
            os.truncate(path, want)

    stem = os.path.basename(image).rpartition(".")[0] or os.path.basename(image)
    cache = ImageCache(used=bases_in_use)
    return cache.adopt(f"{stem}-{want}.raw", derive, os.stat(image).st_blocks * 512 if image_format == "raw" else have)


def _format(label: str, size: int, filesystem: str, path: str) -> None:
    command = ["mkswap", "-q", "-L", label] if filesystem == "swap" else [*_MKFS.get(filesystem, ()), label]
    if len(command) == 1:
        raise exception.InvalidDiskInfo(reason=f"file system {filesystem} of a disk is not supported")
    with open(path, "wb") as file:
        file.truncate(size)
    qemuimg.run([*command, path], qemuimg.INFO_TIMEOUT * 10)


# --- sizes -----------------------------------------------------------------------------------------------
def check_growth(place: str, instance: Instance, flavor: Flavor) -> None:
    """Raise ResizeError if a disk would have to shrink or disappear."""
    root = root_of(place)
    if root:
        _check("root", size_of(os.path.join(place, root)), flavor.root_gb * _GIB)
    wanted = ephemerals(instance, flavor)
    have = [name for name in present(place) if is_ephemeral(name)]
    if len(wanted) < len(have):
        raise exception.ResizeError(reason=f"the flavor {flavor.name} has fewer ephemeral disks than the server")
    for name, (size, _filesystem) in zip(have, wanted, strict=False):
        _check("ephemeral", size_of(os.path.join(place, name)), size * _GIB)


def grow(place: str, instance: Instance) -> None:
    """Grow the disks to the sizes of the instance. A swap disk of another size is removed: make() creates a new one."""
    root = root_of(place)
    if root and size_of(os.path.join(place, root)) < instance.flavor.root_gb * _GIB:
        flatten_root(place)
        os.truncate(os.path.join(place, RAW), instance.flavor.root_gb * _GIB)
    for name, (size, _filesystem) in zip([name for name in present(place) if is_ephemeral(name)],
                                         ephemerals(instance, instance.flavor), strict=False):
        if size_of(os.path.join(place, name)) < size * _GIB:
            os.truncate(os.path.join(place, name), size * _GIB)
    swap = os.path.join(place, SWAP)
    if os.path.exists(swap) and size_of(swap) != local_disks.swap_mb(instance.block_devices, instance.flavor) * _MIB:
        os.unlink(swap)


def flatten_root(place: str) -> None:
    """Convert the root disk of a stopped guest to a raw file without a backing file. Succeeds if it is one already."""
    path = os.path.join(place, COW)
    if not os.path.exists(path):
        return
    directories.once(place, RAW, functools.partial(cow.flatten, path))
    remove(path, path + cow.RECORD)


def _check(kind: str, have: int, want: int) -> None:
    if want and want < have:
        raise exception.ResizeError(
            reason=f"the {kind} disk of {have / _GIB:g} GiB cannot shrink to {want / _GIB:g} GiB")
