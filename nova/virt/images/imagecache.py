"""The image cache of a host: each base image is downloaded, checked and converted once.

A cached image is raw or qcow2 and complete: it is renamed to its final name at the end. The name is the image's id with
the format (``<id>.qcow2``), in ``instances_path``/``[image_cache]subdirectory_name``. The maximum size of the cache is
reserved in the host's DISK_GB inventory, so that images never use space promised to guests. Before an image is written,
its maximum size is stored in the image's lock file. The size counts as used as long as the lock is held."""

import collections
import contextlib
import errno
import fcntl
import functools
import logging
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from typing import IO

from nova import exception
from nova.common import files
from nova.conf import CONF
from nova.objects.images.image import least_disk
from nova.virt.images import image_formats, qemuimg
from nova.virt.images.image_formats import DISK_FORMATS

LOG = logging.getLogger(__name__)

# Default limit of the cache: its file system divided by this number ([image_cache]size_limit_mb is unset).
_DEFAULT_FRACTION = 10
LOCKS = "locks"
_ROOM = ".room"

# A function that removes an unused image, or returns False if every image is in use.
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
        existing = self._directory
        while not os.path.isdir(existing):
            existing = os.path.dirname(existing)
        return shutil.disk_usage(existing).total // _DEFAULT_FRACTION

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
                    LOG.warning("No space for image %s of %d MiB, the build on this host fails: the image cache is "
                                "limited to %d MiB ([image_cache]size_limit_mb)", image_id, -(-size >> 20), limit >> 20)
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
        sizes: collections.Counter[str] = collections.Counter()
        with contextlib.suppress(FileNotFoundError), os.scandir(self._directory) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    if entry.is_file(follow_symlinks=False):
                        image_id = entry.name.rpartition(".")[0] or entry.name
                        sizes[image_id] += entry.stat(follow_symlinks=False).st_blocks * 512
        return sizes


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


# Minimum seconds since the last use before an image is removed: a build may have fetched it, and create its disk later.
_GRACE = 300

# A function of a path and a second function: writes the data of an image to a new file at the path. Before that, calls
# the second function with the number of bytes, and that function raises an error if the image is too large.
Download = Callable[[str, Callable[[int], None]], None]


class ImageTooLarge(exception.ImageUnacceptable, template=(
        "Image {image_id} is unacceptable: it has {size} bytes, and at most {most} are allowed here")): ...


def cached_format(disk_format: str | None) -> str:
    """Return the format (raw or qcow2) in which images of this ``disk_format`` are cached. Raises ImageUnacceptable."""
    if disk_format not in DISK_FORMATS:
        raise exception.ImageUnacceptable(image_id="", reason=f"disk format {disk_format} is not supported")
    return "raw" if DISK_FORMATS[disk_format] == "raw" or CONF.force_raw_images else "qcow2"


def format_of(path: str) -> str | None:
    """Return the format of a cached image from its name, or None for other names."""
    kind = path.rpartition(".")[2]
    return kind if kind in ("raw", "qcow2") else None


class ImageCache:
    """The cache in ``directory`` (default: as configured). Safe for threads and processes. ``used``: returns the paths
    of images that guests use (None: no image is removed to free space)."""

    def __init__(self, directory: str | None = None, used: Callable[[], Iterable[str]] | None = None) -> None:
        self.directory = directory or os.path.join(CONF.instances_path, CONF.image_cache.subdirectory_name)
        self.space = CacheSpace(self.directory)
        self._used = used

    def fetch(self, image_id: str, download: Download, disk_format: str | None, most: int | None = None,
              variant: str = "") -> str:
        """Return the path of the cached image in the format ``cached_format(disk_format)``, fetched if missing.
        ``download`` writes the data to a new file; it is called once, even if several builds need the image at the same
        time. ``most``: maximum size of the disk in bytes (None: limited by the cache only). ``variant``: added to the
        file name of a copy that only requests with the same variant may use. Raises ImageUnacceptable (the image does
        not match ``disk_format``, or refers to other files), ImageTooLarge, DiskFull."""
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", image_id):
            raise exception.ImageUnacceptable(image_id=image_id, reason="its id is not a valid file name")
        name = f"{image_id}-{variant}" if variant else image_id
        with _blame(image_id):
            path = os.path.join(self.directory, f"{name}.{cached_format(disk_format)}")
            with self._locked(name) as lock:
                if not os.path.exists(path):
                    _Addition(self, name, lock, most).make(download, disk_format or "", path)
                _touch(path)
        return path

    def adopt(self, name: str, copy: Callable[[str], None], length: int) -> str:
        """Return the path of a cached file, copied from another host with ``copy(path)`` if missing. ``length``: size
        of the file in bytes. Raises DiskFull, and ImageUnacceptable if it refers to other files."""
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
            raise exception.ImageUnacceptable(image_id=name, reason="this is not a valid file name for the image cache")
        path = os.path.join(self.directory, name)
        image_id = name.rpartition(".")[0] or name
        with _blame(image_id), self._locked(image_id) as lock:
            if not os.path.exists(path):
                _Addition(self, image_id, lock, None).copy(copy, length, path)
            _touch(path)
        return path

    def evict(self) -> bool:
        """Remove the unused image whose last use is the oldest; return False if no image can be removed."""
        if self._used is None or not CONF.image_cache.remove_unused_base_images:
            return False
        try:
            used = set(self._used())
        except OSError as error:
            LOG.error("Cannot remove unused images: reading the images in use failed: %s", error)
            return False
        names = [name for name in os.listdir(self.directory) if format_of(name)]
        ages = {path: _age(path) for path in (os.path.join(self.directory, name) for name in names)}
        for path in sorted(ages.keys() - used, key=lambda path: -ages[path]):
            name = os.path.basename(path)
            with self._locked(name.rpartition(".")[0], wait=False) as lock:
                if lock is not None and _age(path) > _GRACE:
                    files.remove(path)
                    LOG.info("Removed %s from the image cache to free space", name)
                    return True
        return False

    def clean(self, used: set[str]) -> list[str]:
        """Remove images that are not in ``used`` (paths) and were not used for the configured time; return the removed
        paths. The time of the last use is the access time of the file, which this method updates for ``used``."""
        removed: list[str] = []
        if not os.path.isdir(self.directory):
            return removed
        keep = max(CONF.image_cache.remove_unused_original_minimum_age_seconds, _GRACE)
        for name in sorted(os.listdir(self.directory)):
            path = os.path.join(self.directory, name)
            if not os.path.isfile(path) or name.startswith("."):
                continue
            image_id, _, kind = name.rpartition(".")
            partial = kind in ("part", "conv")
            # another process may clean the cache, too
            with contextlib.suppress(FileNotFoundError):
                if path in used:
                    _touch(path)
                elif partial or CONF.image_cache.remove_unused_base_images:
                    with self._locked(image_id, wait=False) as lock:
                        # an unlocked partial file is left over from a crash
                        if lock is not None and (partial or _age(path) > keep):
                            os.unlink(path)
                            removed.append(path)
        for path in removed:
            LOG.info("Removed %s from the image cache", os.path.basename(path))
        return removed

    @contextlib.contextmanager
    def _locked(self, image_id: str, wait: bool = True) -> Iterator[IO[str] | None]:
        """Hold the lock file of the image. Yields None if ``wait`` is false and another process holds it."""
        locks = os.path.join(self.directory, LOCKS)
        if not os.path.isdir(locks):
            os.makedirs(locks, exist_ok=True)
            # the hypervisor's user must be able to read images, regardless of the umask
            os.chmod(self.directory, 0o755)  # noqa: S103
        with open(os.path.join(locks, image_id), "a+", encoding="ascii") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                yield None
                return
            yield file


