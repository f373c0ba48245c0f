"""How the files of volumes are made on this host (:class:`nova.volume.base.DiskTools`): with qemu-img."""

from __future__ import annotations

import os

from nova import exception
from nova.virt import qemuimg

RAW = "raw"


class QemuTools:
    """A raw disk is a plain sparse file; every other format is qemu-img's."""

    def create(self, path: str, disk_format: str, size: int) -> None:
        if disk_format == RAW:
            with open(path, "xb") as file:
                file.truncate(size)
        else:
            qemuimg.create(path, disk_format, size)

    def copy(self, source: str, source_format: str, path: str, disk_format: str) -> None:
        qemuimg.convert(source, source_format, path, disk_format, self.size(source, source_format))

    def grow(self, path: str, disk_format: str, size: int) -> None:
        if disk_format == RAW:
            os.truncate(path, size)
        else:
            qemuimg.resize(path, disk_format, size)

    def size(self, path: str, disk_format: str) -> int:
        if disk_format == RAW:
            return os.stat(path).st_size
        try:
            return int(qemuimg.Qcow2Header(path).virtual_size)
        except ValueError as error:
            raise exception.InvalidDiskInfo(reason=f"it is not in the format {disk_format}") from error
