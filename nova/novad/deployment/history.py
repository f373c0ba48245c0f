"""The history of deployed components: their states, rollbacks to a state with its data, and the digests of tags.

The states of a component are a tree. Each deployment that changes the image, the configuration or the data of a
component creates a state with the number of the deployment. ``nova rollback`` returns to the parent of a state:

    deploy, backup restore   the state that was current before
    rollback to a state      the parent of that state

A state ends when the next one begins; the deployment that creates the next state backs up the data first. A rollback
copies a state. Data that the component wrote since then are not part of the copied state: a rollback to that state
restores it again, unless the component has no data.

The first deployment of a tag records its digest; later ones refuse another image behind the tag. A tag is resolved once
per deployment. A new digest is accepted if the deployment names it (``COMPONENT=TAG@sha256:…``) or the platform file
does (``digest``). A channel may move by itself if the registry is authenticated by TLS.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from nova.common.errors import NotKnown, Refused
from nova.novad.deployment.journal import Change, Deployed, Deployment, Journal, State
from nova.novad.platform import Component
from nova.novad.runtime.podman import is_on_loopback

DEPLOY, ROLLBACK, REMOVE, ROTATE, BACK_UP, RESTORE = "deploy", "rollback", "remove", "rotate", "backup", "restore"

_DIGEST = "digest "  # Prefix of facts in the journal.


def changes_back(journal: Journal, names: Sequence[str], to: int | None) -> list[Change]:
    """Return the changes that return components (default: all) to a former state, with image and data. ``to``: a
    deployment, after which the component had that state; None: the parent of the current state. Raises NotKnown, and
    Refused if a backup was removed."""
    current = journal.components()
    for name in names:
        if name not in current:
            raise NotKnown(f"Component {name} is not deployed.")
    lines = {name: journal.states(name) for name in names or current}
    changes: dict[str, Change] = {}
    ends: dict[str, int] = {}
    for name, states in lines.items():
        has_data = any(volume.backup for volume in current[name].component.volumes)
        state = _target(states, to, has_data)
        if state is None:
            continue
        ends[name] = next(past_state.deployment for past_state in states if past_state.deployment > state.deployment)
        backup = _backup(journal, name, ends[name])
        changes[name] = Change(name=name, before=current[name], restore=backup, state=state.deployment,
                               after=_deployed(journal, state))
    for name in list(ends):
        for owner, (end, backup) in _written(journal, lines[name], ends[name]).items():
            if owner in current and end < ends.get(owner, end + 1):
                ends[owner] = end
                former = changes.get(owner, Change(name=owner, before=current[owner], after=current[owner]))
                changes[owner] = msgspec.structs.replace(former, restore=backup)
    return list(changes.values())


def changes_restored(journal: Journal, ident: int) -> list[Change]:
    """Return the change that restores data from a backup, with the image that wrote them. Raises NotKnown, Refused."""
    backup = journal.backup(ident)
    if backup is None:
        raise NotKnown(f"Backup {ident} does not exist.")
    if not backup.path:
        raise Refused(f"Backup {ident} was removed (keep_backups, keep_days).")
    current = journal.components().get(backup.component)
    if current is None:
        raise Refused(f"Component {backup.component} is not deployed: deploy it before its data are restored.")
    after = _after(journal, backup.writer, backup.component) or current
    return [Change(name=backup.component, before=current, after=after, restore=ident)]


def states_made(journal: Journal, deployment: Deployment) -> list[State]:
    """Return the states of components that a successful deployment creates."""
    return [state for change in deployment.changes if (state := _state(journal, deployment, change)) is not None]


def record_missing(journal: Journal) -> None:
    """Record the states of deployments of an earlier release, which recorded none."""
    while (deployment := journal.unrecorded()) is not None:
        journal.record(deployment.id, states_made(journal, deployment))


def _state(journal: Journal, deployment: Deployment, change: Change) -> State | None:
    """Return the state that a change creates; None if image, configuration and data of the component do not change."""
    before, after = change.before, change.after
    states = journal.states(change.name)
    current = states[-1] if states else State()
    parent = current.parent if current.removed else current.deployment
    state = State(component=change.name, deployment=deployment.id, parent=parent)
    if after is None:
        return msgspec.structs.replace(state, removed=True)
    state = msgspec.structs.replace(state, origin=after.deployment)
    same = before is not None and before.deployment == after.deployment
    if deployment.kind == ROLLBACK:
        if change.state or same:
            target = next((past for past in states if past.deployment == change.state), None)
        else:
            target = _guessed(journal, states, change)
        return target and msgspec.structs.replace(state, parent=target.parent, source=target.deployment)
    return None if same and not change.restore else state


def _guessed(journal: Journal, states: Sequence[State], change: Change) -> State | None:
    """Return the state that a rollback by an earlier release of novad restored: the newest state with the same image
    and configuration, before the deployment that created the restored backup (if a backup was restored)."""
    backup = journal.backup(change.restore)
    return next((candidate for candidate in reversed(states) if change.after is not None and not candidate.removed
                 and candidate.origin == change.after.deployment
                 and (backup is None or candidate.deployment < backup.deployment)), None)


def _target(states: Sequence[State], to: int | None, has_data: bool) -> State | None:
    """Return the state to restore; None if it does not exist, or if the current state is equal to it."""
    if not states:
        return None
    current = states[-1]
    wanted = current.parent if to is None else to
    state = next((past_state for past_state in reversed(states) if past_state.deployment <= wanted), None)
    same = (current.deployment,) if has_data else (current.deployment, current.source)
    return None if state is None or state.removed or state.deployment in same else state


def _deployed(journal: Journal, state: State) -> Deployed:
    """Return the component as deployed in a state. Raises Refused if the journal no longer has it."""
    if (after := _after(journal, state.deployment, state.component)) is None:
        raise Refused(f"Deployment {state.deployment} of {state.component} is not in the history any more.")
    return after


def _backup(journal: Journal, name: str, deployment: int) -> int:
    """Return the backup that a deployment created, or 0 if there were no data. Raises Refused if it was removed."""
    backups = journal.backups(name, dropped=True)
    backup = next((candidate for candidate in backups if candidate.deployment == deployment), None)
    if backup is not None and not backup.path:
        raise Refused(f"The data of {name} from before deployment {deployment} were removed "
                      "(keep_backups, keep_days); a rollback is not possible without them.")
    return backup.id if backup else 0


def _written(journal: Journal, states: Sequence[State], end: int) -> Mapping[str, tuple[int, int]]:
    """Return the other components (``data_of``) whose data a component's states changed since deployment ``end``.
    Each is mapped to the first deployment that changed its data, and to the backup made by that deployment."""
    written: dict[str, tuple[int, int]] = {}
    for state in states:
        if state.deployment >= end and not state.removed:
            for owner in _deployed(journal, state).component.data_of:
                if owner not in written and (backup := _backup(journal, owner, state.deployment)):
                    written[owner] = (state.deployment, backup)
    return written


def _after(journal: Journal, ident: int, name: str) -> Deployed | None:
    """Return a component as a deployment created it, or None if the journal does not have it."""
    deployment = journal.deployment(ident)
    return next((change.after for change in deployment.changes if change.name == name), None) if deployment else None


def former_digest(journal: Journal, component: Component, digest: str) -> str:
    """Return the recorded digest of the tag if it differs from ``digest``: a user must confirm the new one. Else ""."""
    # A channel of a registry with TLS may move: another image behind it is an update.
    moves = not component.version and not is_on_loopback(component.image)
    if component.digest or moves or not digest:
        return ""
    tagged = _tagged(component)
    # Earlier releases recorded the digests of deployed images only with the components.
    recorded = journal.fact(f"{_DIGEST}{tagged}") or next(
        (deployed.digest for deployed in journal.components().values() if _tagged(deployed.component) == tagged), "")
    return recorded if recorded != digest else ""


def record_digests(journal: Journal, changes: Iterable[Change]) -> None:
    for change in changes:
        if change.after is not None and change.after.digest and change.after != change.before:
            journal.set_fact(f"{_DIGEST}{_tagged(change.after.component)}", change.after.digest)


def _tagged(component: Component) -> str:
    return f"{component.image}:{component.tag}"
