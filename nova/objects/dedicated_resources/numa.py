"""The NUMA cells of hosts and guests, and how the second are fitted into the first.

Pure functions: a scheduler asks them about what it knows of a host, a conductor decides by them while it has the
node's row. Memory is in MiB, pages in KiB.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from nova.objects.base import Object

PREFER, ISOLATE, REQUIRE = "prefer", "isolate", "require"
SMALL, LARGE, ANY = "small", "large", "any"


class Pages(Object, kw_only=True):
    """The memory pages of one size in a cell; ``used`` by guests counts for huge ones only."""

    size_kb: int
    total: int
    reserved: int = 0
    used: int = 0

    @property
    def free_mb(self) -> int:
        return (self.total - self.reserved - self.used) * self.size_kb // 1024


class HostCell(Object, kw_only=True):
    """A cell of a host: ``cpus`` are for guests that share, ``pcpus`` for those that have theirs alone.

    ``siblings``: the threads of each core (none: every CPU is a core). The last three are what guests with a topology
    use; a driver does not report them.
    """

    id: int
    cpus: list[int] = []
    pcpus: list[int] = []
    siblings: list[list[int]] = []
    memory_mb: int = 0
    pages: list[Pages] = []
    socket: int | None = None
    used_cpus: int = 0
    pinned: list[int] = []
    used_memory_mb: int = 0


class HostTopology(Object, kw_only=True):
    cells: list[HostCell] = []

    def sockets(self, cells: Iterable[int]) -> set[int]:
        """The cells that share a socket with one of these (themselves, where no sockets are known)."""
        wanted = set(cells)
        sockets = {cell.socket for cell in self.cells if cell.id in wanted} - {None}
        return wanted | {cell.id for cell in self.cells if cell.socket in sockets}


class GuestCell(Object, kw_only=True):
    """A cell of a guest: ``cpus`` float over those of the host's cell, each of ``pcpus`` has one of its own.

    The last four are the result of fitting: the host's cell, guest CPU -> host CPU, host CPUs that are kept free for
    the emulator or beside isolated ones, and the size of the pages (None: as the hypervisor likes).
    """

    id: int
    cpus: list[int] = []
    pcpus: list[int] = []
    memory_mb: int = 0
    host_cell: int | None = None
    pinning: dict[int, int] = {}
    kept: list[int] = []
    pagesize_kb: int | None = None


class GuestTopology(Object, kw_only=True):
    """What a guest wants, and (once it was fitted) what it has.

    ``page_size``: small, large, any or a number of KiB; "" asks for nothing. ``emulator_cpu``: the emulator has a host
    CPU of its own in the first cell; ``emulator_policy`` is what the flavor says of it.
    """

    cells: list[GuestCell]
    thread_policy: str = ""
    emulator_policy: str = ""
    page_size: str = ""

    @property
    def pinned(self) -> bool:
        return any(cell.pcpus for cell in self.cells)

    @property
    def host_cells(self) -> list[int]:
        return [cell.host_cell for cell in self.cells if cell.host_cell is not None]


@dataclasses.dataclass(frozen=True)
class Rules:
    """How to fit: the allocation ratios of the node, whether full cells come first, and ``near``, which tells of some
    cells of the host whether the guest's devices can be had there."""

    cpu_ratio: float = 1.0
    memory_ratio: float = 1.0
    packing: bool = False
    near: Callable[[Sequence[int]], bool] | None = None
    # Cells with devices: first for guests that want some, last for others.
    with_devices: frozenset[int] = frozenset()


# --- what is used ------------------------------------------------------------------------------
def used(host: HostTopology, guests: Iterable[GuestTopology]) -> HostTopology:
    """The host with what these guests use of it."""
    cells = {cell.id: msgspec.structs.replace(
        cell, used_cpus=0, pinned=[], used_memory_mb=0, pages=[msgspec.structs.replace(each, used=0)
                                                              for each in cell.pages]) for cell in host.cells}
    for guest in guests:
        for part in guest.cells:
            if part.host_cell in cells:
                _add(cells[part.host_cell], part)
    for cell in cells.values():
        cell.pinned.sort()
    return HostTopology(cells=list(cells.values()))


