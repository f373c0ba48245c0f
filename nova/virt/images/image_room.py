"""Disk space of the image cache of a host, and its reservation for new images.

The maximum size of the cache is reserved in the host's DISK_GB inventory, so that images never use space promised to
guests. Before an image is written, its maximum size is stored in the image's lock file. The size counts as used as long
as the lock is held."""

import contextlib
import fcntl
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from typing import IO

from nova import exception
from nova.conf import CONF

LOG = logging.getLogger(__name__)

# Default fraction (1/n) of the file system for images.
_DEFAULT_FRACTION = 10
LOCKS = "locks"
_ROOM = ".room"

# Removes an unused image; returns False if there is none.
Evict = Callable[[], bool]


class CacheSpace:
    """The disk space of the cache in ``directory``, shared by all processes that use it."""

    def __init__(self, directory: str) -> None:
        self._directory = directory

    def limit(self) -> int:
        """Return the maximum number of bytes of all images; 0: no limit."""
        most = CONF.image_cache.size_limit_mb
        if most is not None:
            return int(most) << 20
        return shutil.disk_usage(_existing(self._directory)).total // _DEFAULT_FRACTION

    def used(self) -> int:
        """Return the number of bytes that images use now."""
        return sum(self._on_disk().values())

    def reserved(self) -> int:
        """Return the number of bytes of the file system that are not available to guests."""
        return max(self.limit(), self.used())

    def reserve(self, image_id: str, lock: IO[str], size: int, evict: Evict) -> None:
        """Reserve ``size`` bytes for the image that the caller is adding; the caller holds its ``lock`` file. Removes
        unused images if there is not enough space. Raises DiskFull."""
        with open(os.path.join(self._directory, LOCKS, _ROOM), "a", encoding="ascii") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            lock.seek(0)
            lock.truncate()
            limit = self.limit()
            while limit and self._used_without(image_id) + size > limit:
                if size > limit or not evict():
                    LOG.warning("No space for image %s of %d MiB: the image cache is limited to %d MiB "
                                "([image_cache]size_limit_mb)", image_id, -(-size >> 20), limit >> 20)
                    raise exception.DiskFull(reason=f"no space in the image cache for image {image_id}")
            lock.write(str(size))
            lock.flush()

    def _used_without(self, without: str) -> int:
        """Return the bytes used or reserved by all images except this one."""
        sizes = self._on_disk()
        with os.scandir(os.path.join(self._directory, LOCKS)) as entries:
            for entry in entries:
                if entry.name != _ROOM and (reserved := _reserved_in(entry.path)):
                    sizes[entry.name] = max(reserved, sizes.get(entry.name, 0))
        sizes.pop(without, None)
        return sum(sizes.values())

    def _on_disk(self) -> dict[str, int]:
        """Return the disk usage in bytes by image."""
        sizes: dict[str, int] = {}
        for entry in _files(self._directory):
            with contextlib.suppress(FileNotFoundError):
                image_id = entry.name.rpartition(".")[0] or entry.name
                sizes[image_id] = sizes.get(image_id, 0) + entry.stat(follow_symlinks=False).st_blocks * 512
        return sizes


def _files(directory: str) -> Iterator[os.DirEntry[str]]:
    with contextlib.suppress(FileNotFoundError), os.scandir(directory) as entries:
        yield from (entry for entry in entries if entry.is_file(follow_symlinks=False))


def _reserved_in(path: str) -> int:
    """Return the size stored in the lock file of an image that is being added."""
    try:
        with open(path, encoding="ascii") as file:
            text = file.read()
            if not text:
                return 0
            # an unlocked file is left over from a crash
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return 0
            return int(text)
    except (FileNotFoundError, ValueError):
        return 0


def _existing(path: str) -> str:
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    return path
