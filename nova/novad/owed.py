"""Deferred cleanup: what to remove once a change is committed.

It is stored with the change, and done after any number of restarts of novad. It cannot be undone; no deployed component
needs what it removes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from nova.novad.data import Data
from nova.novad.errors import RuntimeFault, told
from nova.novad.journal import Change, Deployed, Journal, Owed
from nova.novad.runtime.base import Runtime
from nova.novad.secrets import Secrets

LOG = logging.getLogger(__name__)

BACKUP, FILES, DATA, NETWORK, SECRETS, KEPT = "backup", "files", "data", "network", "secrets", "kept secrets"


def left_by(changes: Iterable[Change], current: Iterable[Deployed]) -> list[Owed]:
    """Return the cleanup of files and networks that no component uses after these changes were made or undone.

    ``current``: what is deployed now.
    """
    kept = {one.name: one for one in current}
    used = {network for one in kept.values() for network in one.component.networks}
    gone = [deployed for change in changes for deployed in (change.before, change.after) if deployed is not None]
    return [*(Owed(kind=FILES, name=name) for name in sorted({one.name for one in gone} - set(kept))),
            *(Owed(kind=NETWORK, name=name) for name in sorted(
                {network for one in gone for network in one.component.networks} - used))]


class Payer:
    """The executor of the deferred cleanup, within the lock of changes. ``platform``: returns the present name."""

    def __init__(self, platform: Callable[[], str], journal: Journal, runtime: Runtime, data: Data,
                 secrets: Secrets) -> None:
        self._platform = platform
        self._journal = journal
        self._runtime = runtime
        self._data = data
        self._secrets = secrets

    def pay(self, progress: Callable[[str, str], None]) -> None:
        """Do all cleanup; what the runtime or the system refuses now is left for the next time."""
        for one in self._journal.owed():
            try:
                self._pay(one, progress)
            except (RuntimeFault, OSError) as error:
                LOG.warning("%s %s is removed later: %s", one.kind, one.name, error)
                progress(one.name, f"its {one.kind} cannot be removed yet, and novad goes on trying: "
                                   f"{told(error) if isinstance(error, OSError) else error}")
                continue
            self._journal.paid(one.id)

    def _pay(self, one: Owed, progress: Callable[[str, str], None]) -> None:
        if one.kind == BACKUP:
            self._data.drop_backup(one.name)
        elif one.kind == FILES and one.name not in self._journal.components():
            self._data.remove_files(one.name)
        elif one.kind == DATA:
            progress(one.name, "removing its data")
            self._data.remove(one.name)
        elif one.kind == NETWORK and not any(
                one.name in deployed.component.networks for deployed in self._journal.components().values()):
            self._runtime.remove_network(f"{self._platform()}-{one.name}")
        elif one.kind == SECRETS:
            progress("", "removing secrets")
            self._secrets.remove()
        elif one.kind == KEPT:
            self._secrets.forget()
