"""Creation and inspection of volume files (:class:`nova.volume.base.DiskTools`) with qemu-img."""

import os

from nova import exception
from nova.virt.images import qemuimg

RAW = "raw"
_LUKS = b"LUKS\xba\xbe"
_ELSEWHERE = "the file refers to another file"


class QemuTools:
    """Raw disks are created as sparse files; qemu-img creates all other formats."""

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
        header = _header(path, disk_format)
        # The header is not trusted: another host with access to the pool may have written it.
        if header.backing is not None:
            raise exception.InvalidDiskInfo(reason=_ELSEWHERE)
        return int(header.virtual_size)

    def backing_file(self, path: str, disk_format: str) -> tuple[str, str | None] | None:
        header = None if disk_format == RAW else _header(path, disk_format)
        return (header.backing, header.backing_format) if header is not None and header.backing is not None else None

    def encrypted_format(self, path: str) -> str:
        with open(path, "rb") as file:
            if file.read(len(_LUKS)) == _LUKS:
                return RAW
        if not _header(path, f"{RAW} or qcow2, encrypted with LUKS").luks:
            raise exception.InvalidDiskInfo(reason="the file is not encrypted with LUKS")
        return "qcow2"


def _header(path: str, disk_format: str) -> qemuimg.Qcow2Header:
    try:
        header = qemuimg.Qcow2Header(path)
    except ValueError as error:
        raise exception.InvalidDiskInfo(reason=f"the file is not in the format {disk_format}") from error
    if header.data_file:
        raise exception.InvalidDiskInfo(reason=_ELSEWHERE)
    return header
