"""What follows from the changes of a deployment, by what their components say of one another."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set

from nova.novad.errors import Refused
from nova.novad.journal import Change, Deployed
from nova.novad.platform import Volume


def volumes_of(change: Change) -> list[Volume]:
    """Those that the component had, and those that it gets."""
    found = {volume.name: volume for deployed in (change.after, change.before) if deployed is not None
             for volume in deployed.component.volumes}
    return list(found.values())


def stopping(changes: Sequence[Change], dumped: Set[str]) -> dict[str, Deployed]:
    """What does not run while data are copied: those that write them, and those of the changes that depend on one that
    stops: they would wait for it in vain, and some do not end before they have it again."""
    found: dict[str, Deployed] = {}
    for change in changes:
        before = change.before
        if before is not None and change.name not in dumped and (
                before.component.volumes or before.component.data_of or found.keys() & set(before.component.depends)):
            found[change.name] = before
    return found


def check_depends(changes: Sequence[Change], current: Iterable[str]) -> None:
    """Raises Refused: something would be deployed whose dependency is not, or whose data it changes.

    It would wait for that in vain; and data of an earlier life of it, which are kept, would not be put back.
    """
    there = {*current, *(change.name for change in changes)} - {change.name for change in changes if not change.after}
    for change in changes:
        if change.after is not None:
            component = change.after.component
            lacking = [name for name in dict.fromkeys([*component.depends, *component.data_of]) if name not in there]
            if lacking:
                raise Refused(f"{change.name} depends on what is not deployed: {', '.join(lacking)}. Name that, too, "
                              "or nothing, which is all. Nothing was changed.")