class _Addition:
    """An image that is being added while its ``lock`` is held."""

    def __init__(self, cache: ImageCache, image_id: str, lock: IO[str] | None, most: int | None) -> None:
        assert lock is not None
        self._cache, self._image_id, self._lock, self._most = cache, image_id, lock, most
        self._partial = os.path.join(cache.directory, f"{image_id}.part")
        self._converted = os.path.join(cache.directory, f"{image_id}.conv")

    def make(self, download: Download, disk_format: str, path: str) -> None:
        started = time.monotonic()
        with self._files():
            download(self._partial, functools.partial(self._admit, disk_format))
            # qemu-img reads the file as an unprivileged user
            os.chmod(self._partial, 0o644)
            size = inspect(self._partial, disk_format)
            self._check_size(size)
            kind, ready = path.rpartition(".")[2], self._partial
            if DISK_FORMATS[disk_format] != kind:
                needed = qemuimg.measure(self._partial, DISK_FORMATS[disk_format])
                self._reserve(os.stat(self._partial).st_size + needed)
                ready = self._converted
                qemuimg.convert(self._partial, DISK_FORMATS[disk_format], ready, kind, size)
            self._finish(ready, path)
        LOG.info("Cached image %s (%d MiB) in %.1f s", self._image_id, os.stat(path).st_size >> 20,
                 time.monotonic() - started)

    def copy(self, copy: Callable[[str], None], length: int, path: str) -> None:
        with self._files():
            self._reserve(length)
            copy(self._partial)
            if format_of(path) == "qcow2":
                image_formats.check(self._partial, "qcow2")
            self._finish(self._partial, path)

    @contextlib.contextmanager
    def _files(self) -> Iterator[None]:
        try:
            files.remove(self._partial, self._converted)
            yield
        finally:
            files.remove(self._partial, self._converted)

    def _admit(self, disk_format: str, size: int) -> None:
        self._check_size(least_disk(disk_format, size))
        self._reserve(size)

    def _check_size(self, size: int) -> None:
        if self._most is not None and size > self._most:
            raise ImageTooLarge(image_id=self._image_id, size=size, most=self._most)

    def _reserve(self, size: int) -> None:
        self._cache.space.reserve(self._image_id, self._lock, size, self._cache.evict)

    def _finish(self, ready: str, path: str) -> None:
        os.chmod(ready, 0o644)
        os.rename(ready, path)
        self._lock.truncate(0)


def inspect(path: str, disk_format: str | None) -> int:
    """Return the size in bytes of an image's virtual disk. Tools read the file only after its headers are checked.
    Raises ImageUnacceptable if it does not match ``disk_format``, is damaged or encrypted, or refers to other files."""
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
        raise exception.ImageUnacceptable(image_id="", reason="the image refers to another file")
    if facts.get("encrypted"):
        raise exception.ImageUnacceptable(image_id="", reason="the image is encrypted")
    return max(size, int(facts["virtual-size"]))


@contextlib.contextmanager
def _blame(image_id: str) -> Iterator[None]:
    """Add the image id to errors, and convert a full file system to DiskFull."""
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
            raise exception.DiskFull(reason=f"no space for image {image_id}") from error
        raise


def _touch(path: str) -> None:
    """Record the use of an image in its access time, and keep its modification time."""
    os.utime(path, ns=(time.time_ns(), os.stat(path).st_mtime_ns))


def _age(path: str) -> float:
    """Return the seconds since the file was last used; 0 if it does not exist."""
    try:
        return time.time() - os.stat(path).st_atime
    except FileNotFoundError:
        return 0
