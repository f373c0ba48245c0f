"""Writing image data to a file, checked on the way."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
from collections.abc import Iterable

from nova import exception

CHUNK = 1024 * 1024


class Incomplete(Exception):
    """What arrived is not what was promised; trying again may help."""


def save(chunks: Iterable[bytes], path: str, size: int | None = None, digest: tuple[str, str] | None = None) -> int:
    """Write a new file ``path``, not more than ``size`` bytes; returns its size. On any error there is no file.

    ``digest`` is (algorithm, hex digest); an algorithm that this host lacks is not checked. Raises
    Incomplete, DiskFull.
    """
    known = digest is not None and digest[0] in hashlib.algorithms_available
    sums = hashlib.new(digest[0], usedforsecurity=False) if digest and known else None
    written = 0
    try:
        with open(path, "wb") as file:
            for chunk in chunks:
                written += len(chunk)
                if size is not None and written > size:
                    raise Incomplete(f"more than its {size} bytes arrived")
                file.write(chunk)
                if sums is not None:
                    sums.update(chunk)
        if size is not None and written != size:
            raise Incomplete(f"{written} bytes arrived of {size}")
        if sums is not None and digest is not None and sums.hexdigest() != digest[1].lower():
            raise Incomplete(f"its {digest[0]} checksum does not match")
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(path)
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise exception.DiskFull(reason="there is no room for the image") from error
        raise
    return written


def read(path: str) -> Iterable[bytes]:
    """The content of a file, in pieces."""
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK):
            yield chunk
