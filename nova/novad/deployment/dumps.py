"""Backups by a component's own commands while it runs: ``dump`` writes the backup, ``restore`` reads it.

A deployment copies directories, which is exact and fast, because the component stops anyway. A dump is for backups of
components that must keep running.
"""

from __future__ import annotations

import os

from nova.novad.deployment.data import Data
from nova.novad.deployment.journal import Deployed
from nova.novad.errors import Failed
from nova.novad.masking import Masker
from nova.novad.runtime.base import Runtime

_LONGEST = 6 * 3600.0  # Timeout of a command in seconds.
_WORDS = 300  # Maximum number of characters of its output in an error.


def make(runtime: Runtime, data: Data, container: str, deployed: Deployed, place: str, masker: Masker) -> int:
    """Write a dump of a running component to the place of a backup; return its size. Raises Failed, OSError.

    ``masker`` masks secrets in the error output before it is shortened.
    """
    with data.new_dump(place) as file:
        code, words = runtime.pipe(container, deployed.component.dump, _LONGEST, None, file)
        if code:
            raise Failed(f"The dump command of {deployed.name} failed with exit code {code}: "
                         f"{masker.text(words).strip()[-_WORDS:]}")
        file.flush()
        os.fsync(file.fileno())
        size = file.tell()
    if not size:
        raise Failed(f"The dump command of {deployed.name} wrote no data.")
    return size


def restore(runtime: Runtime, data: Data, container: str, deployed: Deployed, place: str, masker: Masker) -> None:
    """Send the dump to the restore command of the component, which runs with empty volumes. Raises Failed."""
    with data.dump(place).open("rb") as file:
        code, words = runtime.pipe(container, deployed.component.restore, _LONGEST, file, None)
    if code:
        raise Failed(f"The restore command of {deployed.name} failed with exit code {code}: "
                     f"{masker.text(words).strip()[-_WORDS:]}")
