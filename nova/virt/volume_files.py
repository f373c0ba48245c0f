"""Files of a volume with snapshots: the active file that the guest writes to, and its read-only backing files."""

import os
from collections.abc import Sequence

from nova import exception
from nova.objects.servers.instance import BlockDevice

NOT_AN_OVERLAY = "the new file is not an overlay of the file that the guest writes to"


def files_of(device: BlockDevice) -> tuple[str, ...]:
    """Return the names of a volume's files, newest first; empty if the volume is not connected as a file."""
    connection = device.connection
    if connection is None or connection.protocol != "file":
        return ()
    return tuple(os.path.basename(path) for path in (connection.path, *(path for path, _format in connection.below)))


def is_merged(volume: str, files: Sequence[str], top: str | None, base: str | None) -> bool:
    """Return True if a merge is done. With ``base``: the files from ``top`` down are committed into ``base``. Without
    ``base``: no file is left between the active file and ``top`` (None: below the active file). ``files``: the volume's
    files, newest first; the first is the active file. Raises VolumeSnapshotFailed if the merge is impossible."""
    missing = next((name for name in (top if base is None else None, base) if name and name not in files), None)
    if missing or not files:
        raise exception.VolumeSnapshotFailed(volume_id=volume, reason=f"the guest lacks {missing or 'the volume'}")
    if base is None:
        if top == files[0]:
            raise exception.VolumeSnapshotFailed(volume_id=volume, reason=f"the guest writes to {top}")
        return list(files[1:2]) == ([top] if top else [])
    if top not in files:
        return True
    if top == files[0] or files.index(top) >= files.index(base):
        raise exception.VolumeSnapshotFailed(volume_id=volume, reason=(
            f"the guest writes to {top}" if top == files[0] else f"{top} is not an overlay of {base}"))
    return False


def was_merged(files: Sequence[str], top: str | None, base: str | None) -> bool:
    """Return True if the merge is done; False also if the merge is impossible."""
    try:
        return is_merged("", files, top, base)
    except exception.VolumeSnapshotFailed:
        return False


def merged(files: Sequence[str], top: str | None, base: str | None) -> list[str]:
    """Return the files that are left after the merge."""
    if base is None:
        return [files[0], *(files[files.index(top):] if top else ())]
    return [*files[:files.index(top or "")], *files[files.index(base):]]
