"""Lock of the host, identity of the machine and its deployment, in files in ``state_path``.

nova-compute reports identity and deployment when it registers. A conductor then detects a database, a host name or a
copied disk that belongs to another machine or deployment."""

import fcntl
import logging
import os
import time
import uuid

from nova import exception
from nova.common import files
from nova.conf import CONF

LOG = logging.getLogger(__name__)

FILE = "host_identity"
DEPLOYMENT = "deployment"
# Seconds to wait until a nova-compute that is exiting releases the lock, and between two attempts.
_LOCK_TIMEOUT, _PAUSE = 10.0, 0.2
# Descriptors of the open lock files, inherited by forked workers.
_lock_files: list[int] = []


def lock_host(seconds: float = _LOCK_TIMEOUT) -> None:
    """Lock this host and state_path against a second nova-compute, while this process or one of its workers lives.
    Exits with os.EX_TEMPFAIL (75) if another one runs. A lock file left by a dead process is not locked."""
    path = os.path.join(CONF.state_path, f"nova-compute-{CONF.host}.lock")
    os.makedirs(CONF.state_path, mode=0o711, exist_ok=True)
    lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    until = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() > until:
                LOG.error("Another nova-compute of host %s uses state_path %s (process %s, which holds %s): exiting. "
                          "Stop that process, or configure another host and state_path for this one.", CONF.host,
                          CONF.state_path, os.pread(lock, 20, 0).decode(errors="replace").strip() or "unknown", path)
                os.close(lock)
                raise SystemExit(os.EX_TEMPFAIL) from None
            time.sleep(_PAUSE)
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    _lock_files.append(lock)


def of_this_machine() -> str:
    """Return the identity of this machine, created at the first call. Raises InvalidInput if the file is invalid,
    unreadable or cannot be written."""
    path = os.path.join(CONF.state_path, FILE)
    try:
        if not os.path.exists(path):
            _make(path, str(uuid.uuid4()))
        return _read(path)
    except (OSError, ValueError) as error:
        raise exception.InvalidInput(reason=f"{path} does not contain the identity of this machine: {error}") from error


def of_virtual_host(host: str) -> str:
    """Return the identity of one of several virtual hosts on this machine."""
    return str(uuid.uuid5(uuid.UUID(of_this_machine()), host))


def deployment() -> str | None:
    """Return the deployment of this machine, or None if it has none yet. Raises InvalidInput if the file is invalid."""
    path = os.path.join(CONF.state_path, DEPLOYMENT)
    try:
        return _read(path)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise exception.InvalidInput(reason=f"{path} does not contain a deployment id: {error}") from error


def join(deployment_id: str) -> None:
    """Store the deployment of this machine, unless it has one already. Raises InvalidInput."""
    path = os.path.join(CONF.state_path, DEPLOYMENT)
    try:
        if not os.path.exists(path):
            _make(path, deployment_id)
    except OSError as error:
        raise exception.InvalidInput(reason=f"{path} cannot be written: {error}") from error


def _read(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return str(uuid.UUID(file.read().strip()))


def _make(path: str, content: str) -> None:
    """Create the file at ``path`` atomically. Keep an existing file: another process was faster."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    files.create(path, f"{content}\n")
