"""The ends of console logs, as the API shows them."""

import os
from collections.abc import Iterable

from nova import exception

MAX_BYTES = 100 * 1024  # maximum number of bytes read from the end of a log


def output(paths: Iterable[str], uuid: str, lines: int | None = None) -> bytes:
    """Return the last ``lines`` (None or negative: all) of a guest's log, at most MAX_BYTES. ``paths``: the parts of
    the log, the newest first; parts may be missing. Raises ConsoleLogUnavailable if all are missing."""
    tail, is_complete = b"", False
    for path in paths:
        try:
            with open(path, "rb") as file:
                left = MAX_BYTES - len(tail)
                file.seek(max(0, os.fstat(file.fileno()).st_size - left))
                tail = file.read(left) + tail
            is_complete = True
        except FileNotFoundError:
            continue  # The log is not written yet, or is being rotated.
        if len(tail) >= MAX_BYTES:
            break
    if not is_complete:
        raise exception.ConsoleLogUnavailable(instance_id=uuid)
    return tail if lines is None or lines < 0 else last_lines(tail, lines)


def last_lines(text: bytes, count: int) -> bytes:
    """Return the last ``count`` lines; a newline at the end belongs to the last line."""
    if count <= 0:
        return b""
    body = text.removesuffix(b"\n")
    return b"\n".join(body.split(b"\n")[-count:]) + text[len(body):]
