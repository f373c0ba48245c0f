"""Creation of the files of a guest, and growth of its disks to the sizes of another flavor. Disks never shrink."""

import functools
import os
import shutil
from collections.abc import Callable

import msgspec

from nova import exception
from nova.common.files import remove
from nova.conf import CONF
from nova.objects.accounts.flavor import Flavor, disk_too_small
from nova.objects.images.image import Image
from nova.objects.requirements import local_disks
from nova.objects.servers.instance import Instance
from nova.operations.framework.guest_driver import BootFiles
from nova.virt.driver import rescue_disk_gb
from nova.virt.guest_files import directories
from nova.virt.images import qemuimg
from nova.virt.images.imagecache import format_of
from nova.virt.libvirt.files import container_files, disks
from nova.virt.libvirt.files.disks import LocalDisk, LocalDisks, ephemeral_name, is_iso, virtual_size

_GIB = 1 << 30
_MIB = 1 << 20
_MKFS_TIMEOUT = 600

# Commands that create a file system with a label.
_MKFS = {**{name: [f"mkfs.{name}", "-q", "-F", "-L"] for name in ("ext2", "ext3", "ext4")},
         "xfs": ["mkfs.xfs", "-q", "-f", "-L"], "vfat": ["mkfs.vfat", "-n"],
         "ntfs": ["mkfs.ntfs", "-q", "-F", "-f", "-L"]}


def make(instance: Instance, files: BootFiles, host: str) -> None:
    """Create missing files of a guest; existing files are kept. ``host`` becomes the owner of the files. Raises
    FlavorDiskTooSmall, InvalidDiskInfo, DiskFull."""
    with directories.full_disk():
        place = directories.make(instance.uuid, host)
        for name, build in _builders(instance, files).items():
            directories.once(place, name, build)
        drive = os.path.join(place, disks.CONFIG_DRIVE)
        if os.path.exists(drive):
            os.chmod(drive, 0o600)  # the caller may have created the config drive in the directory, with another mode


def make_anew(instance: Instance, files: BootFiles, host: str, token: str, keep_ephemerals: bool,
              give_up: Callable[[], None]) -> None:
    """Create all files of a guest again, and replace the existing ones after ``give_up()`` has removed the guest.
    ``keep_ephemerals``: keep existing ephemeral disks. Raises the errors of make(), before anything is removed."""
    with directories.full_disk():
        place = directories.make(instance.uuid, host)
        retained = {name for name in os.listdir(place) if keep_ephemerals and disks.is_ephemeral(name)}
        builders = {name: build for name, build in _builders(instance, files).items() if name not in retained}
        directories.replace(place, builders, retained, token, give_up)


def make_rescue(instance: Instance, image: Image, files: BootFiles, definition: str, host: str) -> None:
    """Create the files of a rescue from ``image``, in addition to the guest's own. ``definition``: the guest's current
    definition, stored for the end of the rescue. Raises InstanceNotRescuable, and the errors of make()."""
    most = rescue_disk_gb(instance)
    # The download checks the size, too, but not that of an image which was in the cache already.
    if files.root and most and os.path.exists(files.root) and virtual_size(
            files.root, format_of(files.root) or files.root_format) > most * _GIB:
        raise exception.InstanceNotRescuable(
            instance_id=instance.uuid, reason=f"image {image.id} is larger than the rescue disk, which may have "
                                              f"{most} GiB on this host")
    # The disk gets the size of the image, because the flavor has no sizes.
    bare = msgspec.structs.replace(instance.flavor, root_gb=0, ephemeral_gb=0, swap=0)
    rescued = msgspec.structs.replace(instance, image=image, flavor=bare, block_devices=[])
    builders = {disks.RENAMED[name]: build for name, build in _builders(rescued, files).items()
                if name in disks.RENAMED}
    with directories.full_disk():
        place = directories.make(instance.uuid, host)
        directories.once(place, disks.BEFORE_RESCUE, functools.partial(directories.write, definition))
        directories.remove_files(instance.uuid, disks.RENAMED.values())  # files of a failed rescue with another image
        for name, build in builders.items():
            directories.once(place, name, build)


