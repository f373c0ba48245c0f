"""Nova's packet filters in the root namespace, and their restoration after another program changed them.

Every root process may flush all packet filters of a host (a restart of nftables does). The kernel counts all changes,
so that a check without changes costs microseconds. After a change of another program Nova's chains are compared with
the state after Nova's last change, and restored if they differ."""

import logging
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from nova import exception
from nova.network.linux import commands, filters, guest_filters
from nova.network.linux.egress_guard import Guard
from nova.network.linux.nfnetlink import FAMILIES, PacketFilters
from nova.telemetry import metrics

LOG = logging.getLogger(__name__)

T = TypeVar("T")

# The table with the learned flows, which are lost if the table is flushed.
_MAIN = ("bridge", "")
_CHAIN = re.compile(r"(?:add|delete) chain (ip|ip6|bridge) \S+ (\S+)")


class FilterBlock(NamedTuple):
    """The packet filters of a device, a security group or the host, and the egress guard of the device, if any.
    ``lines(lost)`` returns its nftables commands; ``lost``: True if the learned flows of the block are lost."""

    lines: Callable[[bool], Sequence[str]]
    guard: Guard | None = None


def fixed_block(lines: Sequence[str], guard: Guard | None = None) -> FilterBlock:
    """Return a block without learned flows."""
    return FilterBlock(lambda lost: lines, guard)


class Ruleset:
    """The packet filters in the tables called ``table``. Changes are atomic and serialized."""

    def __init__(self, table: str) -> None:
        self._table = table
        self._blocks: dict[str, FilterBlock] = {}
        self._mutex = threading.Lock()
        self._kernel: PacketFilters | None = None
        # Kernel state after the last change: the generation number (None: compare the chains at the next check), and
        # the marks of Nova's tables ("") and chains.
        self._generation: int | None = None
        self._marks: dict[tuple[str, str], tuple[int, ...]] = {}

    def change(self, added: Mapping[str, FilterBlock], removed: Mapping[str, Sequence[str]] | None = None) -> None:
        """Add or replace blocks, by name, and remove blocks by the given commands, in one transaction. Raises
        NetworkSetupError, after which nothing is changed."""
        lines = [line for commands_of_block in (removed or {}).values() for line in commands_of_block]
        lines += [line for block in added.values() for line in block.lines(False)]
        with self._mutex:
            self._check()
            before = self._query(PacketFilters.generation)
            commands.nft([*filters.base(self._table), *lines])
            for name in removed or ():
                self._blocks.pop(name, None)
            self._blocks.update(added)
            self._generation = self._query(lambda kernel: self._update_marks(kernel, lines, before))

    def empty(self) -> bool:
        """Return True if there are no blocks."""
        with self._mutex:
            return not self._blocks

    def has(self, name: str) -> bool:
        """Return True if there is a block of this name."""
        with self._mutex:
            return name in self._blocks

    def changed(self, wanted: Mapping[str, FilterBlock]) -> dict[str, FilterBlock]:
        """Return the ``wanted`` blocks that this ruleset lacks or has in another version."""
        with self._mutex:
            before = {name: self._blocks.get(name) for name in wanted}
        return {name: block for name, block in wanted.items()
                if (old := before[name]) is None or old.lines(False) != block.lines(False)}

    def remove(self) -> None:
        """Remove all blocks and tables."""
        with self._mutex:
            commands.nft(filters.remove_table(self._table))
            self._blocks.clear()
            self._marks.clear()

    def guards(self) -> dict[str, Guard]:
        """Return the egress guards of all blocks, by device."""
        with self._mutex:
            return {name: block.guard for name, block in self._blocks.items() if block.guard is not None}

    def verify(self) -> None:
        """Restore the packet filters if another program changed them. Raises NetworkSetupError."""
        with self._mutex:
            self._check()

    # --- under the mutex ------------------------------------------------------------------------
    def _check(self) -> None:
        if not self._blocks:
            return
        generation = self._query(PacketFilters.generation)
        if generation is None or generation == self._generation:
            return
        marks = self._query(self._read_marks)
        if marks is None:
            return
        if marks == self._marks:
            self._generation = generation
            return
        differs = sorted(f"{family} {chain or 'table'}" for family, chain in marks.keys() | self._marks.keys()
                         if marks.get((family, chain)) != self._marks.get((family, chain)))
        LOG.warning("Another program changed the packet filters of guests (table %s: %d differences, %s): restoring "
                    "them", self._table, len(differs), ", ".join(differs[:5]))
        lost = marks.get(_MAIN) != self._marks.get(_MAIN)
        base = filters.base(self._table)
        try:
            commands.nft([*base, *self._lines(lost)])
        except exception.NetworkSetupError:
            # The remaining objects conflict: remove the tables first.
            commands.nft([*filters.remove_table(self._table), *base, *self._lines(lost=True)])
        metrics.FILTERS_RESTORED.inc()
        LOG.warning("The packet filters of guests are restored (table %s)", self._table)
        self._marks = self._query(self._read_marks) or {}
        self._generation = self._query(PacketFilters.generation)

    def _lines(self, lost: bool) -> list[str]:
        return [line for block in self._blocks.values() for line in block.lines(lost)]

    def _update_marks(self, kernel: PacketFilters, lines: Sequence[str], before: int | None) -> int | None:
        """Read the marks that these commands changed; return the generation if no other program changed anything."""
        if not self._marks:
            self._marks = self._read_marks(kernel)
            return kernel.generation()
        touched = {("ip", ""), ("ip6", "")}
        for line in (*filters.base(self._table), *lines):
            if (match := _CHAIN.match(line)) is not None:
                touched.add((match[1], match[2]))
        # The reference counts of group chains change when guests begin or cease to jump to them.
        touched |= {chain for chain in self._marks if chain[1].startswith(guest_filters.GROUP_PREFIX)}
        for family, chain in touched:
            marks = kernel.chain(family, self._table, chain) if chain else kernel.table(family, self._table)
            if marks is None:
                self._marks.pop((family, chain), None)
            else:
                self._marks[family, chain] = marks
        after = kernel.generation()
        return after if before is not None and after == before + 1 else None

    def _read_marks(self, kernel: PacketFilters) -> dict[tuple[str, str], tuple[int, ...]]:
        return {(family, chain): marks for family in FAMILIES
                for chain, marks in kernel.marks(family, self._table).items()}

    def _query(self, query: Callable[[PacketFilters], T]) -> T | None:
        """Return the result of a query to the kernel, or None after logging a warning if the query fails."""
        try:
            self._kernel = self._kernel or PacketFilters()
            return query(self._kernel)
        except OSError as error:
            LOG.warning("Cannot read the packet filters from the kernel, retrying at the next check: %s", error)
            if self._kernel is not None:
                self._kernel.close()
                self._kernel = None
            return None
