"""Backups by a component's own command, while it runs: its output is the backup, and the input of what restores it.

A deployment copies directories, which is exact and fast, since the component stops for it anyway; a dump is for backups
of something that should go on.
"""

from __future__ import annotations

import os

from nova.novad.deployment.data import Data
from nova.novad.deployment.journal import Deployed
from nova.novad.errors import Failed
from nova.novad.masking import Masker
from nova.novad.runtime.base import Runtime

_LONGEST = 6 * 3600.0  # seconds of a command
_WORDS = 300  # characters of its output in an error


def make(runtime: Runtime, data: Data, container: str, deployed: Deployed, place: str, masker: Masker) -> int:
    """Write a dump of what runs to a backup's place; returns its bytes. Raises Failed, OSError. ``masker`` masks what
    the command says, before it is cut."""
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
    """Hand a dump to the component, which runs on empty directories. Raises Failed."""
    with data.dump(place).open("rb") as file:
        code, words = runtime.pipe(container, deployed.component.restore, _LONGEST, file, None)
    if code:
        raise Failed(f"The restore command of {deployed.name} failed with exit code {code}: "
                     f"{masker.text(words).strip()[-_WORDS:]}")
