"""Our packet filters in the root namespace: remembered, and put right when others change them.

Anybody with root may flush all packet filters of a host (a restart of nftables does). The kernel counts the changes of
all, so that finding out that there was none costs microseconds; else our chains are compared with what they were when
we had made them, and made again.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from nova import exception
from nova.network import commands, filters, group_filters
from nova.network.gates import Gate
from nova.network.nfnetlink import FAMILIES, PacketFilters
from nova.telemetry import metrics

LOG = logging.getLogger(__name__)

T = TypeVar("T")

# The table that a flush takes with all that was learned.
_MAIN = ("bridge", "")
_CHAIN = re.compile(r"(?:add|delete) chain (ip|ip6|bridge) \S+ (\S+)")


class Part(NamedTuple):
    """A part of the filters, whatever there is of it, and the gate at the device that it is about, if it has one.

    ``lines(lost)`` are the commands that make it; ``lost``: what it had learned is gone.
    """

    lines: Callable[[bool], Sequence[str]]
    gate: Gate | None = None


class Ruleset:
    """The tables called ``table``. Changes are atomic, and made by one thread at a time."""

    def __init__(self, table: str) -> None:
        self._table = table
        self._parts: dict[str, Part] = {}
        self._mutex = threading.Lock()
        self._kernel: PacketFilters | None = None
        # What the kernel said when all was as it shall be: the number of all changes (None: it must be compared), and
        # of our tables ("") and chains what tells them from others.
        self._generation: int | None = None
        self._known: dict[tuple[str, str], tuple[int, ...]] = {}

    def change(self, made: Mapping[str, Part], gone: Mapping[str, Sequence[str]] | None = None) -> None:
        """Make these parts, by name, new; those that are gone are unmade by the commands given for them.

        Raises NetworkSetupError, and nothing is changed.
        """
        lines = [line for part in (gone or {}).values() for line in part]
        lines += [line for part in made.values() for line in part.lines(False)]
        with self._mutex:
            self._check()
            before = self._ask(PacketFilters.generation)
            commands.nft([*filters.base(self._table), *lines])
            for name in gone or ():
                self._parts.pop(name, None)
            self._parts.update(made)
            self._generation = self._ask(lambda kernel: self._learn(kernel, lines, before))

    def empty(self) -> bool:
        """Whether nothing is made."""
        with self._mutex:
            return not self._parts

    def has(self, name: str) -> bool:
        """Whether a part of this name is made."""
        with self._mutex:
            return name in self._parts

    def unlike(self, wanted: Mapping[str, Part]) -> dict[str, Part]:
        """Those of these parts that are not made, or not so."""
        with self._mutex:
            before = {name: self._parts.get(name) for name in wanted}
        return {name: part for name, part in wanted.items()
                if (made := before[name]) is None or made.lines(False) != part.lines(False)}

    def remove(self) -> None:
        """Unmake everything."""
        with self._mutex:
            commands.nft(filters.remove_table(self._table))
            self._parts.clear()
            self._known.clear()

    def gates(self) -> dict[str, Gate]:
        """The gates that belong to what was made, by device."""
        with self._mutex:
            return {name: part.gate for name, part in self._parts.items() if part.gate is not None}

    def verify(self) -> None:
        """Put right what others changed. Raises NetworkSetupError."""
        with self._mutex:
            self._check()

    # --- under the mutex ------------------------------------------------------------------------
    def _check(self) -> None:
        if not self._parts:
            return
        generation = self._ask(PacketFilters.generation)
        if generation is None or generation == self._generation:
            return
        found = self._ask(self._found)
        if found is None:
            return
        if found != self._known:
            self._restore(found)
        else:
            self._generation = generation

    def _restore(self, found: Mapping[tuple[str, str], tuple[int, ...]]) -> None:
        differs = sorted(f"{family} {chain or 'table'}" for family, chain in found.keys() | self._known.keys()
                         if found.get((family, chain)) != self._known.get((family, chain)))
        LOG.warning("Somebody else changed the packet filters of guests (table %s: %d differences, %s): making them "
                    "again", self._table, len(differs), ", ".join(differs[:5]))
        lost = found.get(_MAIN) != self._known.get(_MAIN)
        base = filters.base(self._table)
        try:
            commands.nft([*base, *self._lines(lost)])
        except exception.NetworkSetupError:
            # What is left of them is in the way.
            commands.nft([*filters.remove_table(self._table), *base, *self._lines(lost=True)])
        metrics.FILTERS_RESTORED.inc()
        LOG.warning("The packet filters of guests are complete again (table %s)", self._table)
        self._known = self._ask(self._found) or {}
        self._generation = self._ask(PacketFilters.generation)

    def _lines(self, lost: bool) -> list[str]:
        return [line for part in self._parts.values() for line in part.lines(lost)]

    def _learn(self, kernel: PacketFilters, lines: Sequence[str], before: int | None) -> int | None:
        """What is known after these commands; returns the number of the last change if that was ours."""
        if not self._known:
            self._known = self._found(kernel)
            return kernel.generation()
        touched = {("ip", ""), ("ip6", "")}
        for line in (*filters.base(self._table), *lines):
            if (named := _CHAIN.match(line)) is not None:
                touched.add((named[1], named[2]))
        # Whoever jumps to them no more counted as one of their references.
        touched |= {known for known in self._known if known[1].startswith(group_filters.PREFIX)}
        for family, chain in touched:
            marks = kernel.chain(family, self._table, chain) if chain else kernel.table(family, self._table)
            if marks is None:
                self._known.pop((family, chain), None)
            else:
                self._known[family, chain] = marks
        after = kernel.generation()
        return after if before is not None and after == before + 1 else None

    def _found(self, kernel: PacketFilters) -> dict[tuple[str, str], tuple[int, ...]]:
        return {(family, chain): marks for family in FAMILIES
                for chain, marks in kernel.marks(family, self._table).items()}

    def _ask(self, question: Callable[[PacketFilters], T]) -> T | None:
        """The answer; None, and a line in the log, without one."""
        try:
            self._kernel = self._kernel or PacketFilters()
            return question(self._kernel)
        except OSError as error:
            LOG.warning("The kernel does not tell what packet filters there are: %s", error)
            if self._kernel is not None:
                self._kernel.close()
                self._kernel = None
            return None
