"""The identity of this machine, made once, and the deployment that it belongs to: kept in ``state_path``, told when
nova-compute registers.

By these a conductor notices a database, a host name or a copied disk that belongs to another machine, or to another
deployment.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import uuid

from nova import exception
from nova.conf import CONF

FILE = "host_identity"
DEPLOYMENT = "deployment"


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