def plus(host: HostTopology, guest: GuestTopology) -> HostTopology:
    """The host with this guest's usage on top; ``host`` itself stays as it is."""
    cells = []
    for cell in host.cells:
        parts = [part for part in guest.cells if part.host_cell == cell.id]
        if parts:
            cell = msgspec.structs.replace(cell, pinned=list(cell.pinned),
                                           pages=[msgspec.structs.replace(each) for each in cell.pages])
            for part in parts:
                _add(cell, part)
            cell.pinned.sort()
        cells.append(cell)
    return HostTopology(cells=cells)


def _add(cell: HostCell, part: GuestCell) -> None:
    cell.pinned = [*cell.pinned, *part.pinning.values(), *part.kept]
    cell.used_cpus += len(part.cpus)
    huge = next((pages for pages in _huge(cell) if pages.size_kb == part.pagesize_kb), None)
    if huge is not None:
        huge.used += part.memory_mb * 1024 // huge.size_kb
    else:
        cell.used_memory_mb += part.memory_mb


def _smallest(cell: HostCell) -> Pages | None:
    return min(cell.pages, key=lambda pages: pages.size_kb, default=None)


def _huge(cell: HostCell) -> list[Pages]:
    """Largest first."""
    smallest = _smallest(cell)
    return sorted((pages for pages in cell.pages if pages is not smallest), key=lambda pages: -pages.size_kb)


# --- fitting -----------------------------------------------------------------------------------
# Placements that are looked at until one has its devices near: with many cells there are astronomically many.
_MOST_PLACEMENTS = 1000


def fit(host: HostTopology, guest: GuestTopology, rules: Rules) -> GuestTopology | None:
    """The guest with a cell of the host for each of its own, no two the same; None: it does not fit."""
    if len(guest.cells) > len(host.cells):
        return None
    order = sorted(host.cells, key=lambda cell: _preference(cell, rules))
    # The cells are all different ones, so what one part of the guest takes does not matter to the others.
    choices = []
    for index in range(len(guest.cells)):
        fitting = ((cell.id, _fit_cell(cell, guest, index, rules)) for cell in order)
        choices.append({number: fitted for number, fitted in fitting if fitted is not None})
    for cells in itertools.islice(_placements(choices, frozenset()), _MOST_PLACEMENTS):
        if rules.near is None or rules.near([cell.host_cell for cell in cells if cell.host_cell is not None]):
            return msgspec.structs.replace(guest, cells=cells)
    return None


