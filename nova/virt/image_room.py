"""How much room the image cache of a host takes, and who may take more of it.

What it may take at most is reserved of the host's DISK_GB, so that images never use up what was promised to guests.
Whoever adds an image tells before he writes how large it may become: that stands in the image's lock file for as long
as he holds the lock, and counts as if it were there.
"""

from __future__ import annotations

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

# Of a file system, where the operator says nothing.
_SHARE = 10
LOCKS = "locks"
_ROOM = ".room"

# Gives up an image that nobody uses; False: there is none (left).
Evict = Callable[[], bool]


class Room:
    """The room of the cache in ``directory``; the same for all processes that use it."""

    def __init__(self, directory: str) -> None:
        self._directory = directory

    def limit(self) -> int:
        """The bytes that images may take; 0: as many as there are."""
        most = CONF.image_cache.size_limit_mb
        if most is not None:
            return int(most) << 20
        return shutil.disk_usage(_existing(self._directory)).total // _SHARE

    def used(self) -> int:
        """The bytes that images take now."""
        return sum(self._on_disk().values())

    def reserved(self) -> int:
        """The bytes of the file system that guests cannot have."""
        return max(self.limit(), self.used())

    def take(self, image_id: str, lock: IO[str], size: int, evict: Evict) -> None:
        """The image, which the caller is adding and whose ``lock`` file he holds, may become ``size`` bytes large.

        Where there is not enough room unused images go. Raises DiskFull.
        """
        with open(os.path.join(self._directory, LOCKS, _ROOM), "a", encoding="ascii") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            lock.seek(0)
            lock.truncate()
            limit = self.limit()
            while limit and self._with_promises(image_id) + size > limit:
                if size > limit or not evict():
                    LOG.warning("No room for image %s of %d MiB: the image cache may have %d MiB "
                                "([image_cache]size_limit_mb)", image_id, -(-size >> 20), limit >> 20)
                    raise exception.DiskFull(reason=f"its image cache has no room for image {image_id}")
            lock.write(str(size))
            lock.flush()

    def _with_promises(self, without: str) -> int:
        """The bytes that all images but this one take, or will when they are complete."""
        sizes = self._on_disk()
        with os.scandir(os.path.join(self._directory, LOCKS)) as entries:
            for entry in entries:
                if entry.name != _ROOM and (promised := _promised(entry.path)):
                    sizes[entry.name] = max(promised, sizes.get(entry.name, 0))
        sizes.pop(without, None)
        return sum(sizes.values())

    def _on_disk(self) -> dict[str, int]:
        """What the files of each image take."""
        found: dict[str, int] = {}
        for entry in _files(self._directory):
            with contextlib.suppress(FileNotFoundError):
                image_id = entry.name.rpartition(".")[0] or entry.name
                found[image_id] = found.get(image_id, 0) + entry.stat(follow_symlinks=False).st_blocks * 512
        return found


def _files(directory: str) -> Iterator[os.DirEntry[str]]:
    with contextlib.suppress(FileNotFoundError), os.scandir(directory) as entries:
        yield from (entry for entry in entries if entry.is_file(follow_symlinks=False))


def _promised(path: str) -> int:
    """What stands in the lock file of an image that somebody is adding."""
    try:
        with open(path, encoding="ascii") as file:
            text = file.read()
            if not text:
                return 0
            # a lock that is free is that of a crash
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
