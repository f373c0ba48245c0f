"""Transfer of image data to files with verification."""

import contextlib
import errno
import hashlib
import os
from collections.abc import Iterable

from nova import exception

CHUNK = 1024 * 1024


class Incomplete(Exception):
    """The received data do not have the expected size or checksum. A retry may succeed."""


def save(chunks: Iterable[bytes], path: str, size: int | None = None, digest: tuple[str, str] | None = None) -> int:
    """Write a new file of at most ``size`` bytes and return its size. The file is deleted if an error occurs.
    ``digest``: algorithm and hex digest, ignored if this host lacks the algorithm. Raises Incomplete, DiskFull."""
    supported = digest is not None and digest[0] in hashlib.algorithms_available
    sums = hashlib.new(digest[0], usedforsecurity=False) if digest and supported else None
    written = 0
    try:
        with open(path, "wb") as file:
            for chunk in chunks:
                written += len(chunk)
                if size is not None and written > size:
                    raise Incomplete(f"received more than its {size} bytes")
                file.write(chunk)
                if sums is not None:
                    sums.update(chunk)
        if size is not None and written != size:
            raise Incomplete(f"received {written} of {size} bytes")
        if sums is not None and digest is not None and sums.hexdigest() != digest[1].lower():
            raise Incomplete(f"its {digest[0]} checksum does not match")
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(path)
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise exception.DiskFull(reason="no space left for the image") from error
        raise
    return written


def read(path: str) -> Iterable[bytes]:
    """Yield the content of a file in chunks."""
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK):
            yield chunk
