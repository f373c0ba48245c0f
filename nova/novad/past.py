"""What was deployed before, and the data that it left: how to go back to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from nova.novad.errors import Nothing, NotKnown, Refused
from nova.novad.journal import DONE, Change, Deployed, Deployment, Journal

_MOST = 1000  # deployments that are looked at


def changes_back(journal: Journal, names: Sequence[str], to: int | None) -> dict[str, Change]:
    """Back to how these components (all, if none is named) were after deployment ``to`` (None: before what brought
    them), image and data. Raises NotKnown; Refused when nothing is known, or its data are gone."""
    current = journal.components()
    for name in names:
        if name not in current:
            raise NotKnown(f"Component {name} is not deployed.")
    chosen = list(dict.fromkeys(names)) or sorted(current)
    past = _Past(journal)
    changes: dict[str, Change] = {}
    left: dict[str, int] = {}
    for name in chosen:
        found = past.after(name, to) if to is not None else past.before(name, current[name])
        if found is not None and found[0].deployment != current[name].deployment:
            earlier, left[name] = found
            changes[name] = Change(name=name, before=current[name], after=msgspec.structs.replace(earlier, wanted=True),
                                   restore=past.copy(name, left[name]))
    if not changes:
        raise Nothing("There is nothing to go back to: no other deployment of "
                      f"{', '.join(chosen) or 'any component'}{f' up to {to}' if to else ''} is known.")
    for name, deployment in left.items():
        for owner, change in past.data_of(current[name], deployment, current).items():
            changes.setdefault(owner, change)
    return changes


def changes_restored(journal: Journal, ident: int) -> list[Change]:
    """A component's data as a backup has them, with what wrote them. Raises NotKnown, Refused."""
    backup = next((one for one in journal.backups(dropped=True) if one.id == ident), None)
    if backup is None:
        raise NotKnown(f"There is no backup {ident}.")
    if not backup.path:
        raise Refused(f"Backup {ident} is not kept any more (keep_backups, keep_days).")
    current = journal.components().get(backup.component)
    if current is None:
        raise Refused(f"Component {backup.component} is not deployed: deploy it, then its data can be put back.")
    writer = journal.deployment(backup.writer)
    change = _of(writer, backup.component) if writer is not None else None
    after = change.after if change is not None and change.after is not None else current
    return [Change(name=backup.component, before=current, after=msgspec.structs.replace(after, wanted=True),
                   restore=ident)]


class _Past:
    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        # the newest first
        self._done: list[Deployment] = [one for one in journal.deployments(_MOST) if one.state == DONE]

    def after(self, name: str, deployment: int) -> tuple[Deployed, int] | None:
        """The component after this deployment, and the one that put another in its place."""
        for number, one in enumerate(self._done):
            change = _of(one, name) if one.id <= deployment else None
            if change is None:
                continue
            if change.after is None:
                return None
            later = [each.id for each in self._done[:number] if _replaces(_of(each, name), change.after)]
            return change.after, later[-1] if later else 0
        return None

    def before(self, name: str, now: Deployed) -> tuple[Deployed, int] | None:
        """The newest that is older than what there is, and the last deployment that put another in its place."""
        for one in self._done:
            change = _of(one, name)
            if one.id >= now.deployment or change is None or change.after is None or change.after.deployment != one.id:
                continue
            return change.after, next(
                (each.id for each in self._done if _replaces(_of(each, name), change.after)), 0)
        return None

    def copy(self, name: str, deployment: int) -> int:
        """The backup of a component's data that a deployment made; 0: there were none. Raises Refused: it is gone."""
        backup = next((one for one in self._journal.backups(name, dropped=True) if one.deployment == deployment), None)
        if backup is not None and not backup.path:
            raise Refused(f"The data of {name} from before deployment {deployment} are not kept any more "
                          "(keep_backups, keep_days); without them there is no way back.")
        return backup.id if backup else 0

    def data_of(self, now: Deployed, deployment: int, current: Mapping[str, Deployed]) -> dict[str, Change]:
        """What the component wrote elsewhere goes back with it, to the same moment as its own data."""
        copies = {owner: self.copy(owner, deployment) for owner in now.component.data_of if owner in current}
        return {owner: Change(name=owner, before=current[owner], after=current[owner], restore=copy)
                for owner, copy in copies.items() if copy}


def _of(deployment: Deployment, name: str) -> Change | None:
    return next((change for change in deployment.changes if change.name == name), None)


def _replaces(change: Change | None, deployed: Deployed) -> bool:
    """Whether it puts another one in the place of this one."""
    return change is not None and change.before is not None and change.before.deployment == deployed.deployment and (
        change.after is None or change.after.deployment != deployed.deployment)