def _preference(cell: HostCell, rules: Rules) -> tuple[bool, int, int, int]:
    """Devices are for those who need them; else the emptiest cell comes first (the fullest, where that is wished)."""
    devices = cell.id in rules.with_devices
    free = cell.memory_mb - cell.used_memory_mb - sum(each.used * each.size_kb // 1024 for each in cell.pages)
    sign = 1 if rules.packing else -1
    return devices != (rules.near is not None), sign * free, sign * (len(cell.pcpus) - len(cell.pinned)), cell.id


def _placements(choices: Sequence[dict[int, GuestCell]], taken: frozenset[int]) -> Iterator[list[GuestCell]]:
    """Every way to place these cells of a guest (host cell -> how it fits there), the preferred ones first."""
    if not choices:
        yield []
        return
    for number, fitted in choices[0].items():
        if number not in taken and _matchable(choices[1:], taken | {number}):
            for rest in _placements(choices[1:], taken | {number}):
                yield [fitted, *rest]


def _matchable(choices: Sequence[dict[int, GuestCell]], taken: frozenset[int]) -> bool:
    """Whether each of these finds a host cell of its own: looked at first, so that no dead end is walked into."""
    owner: dict[int, int] = {}

    def place(index: int, seen: set[int]) -> bool:
        for number in choices[index]:
            if number not in taken and number not in seen:
                seen.add(number)
                if number not in owner or place(owner[number], seen):
                    owner[number] = index
                    return True
        return False

    return all(place(index, set()) for index in range(len(choices)))


def _fit_cell(cell: HostCell, guest: GuestTopology, index: int, rules: Rules) -> GuestCell | None:
    wanted = guest.cells[index]
    if wanted.cpus and (len(wanted.cpus) > len(cell.cpus)
                      or cell.used_cpus + len(wanted.cpus) > len(cell.cpus) * rules.cpu_ratio):
        return None
    size = _page_size(cell, wanted.memory_mb, guest, rules)
    if size == 0:
        return None
    kept = 1 if guest.emulator_policy == ISOLATE and index == 0 else 0
    chosen = _pin(cell, len(wanted.pcpus) + kept, guest.thread_policy) if wanted.pcpus or kept else ([], [])
    if chosen is None:
        return None
    cpus, beside = chosen
    return msgspec.structs.replace(
        wanted, host_cell=cell.id, pinning=dict(zip(wanted.pcpus, cpus, strict=False)),
        kept=sorted([*cpus[len(wanted.pcpus):], *beside]), pagesize_kb=size)


def _page_size(cell: HostCell, memory_mb: int, guest: GuestTopology, rules: Rules) -> int | None:
    """The size of the pages in which the cell has that much memory (None: no certain one); 0: it has not."""
    smallest = _smallest(cell)
    if not guest.page_size:
        # Pinned guests get what they were promised; of others more may be promised than there is.
        ratio = 1.0 if guest.pinned else rules.memory_ratio
        total = _memory(smallest) if smallest is not None else cell.memory_mb
        return None if cell.used_memory_mb + memory_mb <= total * ratio else 0
    huge = [pages.size_kb for pages in _huge(cell)
            if memory_mb * 1024 % pages.size_kb == 0 and memory_mb <= pages.free_mb]
    small = [smallest.size_kb] if smallest is not None and (
        cell.used_memory_mb + memory_mb <= _memory(smallest)
        and memory_mb * 1024 % smallest.size_kb == 0) else []
    wanted = {SMALL: small, LARGE: huge, ANY: [*huge, *small]}.get(guest.page_size)
    if wanted is None:
        wanted = [size for size in (*huge, *small) if str(size) == guest.page_size]
    return wanted[0] if wanted else 0


def _memory(smallest: Pages) -> int:
    """What a cell has in small pages."""
    return (smallest.total - smallest.reserved) * smallest.size_kb // 1024


def _pin(cell: HostCell, count: int, thread_policy: str) -> tuple[list[int], list[int]] | None:
    """``count`` free CPUs of the cell, and those that must stay free beside them; None: there are not enough."""
    taken, mine = set(cell.pinned), set(cell.pcpus)
    cores = [sorted(mine.intersection(core)) for core in cell.siblings] or [[cpu] for cpu in cell.pcpus]
    cores += [[cpu] for cpu in sorted(mine.difference(*cell.siblings))] if cell.siblings else []
    free = [[cpu for cpu in core if cpu not in taken] for core in cores]
    if thread_policy == ISOLATE:
        whole = [core for core, left in zip(cores, free, strict=True) if core and left == core]
        picked = sorted(whole)[:count]
        return ([core[0] for core in picked], [cpu for core in picked for cpu in core[1:]]) \
            if len(picked) == count else None
    usable = [left for core, left in zip(cores, free, strict=True)
              if left and (thread_policy != REQUIRE or (len(core) > 1 and len(left) > 1))]
    # Cores with most threads left first: neighbours of the guest are neighbours on the host.
    in_order = [cpu for left in sorted(usable, key=lambda left: (-len(left), left[0])) for cpu in left]
    return (in_order[:count], []) if len(in_order) >= count else None