def _builders(instance: Instance, files: BootFiles) -> dict[str, Callable[[str], None]]:
    """Return the function that creates each file of the guest, by file name."""
    if CONF.libvirt.virt_type == "lxc":
        return container_files.builders(instance, files)
    builders: dict[str, Callable[[str], None]] = {}
    if files.root:
        root, root_format = files.root, format_of(files.root) or files.root_format
        builders[disks.ROOT] = lambda path: _make_root(path, root, root_format, instance, files.alone)
    for name, source in ((disks.KERNEL, files.kernel), (disks.RAMDISK, files.ramdisk),
                         (disks.CONFIG_DRIVE, files.config_drive)):
        if source:
            builders[name] = functools.partial(_copy, source)
    for index, (size, filesystem) in enumerate(ephemerals(instance, instance.flavor)):
        builders[ephemeral_name(index)] = functools.partial(_format, f"ephemeral{index}", size * _GIB, filesystem)
    if swap := local_disks.swap_mb(instance.block_devices, instance.flavor):
        builders[disks.SWAP] = functools.partial(_format, "swap", swap * _MIB, "swap")
    return builders


def ephemerals(instance: Instance, flavor: Flavor) -> list[tuple[int, str]]:
    """Return (GiB, file system) of each ephemeral disk."""
    default = CONF.default_ephemeral_format or "ext4"
    return [(size, filesystem or default)
            for size, filesystem in local_disks.ephemerals(instance.block_devices, flavor)]


def check_growth(local: LocalDisks, instance: Instance, flavor: Flavor) -> None:
    """Raise ResizeError if a disk would have to shrink or disappear."""
    if local.root is not None and local.root.device != "cdrom":
        _check("root", local.root, flavor.root_gb * _GIB)
    wanted = ephemerals(instance, flavor)
    if len(wanted) < len(local.ephemerals):
        raise exception.ResizeError(reason=f"the flavor {flavor.name} has fewer ephemeral disks than the server")
    for disk, (size, _filesystem) in zip(local.ephemerals, wanted, strict=False):
        _check("ephemeral", disk, size * _GIB)


def grow(local: LocalDisks, instance: Instance) -> None:
    """Grow the disks to the sizes of the instance. A swap disk of another size is removed: make() creates a new one."""
    if local.root is not None and local.root.device == "filesystem":
        container_files.grow_root(local.root.path, instance.flavor.root_gb * _GIB)
    elif local.root is not None and local.root.device == "disk":
        _grow(local.root, instance.flavor.root_gb * _GIB)
    for disk, (size, _filesystem) in zip(local.ephemerals, ephemerals(instance, instance.flavor), strict=False):
        _grow(disk, size * _GIB)
    swap = local_disks.swap_mb(instance.block_devices, instance.flavor) * _MIB
    if local.swap is not None and virtual_size(local.swap.path, local.swap.format) != swap:
        os.unlink(local.swap.path)


def _check(kind: str, disk: LocalDisk, want: int) -> None:
    have = virtual_size(disk.path, disk.format)
    # want is 0 for a flavor without a root disk: the disk keeps its size.
    if want and want < have:
        raise exception.ResizeError(
            reason=f"the {kind} disk of {have / _GIB:g} GiB cannot shrink to {want / _GIB:g} GiB")


def _grow(disk: LocalDisk, want: int) -> None:
    if virtual_size(disk.path, disk.format) < want:
        qemuimg.resize(disk.path, disk.format, want)


def _make_root(path: str, base: str, base_format: str, instance: Instance, alone: bool) -> None:
    if not os.path.isfile(base):
        raise exception.InvalidDiskInfo(reason="the server's image is not in the image cache of the host")
    have = virtual_size(base, base_format)
    # The disk gets the size of the image if the flavor has no root disk.
    want = instance.flavor.root_gb * _GIB or have
    if have > want:
        raise disk_too_small(want, have)
    if is_iso(instance):
        want = have
    if not alone:
        qemuimg.create_overlay(path, base, base_format, want)
        return
    overlay = f"{path.removesuffix('.part')}.overlay.part"
    try:
        qemuimg.create_overlay(overlay, base, base_format, want)
        qemuimg.flatten(overlay, path)
    finally:
        remove(overlay)


def _copy(source: str, path: str) -> None:
    try:
        shutil.copyfile(source, path)
    except FileNotFoundError as error:
        raise exception.InvalidDiskInfo(reason=f"{os.path.basename(source)} is missing on the host") from error


def _format(label: str, size: int, filesystem: str, path: str) -> None:
    if filesystem == "swap":
        command = ["mkswap", "-q", "-L", label]
    elif filesystem in _MKFS:
        command = [*_MKFS[filesystem], label]
    else:
        raise exception.InvalidDiskInfo(reason=f"file system {filesystem} of a disk is not supported")
    raw = f"{path.removesuffix('.part')}.raw.part"
    try:
        with open(raw, "wb") as file:
            file.truncate(size)
        qemuimg.run([*command, raw], _MKFS_TIMEOUT)
        os.chmod(raw, 0o644)  # for [libvirt]images_user; the disk contains no data of the guest yet
        qemuimg.convert(raw, "raw", path, "qcow2", size)
    finally:
        remove(raw)
