"""Volumes as files of a directory of the host: ``[volume]pool``/<uuid>.<generation>.

A file is made when a guest first needs it and has its name only when it is complete. Names are made of what
conductors say and of nothing else; links are never followed.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import stat
import threading
import time
from collections.abc import Iterator

import msgspec

from nova import exception
from nova.conf import CONF
from nova.objects.base import is_canonical
from nova.objects.volume import ConnectionInfo, LocalConnection, VolumeConnection, VolumeKey, VolumeRemoval
from nova.volume.base import DiskTools, Fetch, HostVolumes

LOG = logging.getLogger(__name__)

_PART = ".part"
# A file that was not finished within this many seconds belongs to nobody any more.
_ABANDONED = 24 * 3600
_GIB = 1 << 30


class LocalVolumes(HostVolumes):
    """The pool in ``directory`` (default: as configured); several hosts may share it."""

    def __init__(self, tools: DiskTools, directory: str | None = None) -> None:
        super().__init__(tools)
        self.directory = directory or str(CONF.volume.pool)

    def start(self) -> None:
        self._make_pool()
        for name in os.listdir(self.directory):
            path = os.path.join(self.directory, name)
            with contextlib.suppress(FileNotFoundError):
                if name.endswith(_PART) and time.time() - os.lstat(path).st_mtime > _ABANDONED:
                    os.unlink(path)

    def connect(self, info: ConnectionInfo, fetch: Fetch | None = None,
                key: VolumeKey | None = None) -> VolumeConnection:
        asked = _understood(info)
        path = self._path(asked.volume_id, asked.generation)
        with _full_disk(asked.volume_id):
            if not _is_there(path, asked.volume_id):
                if not asked.fresh:
                    raise exception.VolumeUnusable(volume_id=asked.volume_id, reason="its data are missing")
                self._make(path, asked, fetch)
            self._check(path, asked)
        return VolumeConnection(volume_id=asked.volume_id, protocol="file", path=path, format=asked.format,
                                discard=True, serial=asked.volume_id)

    def disconnect(self, info: ConnectionInfo) -> None:
        """A file needs nothing."""

    def remove(self, removal: VolumeRemoval) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path(removal.volume_uuid, removal.generation))
            LOG.info("The data of volume %s are removed", removal.volume_uuid)

    # --- inside ------------------------------------------------------------------------------------
    def _make_pool(self) -> None:
        if not os.path.isdir(self.directory):
            os.makedirs(self.directory, exist_ok=True)
            # The hypervisor's user reaches the files, which libvirt gives to it alone while a guest has them.
            os.chmod(self.directory, 0o711)  # noqa: S103

    def _path(self, uuid: str, generation: int) -> str:
        if not is_canonical(uuid):
            raise exception.VolumeUnusable(volume_id=uuid, reason="its id is no uuid")
        return os.path.join(self.directory, f"{uuid}.{generation}")

    def _make(self, path: str, asked: LocalConnection, fetch: Fetch | None) -> None:
        self._make_pool()
        part = f"{path}.{os.getpid()}-{threading.get_ident()}{_PART}"
        size = asked.size_gb * _GIB
        started = time.monotonic()
        try:
            if asked.image is None or fetch is None:
                self.tools.create(part, asked.format, size)
            else:
                source, source_format = fetch(asked.image, size)
                have = self.tools.size(source, source_format)
                if have > size:
                    raise exception.VolumeUnusable(
                        volume_id=asked.volume_id,
                        reason=f"image {asked.image.id} of {have} bytes is larger than the volume of {size} bytes")
                self.tools.copy(source, source_format, part, asked.format)
                self.tools.grow(part, asked.format, size)
            # Volumes hold what guests write.
            os.chmod(part, 0o600)
            with contextlib.suppress(FileExistsError):  # somebody else made it meanwhile, and a guest may have it
                os.link(part, path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(part)
        LOG.info("Made volume %s of %d GiB%s in %.1f s", asked.volume_id, asked.size_gb,
                 f" from image {asked.image.id}" if asked.image else "", time.monotonic() - started)

    def _check(self, path: str, asked: LocalConnection) -> None:
        """What a guest gets is exactly what its owner asked for."""
        size = self.tools.size(path, asked.format)
        if size != asked.size_gb * _GIB:
            raise exception.VolumeUnusable(volume_id=asked.volume_id,
                                           reason=f"it has {size} bytes instead of {asked.size_gb} GiB")


def _understood(info: ConnectionInfo) -> LocalConnection:
    try:
        return msgspec.convert(info, LocalConnection)
    except msgspec.ValidationError as error:
        raise exception.VolumeUnusable(volume_id=str(info.get("volume_id")),
                                       reason=f"the pool of the host does not know such volumes: {error}") from error


def _is_there(path: str, volume_id: str) -> bool:
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return False
    if not stat.S_ISREG(mode):
        raise exception.VolumeUnusable(volume_id=volume_id, reason="its data are no file")
    return True


@contextlib.contextmanager
def _full_disk(volume_id: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise exception.DiskFull(reason=f"no room for volume {volume_id}") from error
        raise
