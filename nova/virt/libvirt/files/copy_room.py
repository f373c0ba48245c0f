"""Space for the copies of disks that snapshots need, which no flavor reserves.

Copies leave the space that running guests need: a guest whose disk cannot grow is paused."""

import contextlib
import os
import shutil
import threading
from collections.abc import Iterator

from nova import exception
from nova.conf import CONF

# Bytes that stay free if the operator reserves less ([DEFAULT]reserved_host_disk_mb).
_SPARE = 256 << 20


class CopyRoom:
    """The space reserved for copies of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Bytes reserved for running copies of known size.
        self._promised: dict[str, int] = {}

    def check(self, place: str) -> None:
        """Raise DiskFull if nothing more may be written in the directory ``place``."""
        with self._lock:
            self._check(place, 0)

    @contextlib.contextmanager
    def take(self, path: str, size: int) -> Iterator[None]:
        """Reserve ``size`` bytes for the new file ``path``. Raises DiskFull."""
        with self._lock:
            self._check(os.path.dirname(path), size)
            self._promised[path] = size
        try:
            yield
        finally:
            with self._lock:
                del self._promised[path]

    def _check(self, place: str, size: int) -> None:
        spare = max(int(CONF.reserved_host_disk_mb) << 20, _SPARE)
        coming = sum(max(0, promised - _written(path)) for path, promised in self._promised.items())
        if shutil.disk_usage(place).free - spare - coming <= size:
            raise exception.DiskFull(reason="no space for a copy of the server's disk")


def _written(path: str) -> int:
    try:
        return os.stat(path).st_blocks * 512
    except FileNotFoundError:
        return 0
