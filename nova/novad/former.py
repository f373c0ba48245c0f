"""The state before a change: data from backups, and the containers that ran."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from nova.novad.changes import volumes_of
from nova.novad.containers import Containers, Progress
from nova.novad.data import Data
from nova.novad.errors import Failed, NotKnown
from nova.novad.journal import Change, Deployment, Journal
from nova.novad.runtime.base import Runtime

LOG = logging.getLogger(__name__)


class Former:
    """Puts components back as they were. Each method may be repeated after it was cut short."""

    def __init__(self, journal: Journal, runtime: Runtime, data: Data, containers: Containers) -> None:
        self.journal = journal
        self.runtime = runtime
        self.data = data
        self.containers = containers

    def data_of(self, change: Change) -> None:
        """Put back the volumes that the backup has, and empty the others: then they had no data. A dump is read
        later, by the component."""
        place = self.backup(change) if change.restore else ""
        kept: set[str] = set()
        if place and not self.data.dump(place).exists():
            self.data.restore(change.name, place)
            kept = self.data.kept(place)
        for volume in volumes_of(change):
            if volume.backup and volume.name not in kept:
                self.data.clear(change.name, volume.name)

    def backup(self, change: Change) -> str:
        """The place of what it gets."""
        backup = next((one for one in self.journal.backups(change.name) if one.id == change.restore), None)
        if backup is None:
            raise NotKnown(f"There is no backup {change.restore} of {change.name}.")
        return backup.path

    def drop_halves(self, deployment: Deployment) -> None:
        """Copies that did not come to their end."""
        whole = {backup.path for backup in self.journal.backups()}
        for change in deployment.changes:
            place = self.data.place(change.name, label(deployment))
            if place not in whole:
                self.data.drop_backup(place)

    def put_back_data(self, ident: int, changes: Sequence[Change], progress: Progress) -> None:
        copies = {backup.component: backup for backup in self.journal.backups() if backup.deployment == ident}
        for change in reversed(changes):
            progress(change.name, "undo: stopping")
            stopping = change.after or change.before
            assert stopping is not None
            self.runtime.stop(self.containers.name(change.name), stopping.component.stop_timeout)
            self.runtime.remove(self.containers.name(change.name))
        for change in changes:
            copied: set[str] = set()
            if change.name in copies:
                progress(change.name, "undo: putting back its data")
                self.data.restore(change.name, copies[change.name].path)
                copied = self.data.kept(copies[change.name].path)
            for volume in volumes_of(change):
                if volume.backup and volume.name not in copied:
                    # It was empty before: what a first start left half done would disturb the next one.
                    self.data.clear(change.name, volume.name)

    def put_back_containers(self, changes: Sequence[Change], progress: Progress) -> None:
        for change in changes:
            before = change.before
            if before is None:
                continue
            if self.runtime.find(self.containers.name(change.name)) is None:
                self.containers.make(before)
            if before.wanted:
                progress(change.name, "undo: starting the one before")
                self.runtime.start(self.containers.name(change.name))
        for change in changes:
            if change.before is not None and change.before.wanted:
                try:
                    self.containers.wait(change.before)
                except Failed as error:
                    LOG.warning("Component %s is back: %s", change.name, error.message)


def label(deployment: Deployment) -> str:
    """Return the name of a deployment's backups.

    Numbers begin anew with a new journal, and copies that the old one knew stay.
    """
    return f"{deployment.id}-{int(deployment.started * 1000)}"
