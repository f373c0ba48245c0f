"""Volumes as files in a directory of the host: ``[volume]pool``/<uuid>.<generation>.

A file is created when a guest first needs it, under a temporary name until it is complete. File names contain only ids
and numbers from the conductor; links are never followed."""

import collections
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
from nova.common import files
from nova.conf import CONF
from nova.objects.base import is_canonical
from nova.objects.volumes.volume import ConnectionInfo, LocalConnection, VolumeConnection, VolumeKey, VolumeRemoval
from nova.volume.base import DiskTools, Fetch, HostVolumes

LOG = logging.getLogger(__name__)

_TEMPORARY = ".part"  # suffix of incomplete files
# Age in seconds after which an incomplete file counts as abandoned and is deleted.
_ABANDONED = 24 * 3600
_GIB = 1 << 30
_REMEMBERED = 10_000  # maximum number of stored paths of removed data


class LocalVolumes(HostVolumes):
    """The volumes in ``directory`` (default: [volume]pool), which several hosts may share."""

    def __init__(self, tools: DiskTools, directory: str | None = None) -> None:
        super().__init__(tools)
        self.directory = directory or str(CONF.volume.pool)
        # The newest paths that remove() deleted: a superseded operation may still be about to create one of them.
        self._removed = collections.OrderedDict[str, None]()

    def start(self) -> None:
        self._make_pool()
        for name in os.listdir(self.directory):
            path = os.path.join(self.directory, name)
            with contextlib.suppress(FileNotFoundError):
                if name.endswith(_TEMPORARY) and time.time() - os.lstat(path).st_mtime > _ABANDONED:
                    os.unlink(path)

    def connect(self, info: ConnectionInfo, fetch: Fetch | None = None,
                key: VolumeKey | None = None) -> VolumeConnection:
        try:
            connection = msgspec.convert(info, LocalConnection)
        except msgspec.ValidationError as error:
            raise exception.VolumeUnusable(volume_id=str(info.get("volume_id")),
                                           reason=f"invalid connection info: {error}") from error
        path = self._path(connection.volume_id, connection.generation)
        with _full_disk(connection.volume_id):
            if not _exists(path, connection.volume_id):
                if not connection.fresh:
                    raise exception.VolumeUnusable(volume_id=connection.volume_id, reason="its data are missing")
                self._make(path, connection, fetch)
                if path in self._removed:  # removed before or during _make()
                    files.remove(path)
                    raise exception.VolumeUnusable(volume_id=connection.volume_id, reason="its data were removed")
            size = self.tools.size(path, connection.format)
            if size != connection.size_gb * _GIB:
                raise exception.VolumeUnusable(volume_id=connection.volume_id,
                                               reason=f"it has {size} bytes instead of {connection.size_gb} GiB")
        return VolumeConnection(volume_id=connection.volume_id, protocol="file", path=path, format=connection.format,
                                discard=True, serial=connection.volume_id)

    def disconnect(self, info: ConnectionInfo) -> None:
        """Do nothing: files need no disconnection."""

    def remove(self, removal: VolumeRemoval) -> None:
        """Delete the data. From now on connect() refuses to create them: a generation is not used a second time."""
        path = self._path(removal.volume_uuid, removal.generation)
        self._removed[path] = None
        while len(self._removed) > _REMEMBERED:
            self._removed.popitem(last=False)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
            LOG.info("Deleted the data of volume %s", removal.volume_uuid)

    def _make_pool(self) -> None:
        if not os.path.isdir(self.directory):
            os.makedirs(self.directory, exist_ok=True)
            # The hypervisor's user needs access to the files; libvirt makes that user the owner while a guest runs.
            os.chmod(self.directory, 0o711)  # noqa: S103

    def _path(self, uuid: str, generation: int) -> str:
        if not is_canonical(uuid):
            raise exception.VolumeUnusable(volume_id=uuid, reason="its id is not a UUID")
        return os.path.join(self.directory, f"{uuid}.{generation}")

    def _make(self, path: str, connection: LocalConnection, fetch: Fetch | None) -> None:
        self._make_pool()
        temporary = f"{path}.{os.getpid()}-{threading.get_ident()}{_TEMPORARY}"
        size = connection.size_gb * _GIB
        started = time.monotonic()
        try:
            if connection.image is None or fetch is None:
                self.tools.create(temporary, connection.format, size)
            else:
                source, source_format = fetch(connection.image, size)
                image_size = self.tools.size(source, source_format)
                if image_size > size:
                    raise exception.VolumeUnusable(volume_id=connection.volume_id, reason=(
                        f"image {connection.image.id} of {image_size} bytes is larger than the volume of {size} bytes"))
                self.tools.copy(source, source_format, temporary, connection.format)
                self.tools.grow(temporary, connection.format, size)
            # Only the owner may read data of guests.
            os.chmod(temporary, 0o600)
            with contextlib.suppress(FileExistsError):  # another host created the file meanwhile, and may be using it
                os.link(temporary, path)
        finally:
            files.remove(temporary)
        LOG.info("Created volume %s of %d GiB%s in %.1f s", connection.volume_id, connection.size_gb,
                 f" from image {connection.image.id}" if connection.image else "", time.monotonic() - started)


def _exists(path: str, volume_id: str) -> bool:
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return False
    if not stat.S_ISREG(mode):
        raise exception.VolumeUnusable(volume_id=volume_id, reason="its data are not a regular file")
    return True


@contextlib.contextmanager
def _full_disk(volume_id: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise exception.DiskFull(reason=f"no space for volume {volume_id}") from error
        raise
