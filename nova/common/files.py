"""Small files: read, replaced atomically, and removed if they exist."""

import contextlib
import os
import tempfile


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
    descriptor, draft = tempfile.mkstemp(prefix=".new-", dir=os.path.dirname(path))
    try:
        with open(descriptor, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            os.fchmod(descriptor, mode)
            if sync:
                file.flush()
                os.fsync(descriptor)
        os.replace(draft, path)
    except BaseException:
        os.unlink(draft)
        raise


def remove(*paths: str) -> None:
    """Remove files. Succeeds if they do not exist."""
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
