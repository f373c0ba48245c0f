"""The directory of a guest, CONF.instances_path/<uuid>: its owner, its content, and its name during a move.

Hosts may share a file system, so the directory records the host that uses it (``owner``); other hosts never remove it.
A file gets its name when it is complete; a crash leaves ``*.part`` files, which are created again."""

import contextlib
import dataclasses
import errno
import functools
import logging
import os
import shutil
import stat
import uuid as uuidlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from nova import exception
from nova.common import files
from nova.conf import CONF
from nova.objects.base import is_canonical

LOG = logging.getLogger(__name__)

_ASIDE = "_resize"
_OWNER = "owner"
MARK = "rebuilt"  # name of the file with the token of the newest rebuild, see Disks.replace


@dataclasses.dataclass(frozen=True)
class Owner:
    """The owner of a directory. ``token`` identifies the directory: hosts that read the same token share its files."""

    host: str
    token: str


def directory(uuid: str) -> str:
    """Return the path of the guest's directory. Raises InvalidInput if ``uuid`` is not a canonical UUID."""
    if not is_canonical(uuid):
        raise exception.InvalidInput(reason=f"{uuid} is not a uuid")
    return os.path.join(CONF.instances_path, uuid)


def make_instances_path() -> None:
    if not os.path.isdir(CONF.instances_path):
        os.makedirs(CONF.instances_path, exist_ok=True)
        os.chmod(CONF.instances_path, 0o755)  # noqa: S103


def make(uuid: str, host: str) -> str:
    """Create the guest's directory, make ``host`` its owner, and remove partial files left by a crash."""
    # The user of the hypervisor needs access: libvirt makes that user the owner of the files while the guest runs.
    make_instances_path()
    place = directory(uuid)
    os.makedirs(place, exist_ok=True)
    os.chmod(place, 0o711)  # noqa: S103
    for name in os.listdir(place):
        if name.endswith(".part"):
            os.unlink(os.path.join(place, name))
    take(uuid, host)
    return place


def once(place: str, name: str, build: Callable[[str], None]) -> None:
    """Create the file ``name`` in the directory ``place`` by ``build(path)``, unless the file exists."""
    path = os.path.join(place, name)
    if os.path.exists(path):
        return
    part = f"{path}.part"
    try:
        build(part)
        # Disks and config drives contain secrets.
        os.chmod(part, 0o600)
        os.rename(part, path)
    finally:
        files.remove(part)


def replace(place: str, builders: Mapping[str, Callable[[str], None]], retained: Collection[str], token: str,
            give_up: Callable[[], None]) -> None:
    """Replace the files in the directory ``place`` by new files, and keep the ``retained`` files. ``builders``: by file
    name, the function that creates the file at a path. ``give_up()`` removes the guest that uses the old files; it is
    called when all new files exist. At the end the file MARK contains ``token``."""
    builders = {**builders, MARK: functools.partial(write, token)}
    parts = {name: os.path.join(place, f"{name}.part") for name in builders}
    try:
        for name, build in builders.items():
            build(parts[name])
            os.chmod(parts[name], 0o600)
        give_up()
        for name in builders.keys() - {MARK}:
            os.rename(parts[name], os.path.join(place, name))
        for name in set(os.listdir(place)) - builders.keys() - set(retained) - {_OWNER}:
            path = os.path.join(place, name)
            if name.endswith(".part"):
                continue
            if os.path.isdir(path) and not os.path.islink(path):
                _remove_tree(path)
            else:
                os.unlink(path)
        os.rename(parts[MARK], os.path.join(place, MARK))  # All new files are complete now.
    finally:
        files.remove(*parts.values())


def text(uuid: str, name: str) -> str:
    """Return the content of a file of the guest, or "" if the file does not exist."""
    return files.text_of(os.path.join(directory(uuid), name)) or ""


