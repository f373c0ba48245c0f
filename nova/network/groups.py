"""The security groups of the guests on this host: what was told of them, and their packet filters.

What guests here need is kept in files, groups/<id>.json below the state path, for the next start.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import os
import threading
from collections.abc import Collection, Iterable, Sequence

from nova.network import group_filters, records
from nova.network.ruleset import Part, Ruleset
from nova.objects.network import GroupFilter

# Groups of which is remembered what was told, whether guests here need them (yet) or not.
_HEARD = 1000


class Groups:
    """Changes of ``filters`` (the table called ``table``) are made with :attr:`lock` held."""

    def __init__(self, state_path: str, table: str, filters: Ruleset) -> None:
        self._root = os.path.join(state_path, "groups")
        self._table = table
        self._filters = filters
        self._heard: collections.OrderedDict[int, GroupFilter] = collections.OrderedDict()
        # Held until the filters are as was heard, so that what is older never overtakes.
        self.lock = threading.RLock()

    def hear(self, told: Iterable[GroupFilter]) -> None:
        """Older parts change nothing."""
        with self.lock:
            for each in told:
                self._heard[each.id] = self.known(each.id).joined(each)
                self._heard.move_to_end(each.id)
            while len(self._heard) > _HEARD:
                self._heard.popitem(last=False)

    def known(self, group_id: int) -> GroupFilter:
        """All that was told of a group; one of which nothing was lets nobody in."""
        with self.lock:
            if group_id not in self._heard:
                recorded = records.read(self._file(group_id), GroupFilter)
                self._heard[group_id] = recorded or GroupFilter(id=group_id)
            return self._heard[group_id]

    def complete(self, group_ids: Collection[int]) -> bool:
        """Whether all was told that guests in these groups need (what lacks MAC addresses lets nobody in)."""
        return (all(self.known(group_id).rules_version is not None for group_id in group_ids)
                and all(self.known(other).members_version is not None
                        and len(self.known(other).macs) == len(self.known(other).members)
                        for group_id in group_ids for other in self.known(group_id).named()))

    def refresh(self, told: Sequence[GroupFilter]) -> None:
        """Make the filters of those that guests here need as they were told. Raises NetworkSetupError."""
        with self.lock:
            self.hear(told)
            made = self._parts(each.id for each in told if self._filters.has(_name(each.id)))
            if made:
                self._filters.change(made)

    def parts(self, group_ids: Collection[int]) -> dict[str, Part]:
        """The filters of these groups and of those that their rules name, where they are not made yet."""
        with self.lock:
            return self._parts(self._needed(group_ids))

    def tidy(self, group_ids: Collection[int]) -> None:
        """Guests are in these groups: others that were made are not needed any more. Raises NetworkSetupError."""
        with self.lock:
            going = sorted(self._recorded() - self._needed(group_ids))
            # Those of the process before this one may be there as well, where there is anything.
            if going and not self._filters.empty():
                gone: dict[str, Sequence[str]] = dict.fromkeys(map(_name, going), ())
                gone[_name(going[0])] = group_filters.gone(self._table, going)
                self._filters.change({}, gone)
            for group_id in going:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self._file(group_id))

    def _parts(self, group_ids: Iterable[int]) -> dict[str, Part]:
        wanted = {}
        for group_id in sorted(set(group_ids)):
            known = self.known(group_id)
            if records.read(self._file(group_id), GroupFilter) != known:
                records.write(self._file(group_id), known)
            wanted[_name(group_id)] = Part(functools.partial(_lines, self._table, known))
        return self._filters.unlike(wanted)

    def _needed(self, group_ids: Collection[int]) -> set[int]:
        """These groups, and whose members the rules name that are, or may still be, made."""
        found: set[int] = set()
        untried = set(group_ids)
        while untried:
            found |= untried
            untried = set().union(*(self.known(group_id).named() for group_id in untried)) - found
        return found

    def _recorded(self) -> set[int]:
        names = os.listdir(self._root) if os.path.isdir(self._root) else []
        return {int(name.removesuffix(".json")) for name in names if name.removesuffix(".json").isdecimal()}

    def _file(self, group_id: int) -> str:
        return os.path.join(self._root, f"{group_id:d}.json")


def _name(group_id: int) -> str:
    """Of the group's part of the filters; no device is called so."""
    return f"group {group_id:d}"


def _lines(table: str, told: GroupFilter, _lost: bool) -> list[str]:
    return group_filters.group(table, told)
