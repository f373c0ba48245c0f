"""The security groups of the guests on this host, and their packet filters.

The groups that guests need are stored in files, groups/<id>.json below the state path, for the next start."""

import collections
import os
import threading
from collections.abc import Collection, Iterable, Sequence

from nova.common import files
from nova.network.linux import guest_filters, state_files
from nova.network.linux.ruleset import FilterBlock, Ruleset, fixed_block
from nova.objects.networks.network import GroupFilter

# Maximum number of cached groups, including groups that no guest here needs (yet).
_MAX_CACHED = 1000


class Groups:
    """The security groups of this host. Changes of ``filters`` (in ``table``) are made while :attr:`lock` is held."""

    def __init__(self, state_path: str, table: str, filters: Ruleset) -> None:
        self._root = os.path.join(state_path, "groups")
        self._table, self._filters = table, filters
        self._cache: collections.OrderedDict[int, GroupFilter] = collections.OrderedDict()
        # Held until the filters are changed, so that an older update never overwrites a newer one.
        self.lock = threading.RLock()

    def store(self, groups: Iterable[GroupFilter]) -> None:
        """Store the rules and members of these groups that are newer than the stored ones."""
        with self.lock:
            for group in groups:
                self._cache[group.id] = self.get(group.id).joined(group)
                self._cache.move_to_end(group.id)
            while len(self._cache) > _MAX_CACHED:
                self._cache.popitem(last=False)

    def get(self, group_id: int) -> GroupFilter:
        """Return the stored group, or an empty group, which accepts nothing, if it is unknown."""
        with self.lock:
            if group_id not in self._cache:
                self._cache[group_id] = state_files.read(self._file(group_id), GroupFilter) or GroupFilter(id=group_id)
            return self._cache[group_id]

    def complete(self, group_ids: Collection[int]) -> bool:
        """Return True if all rules and members are stored that guests in these groups need. Members without MAC
        addresses, as sent by the previous release, do not count: their rules accept nothing."""
        return (all(self.get(group_id).rules_version is not None for group_id in group_ids)
                and all(self.get(other).members_version is not None
                        and len(self.get(other).macs) == len(self.get(other).members)
                        for group_id in group_ids for other in self.get(group_id).named()))

    def refresh(self, groups: Sequence[GroupFilter]) -> None:
        """Store these groups, and update the packet filters of those in use. Raises NetworkSetupError."""
        with self.lock:
            self.store(groups)
            changed = self._changed_blocks(group.id for group in groups if self._filters.has(_name(group.id)))
            if changed:
                self._filters.change(changed)

    def missing_blocks(self, group_ids: Collection[int]) -> dict[str, FilterBlock]:
        """Return the missing or outdated filters of these groups and of the groups that their rules refer to."""
        with self.lock:
            return self._changed_blocks(self._needed(group_ids))

    def remove_unused(self, group_ids: Collection[int]) -> None:
        """Remove all groups that guests in ``group_ids`` do not need. Raises NetworkSetupError."""
        with self.lock:
            unused = sorted(self._stored() - self._needed(group_ids))
            # If the filters are not empty, they may include groups of an earlier process.
            if unused and not self._filters.empty():
                removed: dict[str, Sequence[str]] = dict.fromkeys(map(_name, unused), ())
                removed[_name(unused[0])] = guest_filters.remove_groups(self._table, unused)
                self._filters.change({}, removed)
            files.remove(*map(self._file, unused))

    def _changed_blocks(self, group_ids: Iterable[int]) -> dict[str, FilterBlock]:
        wanted = {}
        for group_id in sorted(set(group_ids)):
            group = self.get(group_id)
            if state_files.read(self._file(group_id), GroupFilter) != group:
                state_files.write(self._file(group_id), group)
            wanted[_name(group_id)] = fixed_block(guest_filters.replace_group(self._table, group))
        return self._filters.changed(wanted)

    def _needed(self, group_ids: Collection[int]) -> set[int]:
        """Return these groups and all groups that their rules refer to, directly or not."""
        needed: set[int] = set()
        unvisited = set(group_ids)
        while unvisited:
            needed |= unvisited
            unvisited = set().union(*(self.get(group_id).named() for group_id in unvisited)) - needed
        return needed

    def _stored(self) -> set[int]:
        names = os.listdir(self._root) if os.path.isdir(self._root) else []
        return {int(name.removesuffix(".json")) for name in names if name.removesuffix(".json").isdecimal()}

    def _file(self, group_id: int) -> str:
        return os.path.join(self._root, f"{group_id:d}.json")


def _name(group_id: int) -> str:
    """Return the name of the group's block of filter rules. No device has a name with a space."""
    return f"group {group_id:d}"
