"""The serial console log of a guest, which virtlogd writes, rotates and keeps across reboots."""

import glob
import os

from nova import exception

LOG_NAME = "console.log"
# Maximum number of bytes read from the end of a log.
MAX_BYTES = 100 * 1024


def log_path(directory: str) -> str:
    return os.path.join(directory, LOG_NAME)


def read(directory: str, instance_id: str, lines: int | None = None) -> bytes:
    """Return the last ``lines`` of the log (None: all), at most MAX_BYTES. Raises ConsoleLogUnavailable."""
    path = log_path(directory)
    # virtlogd renames a full piece to .0, the previous one to .1 and so on.
    older = sorted((piece for piece in glob.glob(glob.escape(path) + ".*") if piece.rpartition(".")[2].isdigit()),
                   key=lambda piece: int(piece.rpartition(".")[2]))
    tail = b""
    is_complete = False
    for piece in [path, *older]:
        try:
            tail = _end_of(piece, MAX_BYTES - len(tail)) + tail
            is_complete = True
        except FileNotFoundError:
            continue  # The log is not written yet, or is being rotated.
        if len(tail) >= MAX_BYTES:
            break
    if not is_complete:
        raise exception.ConsoleLogUnavailable(instance_id=instance_id)
    return tail if lines is None or lines < 0 else last_lines(tail, lines)


def last_lines(text: bytes, count: int) -> bytes:
    """Return the last ``count`` lines; a newline at the end belongs to the last one."""
    if count <= 0:
        return b""
    start = len(text) - 1 if text.endswith(b"\n") else len(text)
    for _ in range(count):
        start = text.rfind(b"\n", 0, start)
        if start < 0:
            return text
    return text[start + 1:]


def _end_of(path: str, size: int) -> bytes:
    with open(path, "rb") as file:
        length = os.fstat(file.fileno()).st_size
        file.seek(max(0, length - size))
        return file.read(size)
