"""The images that guests of this host stand on: each is downloaded, checked and converted once.

A cached image is raw or qcow2 and complete: it gets its name when it is finished. The name is the
image's id and its format (``<id>.qcow2``), below ``instances_path``/``[image_cache]subdirectory_name``.
How large it may become is known, and there is room for it, before it is written.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import logging
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from typing import IO

from nova import exception
from nova.conf import CONF
from nova.objects.image import least_disk
from nova.virt import image_formats, qemuimg
from nova.virt.image_formats import DISK_FORMATS
from nova.virt.image_room import LOCKS, Room

LOG = logging.getLogger(__name__)

# A build that fetched its image a moment ago may not have its disk on it yet.
_GRACE = 300

# Writes an image's data to a new file, after it told how many bytes they are: that is refused if they are too many.
Download = Callable[[str, Callable[[int], None]], None]


class ImageTooLarge(exception.ImageUnacceptable):
    template = "Image {image_id} is unacceptable: it has {size} bytes, and at most {most} are allowed here"


def cached_format(disk_format: str | None) -> str:
    """In which format (raw or qcow2) an image of Glance's ``disk_format`` is kept. Raises ImageUnacceptable."""
    if disk_format not in DISK_FORMATS:
        raise exception.ImageUnacceptable(image_id="", reason=f"disk format {disk_format} is not supported")
    return "raw" if DISK_FORMATS[disk_format] == "raw" or CONF.force_raw_images else "qcow2"


def format_of(path: str) -> str | None:
    """The format of a cached image, which its name tells (None: it is not named so)."""
    kind = path.rpartition(".")[2]
    return kind if kind in ("raw", "qcow2") else None


class ImageCache:
    """The cache in ``directory`` (default: as configured). Safe among threads and processes.

    ``used``: the paths of the images that guests stand on; without, none has to go for another.
    """

    def __init__(self, directory: str | None = None, used: Callable[[], Iterable[str]] | None = None) -> None:
        self.directory = directory or os.path.join(CONF.instances_path, CONF.image_cache.subdirectory_name)
        self.room = Room(self.directory)
        self._used = used

    def fetch(self, image_id: str, download: Download, disk_format: str | None, most: int | None = None,
              variant: str = "") -> str:
        """The path of the cached image; its format is ``cached_format(disk_format)``.

        ``download`` writes the image's data to the (new) file that it is given; it is called when the
        image is not here yet, once even if many builds want the image at the same time. ``most``: the bytes of the
        disk that the image may be (None: as many as the cache has room for). ``variant`` is part of the name of what
        must not be taken for the image as others fetch it.
        Raises ImageUnacceptable (not what ``disk_format`` says, or it refers to other files), ImageTooLarge, DiskFull.
        """
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", image_id):
            raise exception.ImageUnacceptable(image_id=image_id, reason="its id is no file name")
        name = f"{image_id}-{variant}" if variant else image_id
        with _blame(image_id):
            path = os.path.join(self.directory, f"{name}.{cached_format(disk_format)}")
            with self._locked(name) as lock:
                if not os.path.exists(path):
                    addition = _Addition(self, name, lock, most)
                    addition.make(download, disk_format or "", path)
                os.utime(path)
        return path

    def adopt(self, name: str, copy: Callable[[str], None], length: int) -> str:
        """The path of a cached file by its name, made by ``copy(path)`` if another host has it and this one has not.

        ``length``: of the file, in bytes. Raises DiskFull, and ImageUnacceptable where it refers to other files.
        """
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
            raise exception.ImageUnacceptable(image_id=name, reason="it is no file name")
        path = os.path.join(self.directory, name)
        image_id = name.rpartition(".")[0] or name
        with _blame(image_id), self._locked(image_id) as lock:
            if not os.path.exists(path):
                _Addition(self, image_id, lock, None).copy(copy, length, path)
            os.utime(path)
        return path

    def evict(self) -> bool:
        """Remove the image that was not in use for longest; False: there is none that may go."""
        if self._used is None or not CONF.image_cache.remove_unused_base_images:
            return False
        try:
            used = set(self._used())
        except OSError as error:
            LOG.error("No image can go for another one: what guests stand on cannot be read: %s", error)
            return False
        names = [name for name in os.listdir(self.directory) if format_of(name)]
        ages = {path: _age(path) for path in (os.path.join(self.directory, name) for name in names)}
        for path in sorted(ages.keys() - used, key=lambda path: -ages[path]):
            name = os.path.basename(path)
            with self._locked(name.rpartition(".")[0], wait=False) as lock:
                if lock is not None and _age(path) > _GRACE:
                    _remove(path)
                    LOG.info("Removed %s from the image cache to make room", name)
                    return True
        return False

    def clean(self, used: set[str]) -> list[str]:
        """Remove images that are not in ``used`` (paths) and were not for long; the paths that went.

        Each call notes when an image was last seen in use: its modification time.
        """
        removed: list[str] = []
        if not os.path.isdir(self.directory):
            return removed
        keep = max(CONF.image_cache.remove_unused_original_minimum_age_seconds, _GRACE)
        for name in sorted(os.listdir(self.directory)):
            path = os.path.join(self.directory, name)
            if not os.path.isfile(path) or name.startswith("."):
                continue
            image_id, _, kind = name.rpartition(".")
            half = kind in ("part", "conv")
            # (another process may be cleaning, too)
            with contextlib.suppress(FileNotFoundError):
                if path in used:
                    os.utime(path)
                elif half or CONF.image_cache.remove_unused_base_images:
                    with self._locked(image_id, wait=False) as lock:
                        # a half-made file whose lock is free is a crash's
                        if lock is not None and (half or _age(path) > keep):
                            os.unlink(path)
                            removed.append(path)
        for path in removed:
            LOG.info("Removed %s from the image cache", os.path.basename(path))
        return removed

    # --- inside ------------------------------------------------------------------------------------
    @contextlib.contextmanager
    def _locked(self, image_id: str, wait: bool = True) -> Iterator[IO[str] | None]:
        """Hold the image's lock, a file; yields None when ``wait`` is false and somebody else has it."""
        locks = os.path.join(self.directory, LOCKS)
        if not os.path.isdir(locks):
            os.makedirs(locks, exist_ok=True)
            # the hypervisor's user reads the images, whatever this process's umask is
            os.chmod(self.directory, 0o755)  # noqa: S103
        with open(os.path.join(locks, image_id), "a+", encoding="ascii") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                yield None
                return
            yield file


