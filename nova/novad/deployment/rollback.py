"""Restoration of the state before a change: data from backups, and the previous containers."""

import dataclasses
import logging
from collections.abc import Sequence

from nova.common.errors import NotKnown
from nova.novad.deployment.changes import volumes_of
from nova.novad.deployment.containers import Containers, Progress
from nova.novad.deployment.data import Data
from nova.novad.deployment.journal import Change, Deployment, Journal
from nova.novad.errors import Failed
from nova.novad.runtime.base import Runtime

LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Rollback:
    """Restores the data and containers of components. Each method can be repeated after an interruption."""

    journal: Journal
    runtime: Runtime
    data: Data
    containers: Containers

    def restore_backup(self, change: Change) -> None:
        """Restore the volumes from the backup of a change. A dump is read later, by the running component."""
        path = self.backup_path(change) if change.restore else ""
        self._restore_volumes(change, "" if path and self.data.dump(path).exists() else path)

    def _restore_volumes(self, change: Change, path: str) -> None:
        """Restore the volumes in the backup at ``path`` ("": none); clear the others, which had no data then."""
        restored: set[str] = set()
        if path:
            self.data.restore(change.name, path)
            restored = self.data.volumes_in(path)
        for volume in volumes_of(change):
            if volume.backup and volume.name not in restored:
                self.data.clear(change.name, volume.name)

    def backup_path(self, change: Change) -> str:
        """Return the path of the backup that a change restores. Raises NotKnown."""
        for backup in self.journal.backups(change.name):
            if backup.id == change.restore:
                return backup.path
        raise NotKnown(f"Backup {change.restore} of {change.name} does not exist.")

    def remove_partial_backups(self, deployment: Deployment) -> None:
        """Remove backups of a deployment that were not completed."""
        complete = {backup.path for backup in self.journal.backups()}
        for change in deployment.changes:
            path = self.data.place(change.name, label(deployment))
            if path not in complete:
                self.data.drop_backup(path)

    def restore_data(self, ident: int, changes: Sequence[Change], progress: Progress) -> None:
        """Stop the components and restore the data that deployment ``ident`` backed up."""
        paths = {backup.component: backup.path for backup in self.journal.backups() if backup.deployment == ident}
        for change in reversed(changes):
            if (stopping := change.after or change.before) is not None:
                progress(change.name, "undo: stopping")
                self.containers.remove(stopping)
        for change in changes:
            if change.name in paths:
                progress(change.name, "undo: restoring its data")
            self._restore_volumes(change, paths.get(change.name, ""))

    def restore_containers(self, changes: Sequence[Change], progress: Progress) -> None:
        """Create and start the previous containers, and wait for their health checks."""
        previous = [change.before for change in changes if change.before is not None]
        for before in previous:
            if self.runtime.find(self.containers.name(before.name)) is None:
                self.containers.make(before)
            if before.wanted:
                progress(before.name, "undo: starting the previous version")
                self.runtime.start(self.containers.name(before.name))
        for before in filter(lambda before: before.wanted, previous):
            try:
                self.containers.wait(before)
            except Failed as error:
                LOG.warning("The restored version of component %s is running, but not healthy: %s", before.name, error)


def label(deployment: Deployment) -> str:
    """Return the name of the backups of a deployment, with its time, since a new journal numbers from 1 again."""
    return f"{deployment.id}-{int(deployment.started * 1000)}"
