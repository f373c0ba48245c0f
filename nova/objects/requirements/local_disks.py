"""The local disks of a server: what its flavor pays for, and nothing beside it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from nova import exception
from nova.objects.accounts.flavor import Flavor
from nova.objects.servers.instance import BlockDevice, root_volume


def ephemerals(devices: Iterable[BlockDevice], flavor: Flavor) -> list[tuple[int, str | None]]:
    """(GiB, file system or None: the usual one) of each; one of all that the flavor has where none is named."""
    listed = [disk for disk in devices if disk.is_ephemeral]
    if listed:
        return [(disk.size_gb or flavor.ephemeral_gb, disk.guest_format) for disk in listed]
    return [(flavor.ephemeral_gb, None)] if flavor.ephemeral_gb else []


def check_ephemerals(devices: Iterable[BlockDevice], flavor: Flavor) -> None:
    """Raises InvalidInput when a server of this flavor, which claims what its flavor says, would have more of them."""
    sizes = [size for size, _filesystem in ephemerals(devices, flavor)]
    if not all(sizes):
        raise exception.InvalidInput(
            "Ephemeral disks requested without a volume_size, and the instance type has none.")
    if sum(sizes) > flavor.ephemeral_gb:
        raise exception.InvalidInput(
            f"Ephemeral disks requested are larger than the instance type allows: {sum(sizes)} GB requested, "
            f"{flavor.ephemeral_gb} GB allowed.")


def check(devices: Sequence[BlockDevice], flavor: Flavor, most: int) -> None:
    """Check that a new server of this flavor may have these block devices. Raises InvalidInput.

    ``most``: the limit of local disks (root disk, ephemeral disks and swap); -1: any number.
    """
    swap = sum(disk.size_gb or 0 for disk in devices if disk.guest_format == "swap" and not disk.is_volume)
    if swap > flavor.swap:  # MiB, both
        raise exception.InvalidInput("Swap drive requested is larger than instance type allows.")
    check_ephemerals(devices, flavor)
    disks = int(root_volume(devices) is None) + len(ephemerals(devices, flavor)) + int(flavor.swap > 0)
    if 0 <= most < disks:
        raise exception.InvalidInput(
            f"Block Device Mapping is Invalid: {disks} local disks requested, {most} allowed.")
