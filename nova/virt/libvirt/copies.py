"""Copies of a guest's files that another host has, made on the host to which it moves.

A file has its name only when it is complete, and the directory remembers from which disks it is copied: so a copy
goes on where a crash ended it, and files of an earlier time do not count.
"""

from __future__ import annotations

import contextlib
import logging
import os
import struct
import subprocess
from collections.abc import Callable

from nova import exception
from nova.objects.moves import DiskFile, DiskSource
from nova.virt import qemuimg
from nova.virt.imagecache import ImageCache
from nova.virt.libvirt import directories, disk_server, disks
from nova.virt.libvirt.disk_server import Served

LOG = logging.getLogger(__name__)

# In the directory of a copy that is not finished: the token of the disks that it is made from.
_COPIED_FROM = "copied-from"

# Makes the file of this path.
Copier = Callable[[str], None]


def begin(uuid: str, token: str, host: str) -> str:
    """The guest's directory: empty, or with what was copied from just these disks."""
    place = directories.directory(uuid)
    known = directories.owner(place)
    mark = os.path.join(place, _COPIED_FROM)
    if os.path.isdir(place) and not (known and known.host == host and content(mark) == token):
        LOG.warning("[instance: %s] Files of an earlier time are in the way of its move: removed", uuid)
        directories.take(uuid, host)
        directories.remove(uuid, host)
    directories.make(uuid, host)
    directories.once(place, _COPIED_FROM, writer(token))
    return place


def is_incomplete(uuid: str) -> bool:
    """Whether what is here is a copy that nobody finished."""
    return os.path.exists(os.path.join(directories.directory(uuid), _COPIED_FROM))


def complete(uuid: str) -> None:
    """What was copied is the guest's now."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(directories.directory(uuid), _COPIED_FROM))


def receive(uuid: str, place: str, file: DiskFile, source: DiskSource, seen: str = "") -> None:
    """A copy of one file; ``seen`` is its directory on the source, if this host sees it ("": it does not).

    The source may not be believed: nothing comes here but the files of a guest, and none leads to a file of this host.
    """
    check_name(file)
    copy = _local(os.path.join(seen, file.name)) if seen else _remote(uuid, source, file.name, file.length)
    directories.once(place, file.name, _on_base(copy, file, base_of(uuid, file, source)))


def check_name(file: DiskFile) -> None:
    """Raises MigrationError for what is no file that goes with a guest."""
    if disks.format_to_copy(file.name) != file.format:
        raise exception.MigrationError(reason=f"{file.name} ({file.format}) is no file of a server")


def base_of(uuid: str, file: DiskFile, source: DiskSource) -> str:
    """The path of the image that a disk stands on, in this host's cache; it is copied, too, if it is not there. "": the
    disk stands on none."""
    if not file.base:
        return ""
    base = next(base for base in source.bases if base.name == file.base)
    cache = ImageCache(used=disks.bases_in_use)
    path = cache.adopt(base.name, _remote(uuid, source, base_name(base.name), base.length), base.length)
    if disks.virtual_size(path, file.base_format) != base.size:
        raise exception.MigrationError(reason=f"the host has another image named {base.name}")
    return path


# --- what there is ---------------------------------------------------------------------------------------
def describe(place: str) -> tuple[list[DiskFile], dict[str, DiskFile]]:
    """The files that go with a guest, and the images that they stand on by their paths."""
    files: list[DiskFile] = []
    bases: dict[str, DiskFile] = {}
    for name, kind in disks.to_copy(place):
        path = os.path.join(place, name)
        base, base_format = "", ""
        if kind == "qcow2":
            header = qemuimg.Qcow2Header(path)
            if header.backing and header.backing_format:
                base, base_format = os.path.basename(header.backing), header.backing_format
                bases[header.backing] = _described(header.backing, base_format)
        files.append(_described(path, kind, base, base_format))
    return files, bases


def serve(uuid: str, place: str, files: list[DiskFile], bases: dict[str, DiskFile]) -> Served:
    """Serve these files, and the images below them, until disk_server.stop()."""
    return disk_server.serve(uuid, [(file.name, os.path.join(place, file.name)) for file in files]
                             + [(base_name(base.name), path) for path, base in bases.items()])


def base_name(name: str) -> str:
    """What an image is called among the served files."""
    return f"base/{name}"


def _described(path: str, kind: str, base: str = "", base_format: str = "") -> DiskFile:
    return DiskFile(name=os.path.basename(path), format=kind, length=os.stat(path).st_size,
                    size=disks.virtual_size(path, kind), base=base, base_format=base_format)


# --- copying ---------------------------------------------------------------------------------------------
def _remote(uuid: str, source: DiskSource, name: str, length: int) -> Copier:
    served = Served(source.address, source.port, source.key)
    return lambda path: disk_server.fetch(uuid, served, name, length, path)


def _local(source: str) -> Copier:
    """Within one file system; without any work where that can share blocks."""
    def copy(path: str) -> None:
        try:
            subprocess.run(["cp", "--reflink=auto", "--sparse=always", source, path], check=True, capture_output=True,
                           text=True, timeout=qemuimg.COPY_TIMEOUT, env={**os.environ, "LC_ALL": "C"})
        except subprocess.CalledProcessError as error:
            if "No space left" in error.stderr:
                raise exception.DiskFull(reason="no room for the server's disks") from error
            raise exception.MigrationError(reason=f"{os.path.basename(source)} could not be copied") from error
        with open(path, "r+b") as file:
            os.fsync(file.fileno())

    return copy


def keep(source: str, place: str, name: str) -> None:
    """A copy of a file of this host."""
    directories.once(place, name, _local(source))


def _on_base(copy: Copier, file: DiskFile, base: str) -> Copier:
    """A copy that stands on this host's image."""
    def make(path: str) -> None:
        copy(path)
        if file.format != "qcow2":
            return
        try:
            header = qemuimg.Qcow2Header(path)
        except (ValueError, struct.error) as error:
            raise exception.MigrationError(reason=f"{file.name} is damaged") from error
        if header.data_file or (header.backing and not base):
            raise exception.MigrationError(reason=f"{file.name} refers to another file")
        if base and header.backing != base:
            qemuimg.rebase(path, base, file.base_format)

    return make


# --- small texts -----------------------------------------------------------------------------------------
def writer(text: str) -> Copier:
    def write(path: str) -> None:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)

    return write


def content(path: str) -> str:
    """Of a text file; "": there is none."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        return ""
