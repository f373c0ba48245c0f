"""The local disks of a server, limited by its flavor."""

from collections.abc import Iterable, Sequence

from nova import exception
from nova.objects.accounts.flavor import Flavor
from nova.objects.servers.instance import BlockDevice, root_volume

FILE_SYSTEMS = ("ext2", "ext3", "ext4", "xfs", "vfat", "ntfs")  # file systems of ephemeral disks


def ephemerals(devices: Iterable[BlockDevice], flavor: Flavor) -> list[tuple[int, str | None]]:
    """Return (GiB, file system or None for the default) of each ephemeral disk. If none is requested, there is one disk
    of the flavor's size."""
    listed = [disk for disk in devices if disk.is_ephemeral]
    if listed:
        return [(disk.size_gb or flavor.ephemeral_gb, disk.guest_format) for disk in listed]
    return [(flavor.ephemeral_gb, None)] if flavor.ephemeral_gb else []


def swap_mb(devices: Iterable[BlockDevice], flavor: Flavor) -> int:
    """Return the MiB of the swap disk: the requested size, by default and at most that of the flavor; 0 for none."""
    requested = next((disk.size_gb for disk in devices if disk.guest_format == "swap" and not disk.is_volume), None)
    return min(requested or flavor.swap, flavor.swap)


def check_ephemerals(devices: Iterable[BlockDevice], flavor: Flavor) -> None:
    """Raise InvalidInput if a server would have more ephemeral disk space than its flavor, whose amounts it claims."""
    sizes = [size for size, _filesystem in ephemerals(devices, flavor)]
    if not all(sizes):
        raise exception.InvalidInput("Ephemeral disks requested without a volume_size, and the instance type has none.")
    if sum(sizes) > flavor.ephemeral_gb:
        raise exception.InvalidInput(
            f"Ephemeral disks requested are larger than the instance type allows: {sum(sizes)} GB requested, "
            f"{flavor.ephemeral_gb} GB allowed.")


def check(devices: Sequence[BlockDevice], flavor: Flavor, most: int) -> None:
    """Check that a new server of this flavor may have these block devices. Raises InvalidInput. ``most``: the limit of
    local disks (root disk, ephemeral disks and swap); -1: any number."""
    swap = sum(disk.size_gb or 0 for disk in devices if disk.guest_format == "swap" and not disk.is_volume)
    if swap > flavor.swap:  # Both in MiB.
        raise exception.InvalidInput("Swap drive requested is larger than instance type allows.")
    check_ephemerals(devices, flavor)
    disks = int(root_volume(devices) is None) + len(ephemerals(devices, flavor)) + int(flavor.swap > 0)
    if 0 <= most < disks:
        raise exception.InvalidInput(f"Block Device Mapping is Invalid: {disks} local disks requested, {most} allowed.")
