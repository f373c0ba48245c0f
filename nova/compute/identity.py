"""The lock of this host, the identity of this machine, made once, and its deployment: files in ``state_path``.

Identity and deployment are reported when nova-compute registers. By these a conductor notices a database, a host name
or a copied disk that belongs to another machine, or to another deployment.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import tempfile
import time
import uuid

from nova import exception
from nova.conf import CONF

LOG = logging.getLogger(__name__)

FILE = "host_identity"
DEPLOYMENT = "deployment"
# Seconds that a nova-compute which was ended just now has until its lock is free, and between two tries.
_ENDING, _PAUSE = 10.0, 0.2
# The open lock files of this process and, after a fork, of its workers.
_held: list[int] = []


def lock_host(seconds: float = _ENDING) -> None:
    """Keep other nova-computes of this host from running on this state_path while this process or a worker lives.

    Ends the program with os.EX_TEMPFAIL (75) if another one runs. A lock file that a dead process left does not count.
    """
    path = os.path.join(CONF.state_path, f"nova-compute-{CONF.host}.lock")
    os.makedirs(CONF.state_path, mode=0o711, exist_ok=True)
    lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    until = time.monotonic() + seconds
    while not _flock(lock):
        if time.monotonic() > until:
            LOG.error("Another nova-compute of host %s runs on state_path %s (process %s, which holds %s): this one "
                      "ends. Stop the other one, or give this one a host and a state_path of its own.", CONF.host,
                      CONF.state_path, os.pread(lock, 20, 0).decode(errors="replace").strip() or "unknown", path)
            os.close(lock)
            raise SystemExit(os.EX_TEMPFAIL)
        time.sleep(_PAUSE)
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    _held.append(lock)


def _flock(descriptor: int) -> bool:
    """Lock the file unless somebody else has locked it; return True if it is locked now."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def of_this_machine() -> str:
    """Raises InvalidInput when the file in state_path has something else, or cannot be read or made."""
    path = os.path.join(CONF.state_path, FILE)
    try:
        if not os.path.exists(path):
            _make(path, str(uuid.uuid4()))
        return _read(path)
    except (OSError, ValueError) as error:
        raise exception.InvalidInput(reason=f"{path} does not tell the identity of this machine: {error}") from error


def of_virtual_host(host: str) -> str:
    """Of one of many hosts that this machine plays."""
    return str(uuid.uuid5(uuid.UUID(of_this_machine()), host))


def deployment() -> str | None:
    """What this machine belongs to; None: to nothing yet. Raises InvalidInput when the file has something else."""
    path = os.path.join(CONF.state_path, DEPLOYMENT)
    try:
        return _read(path)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise exception.InvalidInput(reason=f"{path} does not tell a deployment: {error}") from error


def join(told: str) -> None:
    """From now on this machine belongs to the deployment, unless it belonged to one before. Raises InvalidInput."""
    path = os.path.join(CONF.state_path, DEPLOYMENT)
    try:
        if not os.path.exists(path):
            _make(path, told)
    except OSError as error:
        raise exception.InvalidInput(reason=f"{path} cannot be written: {error}") from error


def _read(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return str(uuid.UUID(file.read().strip()))


def _make(path: str, content: str) -> None:
    """Complete or not at all, and never over one that somebody else has just made."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    descriptor, draft = tempfile.mkstemp(prefix=f".{os.path.basename(path)}-", dir=os.path.dirname(path))
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(f"{content}\n")
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
    finally:
        os.unlink(draft)
