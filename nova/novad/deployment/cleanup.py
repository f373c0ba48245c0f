"""Deferred cleanup: removals after a change is committed. They are stored with the change and cannot be undone."""

import dataclasses
import logging
from collections.abc import Callable, Iterable

from nova.common.errors import os_error_text
from nova.novad.deployment.data import Data
from nova.novad.deployment.journal import Change, CleanupTask, Deployed, Journal
from nova.novad.errors import RuntimeFault
from nova.novad.runtime.base import Runtime
from nova.novad.secrets import Secrets

LOG = logging.getLogger(__name__)

# Kinds of tasks, as stored in the journal and shown to users.
BACKUP, FILES, DATA, NETWORK, SECRETS, OLD_SECRETS = "backup", "files", "data", "network", "secrets", "kept secrets"
VOLUME = "podman volume"
UNNAMED = "unnamed "  # Facts of the journal: volumes without a name of containers that a removal of data removes.


def tasks_after(changes: Iterable[Change], current: Iterable[Deployed]) -> list[CleanupTask]:
    """Return the cleanup of files and networks that none of the ``current`` components uses after these changes."""
    deployed = {component.name: component for component in current}
    used = {network for component in deployed.values() for network in component.component.networks}
    changed = [component for change in changes for component in (change.before, change.after) if component is not None]
    removed = {component.name for component in changed} - set(deployed)
    unused = {network for component in changed for network in component.component.networks} - used
    return [*(CleanupTask(kind=FILES, name=name) for name in sorted(removed)),
            *(CleanupTask(kind=NETWORK, name=name) for name in sorted(unused))]


@dataclasses.dataclass(frozen=True)
class CleanupExecutor:
    """The executor of cleanup tasks. The caller holds the lock of changes. ``platform`` returns the platform's name."""

    platform: Callable[[], str]
    journal: Journal
    runtime: Runtime
    data: Data
    secrets: Secrets

    def run(self, progress: Callable[[str, str], None]) -> None:
        """Execute all tasks. A task that fails stays in the journal and is retried."""
        for task in self.journal.cleanup_tasks():
            try:
                self._execute(task, progress)
            except (RuntimeFault, OSError) as error:
                LOG.warning("Cannot remove %s %s, retrying later: %s", task.kind, task.name, error)
                why = os_error_text(error) if isinstance(error, OSError) else error
                progress(task.name, f"cannot remove its {task.kind}, retrying later: {why}")
            else:
                self.journal.cleanup_done(task.id)

    def _execute(self, task: CleanupTask, progress: Callable[[str, str], None]) -> None:
        if task.kind == BACKUP:
            self.data.drop_backup(task.name)
        elif task.kind == FILES and task.name not in self.journal.components():
            self.data.remove_files(task.name)
        elif task.kind == DATA:
            progress(task.name, "removing its data")
            self.data.remove(task.name)
        elif task.kind == VOLUME:
            self.runtime.remove_volume(task.name)
            self.journal.drop_fact(f"{UNNAMED}{task.name}")
        elif task.kind == NETWORK and not any(
                task.name in deployed.component.networks for deployed in self.journal.components().values()):
            self.runtime.remove_network(f"{self.platform()}-{task.name}")
        elif task.kind == SECRETS:
            progress("", "removing secrets")
            self.secrets.remove()
        elif task.kind == OLD_SECRETS:
            self.secrets.forget()
