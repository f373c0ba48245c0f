"""Small files: read, created or replaced atomically, and removed if they exist."""

import contextlib
import os
import tempfile
from collections.abc import Iterator


def text_of(path: str) -> str | None:
    """Return the content of a text file, or None if the file does not exist."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        return None


def replace(path: str, content: str | bytes, mode: int = 0o600, sync: bool = False) -> None:
    """Write a file atomically, whatever the umask is. ``sync``: wait until the content is on the disk. Raises
    OSError."""
    with _draft(path, content, mode, sync) as draft:
        os.replace(draft, path)


def create(path: str, content: str | bytes) -> bool:
    """Create a file atomically, with mode 0600 and its content on the disk. Return False if the file exists: it is not
    changed. Raises OSError."""
    with _draft(path, content, 0o600, True) as draft, contextlib.suppress(FileExistsError):
        os.link(draft, path)
        return True
    return False


@contextlib.contextmanager
def _draft(path: str, content: str | bytes, mode: int, sync: bool) -> Iterator[str]:
    """Write the content to a temporary file beside ``path``, which is removed afterwards. ``sync``: wait until the
    content, and then the entry that the caller makes of it, are on the disk."""
    descriptor, draft = tempfile.mkstemp(prefix=".new-", dir=os.path.dirname(path))
    try:
        with open(descriptor, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            os.fchmod(descriptor, mode)
            if sync:
                file.flush()
                os.fsync(descriptor)
        yield draft
        if sync:
            sync_directory(os.path.dirname(path) or ".")
    finally:
        remove(draft)


def sync_directory(path: str | os.PathLike[str]) -> None:
    """Wait until the entries of a directory are on the disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove(*paths: str) -> None:
    """Remove files. Succeeds if they do not exist."""
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