def write(content: str, path: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(content)


def remove_files(uuid: str, names: Iterable[str]) -> None:
    """Remove files of the guest. Missing files are ignored."""
    files.remove(*(os.path.join(directory(uuid), name) for name in names))


# --- ownership -------------------------------------------------------------------------------------
def owner(place: str) -> Owner | None:
    """Return the owner of the directory, or None if the directory or its owner file (older releases) is missing."""
    with contextlib.suppress(NotADirectoryError):
        host, _, token = (files.text_of(os.path.join(place, _OWNER)) or "").strip().rpartition(" ")
        return Owner(host, token) if host else None
    return None


def take(uuid: str, host: str) -> None:
    """Make this host the owner of the guest's directory. Succeeds if there is no directory."""
    _take(directory(uuid), host)


def _take(place: str, host: str) -> str:
    recorded = owner(place)
    if recorded is not None and recorded.host == host:
        return recorded.token
    token = recorded.token if recorded is not None else uuidlib.uuid4().hex
    try:
        files.replace(os.path.join(place, _OWNER), f"{host} {token}\n", mode=0o644)
    except FileNotFoundError:
        LOG.debug("Cannot record the owner of %s: the directory does not exist", place)
    return token


def token(place: str, host: str) -> str:
    """Return the directory's token. If the directory has no owner, make ``host`` its owner."""
    recorded = owner(place)
    return recorded.token if recorded is not None else _take(place, host)


# --- renamed by a move -----------------------------------------------------------------------------
def aside(uuid: str) -> str:
    return directory(uuid) + _ASIDE


def is_aside(uuid: str) -> bool:
    return os.path.isdir(aside(uuid))


def set_aside(uuid: str) -> None:
    os.rename(directory(uuid), aside(uuid))


def put_back(uuid: str, host: str, former: str = "") -> None:
    """Restore the name of the directory that a move renamed. Replaces a newer directory of the guest, but raises
    MigrationError if its owner is neither ``host`` nor the host ``former``."""
    place = directory(uuid)
    if os.path.isdir(place):
        recorded = owner(place)
        if recorded is not None and recorded.host not in (host, former):
            raise exception.MigrationError(reason="another host uses the server's disks")
        _remove(place)
    os.rename(aside(uuid), place)


# --- queries ---------------------------------------------------------------------------------------
def retained_servers() -> set[str]:
    """Return the uuids of the guests with a directory here, in use or renamed."""
    return {entry.name.removesuffix(_ASIDE) for entry in _entries()}


def all_files() -> Iterator[str]:
    """Return the paths of all files of all guests."""
    for entry in _entries():
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            for name in os.listdir(entry.path):
                yield os.path.join(entry.path, name)


def _entries() -> Iterator[os.DirEntry[str]]:
    with contextlib.suppress(FileNotFoundError):
        for entry in os.scandir(CONF.instances_path):
            if is_canonical(entry.name.removesuffix(_ASIDE)):
                yield entry


# --- removal -----------------------------------------------------------------------------------------
def remove(uuid: str, host: str) -> None:
    """Remove a guest's directory, if it exists, unless another host owns it. Finishes an interrupted removal."""
    place = directory(uuid)
    recorded = owner(place)
    if recorded is not None and recorded.host != host:
        LOG.warning("[instance: %s] Not removing the disks: they are in use on host %s", uuid, recorded.host)
        return
    _remove(place)


def remove_aside(uuid: str) -> None:
    """Remove the directory that a move renamed. Succeeds if the directory does not exist."""
    _remove(aside(uuid))


def _remove(place: str) -> None:
    trash = place + ".deleted"
    with contextlib.suppress(FileNotFoundError):
        # Rename the directory first: a partly removed directory must not look like a guest.
        _remove_tree(trash)
        os.rename(place, trash)
    _remove_tree(trash)


def _remove_tree(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(path)


# --- the file system -----------------------------------------------------------------------------------
def supports_direct_io(path: str) -> bool:
    """Return True if the file system of ``path`` supports direct I/O."""
    probe = os.path.join(path, f".direct-io.{os.getpid()}")
    try:
        os.close(os.open(probe, os.O_CREAT | os.O_WRONLY | os.O_DIRECT, stat.S_IRUSR | stat.S_IWUSR))
        return True
    except OSError:
        return False
    finally:
        files.remove(probe)


@contextlib.contextmanager
def full_disk() -> Iterator[None]:
    """Convert the error of a full file system to DiskFull."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise exception.DiskFull(reason="no space for the server's disks") from error
        raise
