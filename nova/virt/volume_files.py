"""The files of a volume with snapshots: the one that its guest writes to, and those below it, which are only read."""

from __future__ import annotations

import os
from collections.abc import Sequence

from nova import exception
from nova.objects.instance import BlockDevice

NOT_ON_IT = "the new file does not stand on the one that its guest writes to"


def files_of(device: BlockDevice) -> tuple[str, ...]:
    """The names of the files of a volume, where it is connected by such, from the newest on."""
    connection = device.connection
    if connection is None or connection.protocol != "file":
        return ()
    return tuple(os.path.basename(path) for path in (connection.path, *(path for path, _format in connection.below)))


def is_merged(volume: str, files: Sequence[str], top: str | None, base: str | None) -> bool:
    """Whether it is done that what was between ``top`` and ``base`` is in ``base``, or (base None) that there is
    nothing between the first file and ``top`` (None: the end).

    ``files`` are named from the newest on. Raises VolumeSnapshotFailed: there is no such thing to do.
    """
    missing = next((name for name in (top if base is None else None, base) if name and name not in files), None)
    if missing or not files:
        raise exception.VolumeSnapshotFailed(volume_id=volume, reason=f"its guest does not have {missing or 'it'}")
    if base is None:
        if top == files[0]:
            raise exception.VolumeSnapshotFailed(volume_id=volume, reason=f"its guest writes to {top}")
        return list(files[1:2]) == ([top] if top else [])
    if top not in files:
        return True
    if top == files[0] or files.index(top) >= files.index(base):
        raise exception.VolumeSnapshotFailed(volume_id=volume, reason=(
            f"its guest writes to {top}" if top == files[0] else f"{top} does not stand on {base}"))
    return False


def was_merged(files: Sequence[str], top: str | None, base: str | None) -> bool:
    """The same, for whom it is enough that it is not."""
    try:
        return is_merged("", files, top, base)
    except exception.VolumeSnapshotFailed:
        return False


def merged(files: Sequence[str], top: str | None, base: str | None) -> list[str]:
    """What is left of the files when that is done."""
    if base is None:
        return [files[0], *(files[files.index(top):] if top else ())]
    return [*files[:files.index(top or "")], *files[files.index(base):]]
