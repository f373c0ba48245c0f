"""Small files: read, created or replaced atomically, and removed if they exist. Private directories."""

import contextlib
import logging
import os
import stat
import tempfile
from collections.abc import Iterator

LOG = logging.getLogger(__name__)


def text_of(path: str) -> str | None:
    """Return the content of a text file, or None if the file does not exist."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        return None


def replace(path: str | os.PathLike[str], content: str | bytes, mode: int = 0o600, sync: bool = False) -> None:
    """Write a file atomically, whatever the umask is. ``sync``: wait until the content is on the disk. Raises
    OSError."""
    with _draft(path, content, mode, sync) as draft:
        os.replace(draft, path)


def create(path: str | os.PathLike[str], content: str | bytes) -> bool:
    """Create a file atomically, with mode 0600 and its content on the disk. Return False if the file exists: it is not
    changed. Raises OSError."""
    with _draft(path, content, 0o600, True) as draft, contextlib.suppress(FileExistsError):
        os.link(draft, path)
        return True
    return False


@contextlib.contextmanager
def _draft(path: str | os.PathLike[str], content: str | bytes, mode: int, sync: bool) -> Iterator[str]:
    """Write the content to a temporary file beside ``path``, removed at the end of the block. ``sync``: wait until the
    content, and then the directory entry that the caller creates, are on the disk."""
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


def private_directory(path: str | os.PathLike[str], owned: bool = False) -> None:
    """Create a directory of mode 0700, or restrict an existing one and log that. ``owned``: also make this user its
    owner. Raises OSError."""
    os.makedirs(path, mode=0o700, exist_ok=True)
    status, user = os.stat(path), os.geteuid()
    mode, foreign = stat.S_IMODE(status.st_mode), owned and status.st_uid != user
    if mode == 0o700 and not foreign:
        return
    if foreign:
        os.chown(path, user, -1)
    os.chmod(path, 0o700)
    LOG.warning("Restricted %s to its owner: mode %04o of user %d became 0700 of user %d", path, mode, status.st_uid,
             user if foreign else status.st_uid)


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
