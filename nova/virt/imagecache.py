"""The images that guests of this host stand on: each is downloaded, checked and converted once.

A cached image is raw or qcow2 and complete: it gets its name when it is finished. The name is the
image's id and its format (``<id>.qcow2``), below ``instances_path``/``[image_cache]subdirectory_name``.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import re
import time
from collections.abc import Callable, Iterator

from nova import exception
from nova.conf import CONF
from nova.virt import image_formats, qemuimg
from nova.virt.image_formats import DISK_FORMATS

LOG = logging.getLogger(__name__)

# A build that fetched its image a moment ago may not have its disk on it yet.
_GRACE = 300


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
    """The cache in ``directory`` (default: as configured). Safe among threads and processes."""

    def __init__(self, directory: str | None = None) -> None:
        self.directory = directory or os.path.join(CONF.instances_path, CONF.image_cache.subdirectory_name)

    def fetch(self, image_id: str, download: Callable[[str], None], disk_format: str | None) -> str:
        """The path of the cached image; its format is ``cached_format(disk_format)``.

        ``download`` writes the image's data to the (new) file that it is given; it is called when the
        image is not here yet, once even if many builds want the image at the same time.
        Raises ImageUnacceptable (not what ``disk_format`` says, or it refers to other files) and DiskFull.
        """
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", image_id):
            raise exception.ImageUnacceptable(image_id=image_id, reason="its id is no file name")
        with _blame(image_id):
            path = os.path.join(self.directory, f"{image_id}.{cached_format(disk_format)}")
            with self._locked(image_id):
                if not os.path.exists(path):
                    self._add(image_id, download, DISK_FORMATS[disk_format or ""], disk_format, path)
                os.utime(path)
        return path

    def adopt(self, name: str, copy: Callable[[str], None]) -> str:
        """The path of a cached file by its name, made by ``copy(path)`` if another host has it and this one has not."""
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
            raise exception.ImageUnacceptable(image_id=name, reason="it is no file name")
        path = os.path.join(self.directory, name)
        image_id = name.rpartition(".")[0] or name
        with self._locked(image_id):
            if not os.path.exists(path):
                part = os.path.join(self.directory, f"{image_id}.part")
                try:
                    _remove(part)
                    copy(part)
                    os.chmod(part, 0o644)
                    os.rename(part, path)
                finally:
                    _remove(part)
            os.utime(path)
        return path

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
                    with self._locked(image_id, wait=False) as locked:
                        # a half-made file whose lock is free is a crash's
                        if locked and (half or _age(path) > keep):
                            os.unlink(path)
                            removed.append(path)
        for path in removed:
            LOG.info("Removed %s from the image cache", os.path.basename(path))
        return removed

    # --- inside ------------------------------------------------------------------------------------
    def _add(self, image_id: str, download: Callable[[str], None], qemu_format: str, disk_format: str | None,
             path: str) -> None:
        part = os.path.join(self.directory, f"{image_id}.part")
        converted = os.path.join(self.directory, f"{image_id}.conv")
        started = time.monotonic()
        try:
            _remove(part, converted)
            download(part)
            # whoever looks into it is no user who may read more than all may
            os.chmod(part, 0o644)
            size = inspect(part, disk_format)
            if path.endswith(f".{qemu_format}"):
                ready = part
            else:
                qemuimg.convert(part, qemu_format, converted, path.rpartition(".")[2], size)
                ready = converted
            os.chmod(ready, 0o644)
            os.rename(ready, path)
        finally:
            _remove(part, converted)
        LOG.info("Cached image %s (%d MiB) in %.1f s", image_id, os.stat(path).st_size >> 20,
                 time.monotonic() - started)

    @contextlib.contextmanager
    def _locked(self, image_id: str, wait: bool = True) -> Iterator[bool]:
        """Hold the image's lock; yields False when ``wait`` is false and somebody else has it."""
        locks = os.path.join(self.directory, "locks")
        if not os.path.isdir(locks):
            os.makedirs(locks, exist_ok=True)
            # the hypervisor's user reads the images, whatever this process's umask is
            os.chmod(self.directory, 0o755)  # noqa: S103
        with open(os.path.join(locks, image_id), "a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                yield False
                return
            yield True


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
    except exception.ImageUnacceptable as error:
        raise exception.ImageUnacceptable(image_id=image_id, reason=error.kwargs.get("reason", "")) from error
    except exception.InvalidDiskInfo as error:
        raise exception.ImageUnacceptable(image_id=image_id, reason=error.message) from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise exception.DiskFull(reason=f"no room for image {image_id}") from error
        raise


def _age(path: str) -> float:
    return time.time() - os.stat(path).st_mtime


def _remove(*paths: str) -> None:
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
