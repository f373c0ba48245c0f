"""Reserved disk space for the journal, so that novad can roll back a component that fills the disk."""

from __future__ import annotations

import contextlib
import os
import pathlib

_SIZE = 1024 * 1024  # Bytes that the journal writes until the component that filled the disk is stopped.
_SCARCE = 256 * 1024  # Free bytes below which the reserve is released.
_PLENTY = 16 * _SIZE  # Free bytes above which the reserve is created again.


class Reserve:
    """A file that occupies disk blocks until the disk is full. Callers hold a lock."""

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        self._there = path.exists()

    def adjust(self) -> None:
        """Release the reserve if the disk is full; create it if it is missing and the disk has room."""
        about = os.statvfs(self._path.parent)
        free = about.f_bfree * about.f_frsize
        if self._there and free < _SCARCE:
            self._path.unlink(missing_ok=True)
            self._there = False
        elif not self._there and free > _PLENTY:
            with contextlib.suppress(OSError), open(os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
                os.posix_fallocate(file.fileno(), 0, _SIZE)
                self._there = True