class _Addition:
    """An image that is being added; ``lock`` is held."""

    def __init__(self, cache: ImageCache, image_id: str, lock: IO[str] | None, most: int | None) -> None:
        assert lock is not None
        self._cache, self._image_id, self._lock, self._most = cache, image_id, lock, most
        self._part = os.path.join(cache.directory, f"{image_id}.part")
        self._converted = os.path.join(cache.directory, f"{image_id}.conv")

    def make(self, download: Download, disk_format: str, path: str) -> None:
        started = time.monotonic()
        with self._files():
            download(self._part, functools.partial(self._admit, disk_format))
            # whoever looks into it is no user who may read more than all may
            os.chmod(self._part, 0o644)
            size = inspect(self._part, disk_format)
            self._check_size(size)
            kind, ready = path.rpartition(".")[2], self._part
            if DISK_FORMATS[disk_format] != kind:
                needed = qemuimg.measure(self._part, DISK_FORMATS[disk_format])
                self._take(os.stat(self._part).st_size + needed)
                ready = self._converted
                qemuimg.convert(self._part, DISK_FORMATS[disk_format], ready, kind, size)
            self._finish(ready, path)
        LOG.info("Cached image %s (%d MiB) in %.1f s", self._image_id, os.stat(path).st_size >> 20,
                 time.monotonic() - started)

    def copy(self, copy: Callable[[str], None], length: int, path: str) -> None:
        with self._files():
            self._take(length)
            copy(self._part)
            if format_of(path) == "qcow2":
                image_formats.check(self._part, "qcow2")
            self._finish(self._part, path)

    @contextlib.contextmanager
    def _files(self) -> Iterator[None]:
        try:
            _remove(self._part, self._converted)
            yield
        finally:
            _remove(self._part, self._converted)

    def _admit(self, disk_format: str, size: int) -> None:
        self._check_size(least_disk(disk_format, size))
        self._take(size)

    def _check_size(self, size: int) -> None:
        if self._most is not None and size > self._most:
            raise ImageTooLarge(image_id=self._image_id, size=size, most=self._most)

    def _take(self, size: int) -> None:
        self._cache.room.take(self._image_id, self._lock, size, self._cache.evict)

    def _finish(self, ready: str, path: str) -> None:
        os.chmod(ready, 0o644)
        os.rename(ready, path)
        self._lock.truncate(0)


def inspect(path: str, disk_format: str | None) -> int:
    """The bytes of the disk that an image is. Only when its headers are found to be in order a tool may read it.

    Raises ImageUnacceptable: it is not what ``disk_format`` says, is damaged or encrypted, or refers to other files.
    """
    size = image_formats.check(path, disk_format)
    if disk_format is None or DISK_FORMATS[disk_format] == "raw":
        return size
    try:
        facts = qemuimg.info(path, DISK_FORMATS[disk_format])
    except exception.InvalidDiskInfo as error:
        reason = f"its content is not well-formed in the format {disk_format} ({error.kwargs['reason']})"
        raise exception.ImageUnacceptable(image_id="", reason=reason) from error
    detail = facts.get("format-specific", {}).get("data", {})
    if facts.get("backing-filename") or detail.get("data-file"):
        raise exception.ImageUnacceptable(image_id="", reason="it refers to another file")
    if facts.get("encrypted"):
        raise exception.ImageUnacceptable(image_id="", reason="it is encrypted")
    return max(size, int(facts["virtual-size"]))


@contextlib.contextmanager
def _blame(image_id: str) -> Iterator[None]:
    """Say which image, and that a file system is full."""
    try:
        yield
    except ImageTooLarge:
        raise
    except exception.ImageUnacceptable as error:
        raise exception.ImageUnacceptable(image_id=image_id, reason=error.kwargs.get("reason", "")) from error
    except exception.InvalidDiskInfo as error:
        raise exception.ImageUnacceptable(image_id=image_id, reason=error.message) from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise exception.DiskFull(reason=f"no room for image {image_id}") from error
        raise


def _age(path: str) -> float:
    """Seconds since the file was in use; 0: it is gone."""
    try:
        return time.time() - os.stat(path).st_mtime
    except FileNotFoundError:
        return 0


def _remove(*paths: str) -> None:
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
