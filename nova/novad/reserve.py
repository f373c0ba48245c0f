"""Room on the disk for the journal: a component that fills the disk must not keep novad from putting it back."""

from __future__ import annotations

import contextlib
import os
import pathlib

_SIZE = 1024 * 1024  # bytes: what the journal writes until the component that filled the disk is stopped
_SCARCE = 256 * 1024  # free bytes at which the reserve is given up
_PLENTY = 16 * _SIZE  # free bytes at which the reserve is made anew


class Reserve:
    """A file that occupies blocks of the disk until the disk is full. For callers that hold a lock."""

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        self._there = path.exists()

    def adjust(self) -> None:
        """Give the reserve up if the disk is full; make it if it is not there and the disk has room. Cheap."""
        about = os.statvfs(self._path.parent)
        free = about.f_bfree * about.f_frsize
        if self._there and free < _SCARCE:
            self._path.unlink(missing_ok=True)
            self._there = False
        elif not self._there and free > _PLENTY:
            with contextlib.suppress(OSError), open(os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
                os.posix_fallocate(file.fileno(), 0, _SIZE)
                self._there = True
