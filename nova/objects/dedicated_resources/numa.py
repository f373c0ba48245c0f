"""NUMA cells of hosts and guests, and the placement of guest cells on host cells. Pure functions. Schedulers use them
with the reported state of a host; a conductor uses them while it holds the lock on the node's row. Memory is in MiB,
page sizes are in KiB."""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from nova.objects.base import Object

PREFER, ISOLATE, REQUIRE = "prefer", "isolate", "require"
SMALL, LARGE, ANY = "small", "large", "any"


class Pages(Object, kw_only=True):
    """The memory pages of one size in a cell. ``used`` counts huge pages only."""

    size_kb: int
    total: int
    reserved: int = 0
    used: int = 0

    @property
    def free_mb(self) -> int:
        return (self.total - self.reserved - self.used) * self.size_kb // 1024


class HostCell(Object, kw_only=True):
    """A cell of a host. ``cpus``: CPUs shared by guests; ``pcpus``: CPUs that are dedicated to single guests.
    ``siblings``: the hardware threads of each core (empty: every CPU is a core). The last three fields are the usage by
    guests with a topology; a driver does not report them."""

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
        """Return the cells on the same sockets as these cells. Without socket information: these cells."""
        wanted = set(cells)
        sockets = {cell.socket for cell in self.cells if cell.id in wanted} - {None}
        return wanted | {cell.id for cell in self.cells if cell.socket in sockets}


class GuestCell(Object, kw_only=True):
    """A cell of a guest. ``cpus`` float over the shared CPUs of the host's cell; each of ``pcpus`` is pinned. The four
    fields from ``host_cell`` on are the result of the placement: the host's cell, guest CPU -> host CPU, host CPUs
    reserved for the emulator or isolated threads, and the page size (None: chosen by the hypervisor)."""

    id: int
    cpus: list[int] = []
    pcpus: list[int] = []
    memory_mb: int = 0
    host_cell: int | None = None
    pinning: dict[int, int] = {}
    reserved_cpus: list[int] = msgspec.field(default_factory=list, name="kept")
    pagesize_kb: int | None = None


class GuestTopology(Object, kw_only=True):
    """The topology that a guest requests and, after the placement, the host cells and CPUs that it uses. ``page_size``:
    small, large, any or a number of KiB; "": not requested. ``emulator_policy``: the flavor's policy; with "isolate"
    the emulator has a dedicated host CPU in the first cell."""

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
class PlacementRules:
    """Placement rules: allocation ratios of the node, and ``near``, which returns True if the guest's devices are
    available near these cells of the host."""

    cpu_ratio: float = 1.0
    memory_ratio: float = 1.0
    packing: bool = False
    near: Callable[[Sequence[int]], bool] | None = None
    # Cells with devices: preferred for guests that request devices, avoided for other guests.
    with_devices: frozenset[int] = frozenset()


# --- usage ------------------------------------------------------------------------------
def used(host: HostTopology, guests: Iterable[GuestTopology]) -> HostTopology:
    """Return the NUMA cells of the host, used by these guests only: recorded usage of the cells is discarded."""
    cells = {cell.id: msgspec.structs.replace(
        cell, used_cpus=0, pinned=[], used_memory_mb=0, pages=[msgspec.structs.replace(pages, used=0)
                                                              for pages in cell.pages]) for cell in host.cells}
    for guest in guests:
        for guest_cell in guest.cells:
            if guest_cell.host_cell in cells:
                _add(cells[guest_cell.host_cell], guest_cell)
    for cell in cells.values():
        cell.pinned.sort()
    return HostTopology(cells=list(cells.values()))


def plus(host: HostTopology, guest: GuestTopology) -> HostTopology:
    """Return the host's cells with the usage of this guest added; ``host`` does not change."""
    cells = []
    for cell in host.cells:
        guest_cells = [guest_cell for guest_cell in guest.cells if guest_cell.host_cell == cell.id]
        if guest_cells:
            cell = msgspec.structs.replace(cell, pinned=list(cell.pinned),
                                           pages=[msgspec.structs.replace(pages) for pages in cell.pages])
            for guest_cell in guest_cells:
                _add(cell, guest_cell)
            cell.pinned.sort()
        cells.append(cell)
    return HostTopology(cells=cells)


def _add(cell: HostCell, guest_cell: GuestCell) -> None:
    cell.pinned = [*cell.pinned, *guest_cell.pinning.values(), *guest_cell.reserved_cpus]
    cell.used_cpus += len(guest_cell.cpus)
    huge = next((pages for pages in _huge(cell) if pages.size_kb == guest_cell.pagesize_kb), None)
    if huge is not None:
        huge.used += guest_cell.memory_mb * 1024 // huge.size_kb
    else:
        cell.used_memory_mb += guest_cell.memory_mb


def _smallest(cell: HostCell) -> Pages | None:
    return min(cell.pages, key=lambda pages: pages.size_kb, default=None)


def _huge(cell: HostCell) -> list[Pages]:
    """Return the huge pages of the cell, largest size first."""
    smallest = _smallest(cell)
    return sorted((pages for pages in cell.pages if pages is not smallest), key=lambda pages: -pages.size_kb)


# --- fitting -----------------------------------------------------------------------------------
# Maximum number of placements that are checked for devices near the guest. With many cells there are far more.
_MOST_PLACEMENTS = 1000


def fit(host: HostTopology, guest: GuestTopology, rules: PlacementRules) -> GuestTopology | None:
    """Return the guest with a distinct host cell assigned to each of its cells, or None if it does not fit."""
    if len(guest.cells) > len(host.cells):
        return None
    order = sorted(host.cells, key=lambda cell: _preference(cell, rules))
    # Host cells are distinct, so the placement of one guest cell does not affect the others.
    choices = []
    for index in range(len(guest.cells)):
        fitting = ((cell.id, _fit_cell(cell, guest, index, rules)) for cell in order)
        choices.append({number: fitted for number, fitted in fitting if fitted is not None})
    for cells in itertools.islice(_placements(choices, frozenset()), _MOST_PLACEMENTS):
        if rules.near is None or rules.near([cell.host_cell for cell in cells if cell.host_cell is not None]):
            return msgspec.structs.replace(guest, cells=cells)
    return None


def _preference(cell: HostCell, rules: PlacementRules) -> tuple[bool, int, int, int]:
    """Return the sort key of a cell. Cells with devices come first for guests that need devices, and last for others.
    Among the remaining cells, the emptiest comes first (with packing: the fullest)."""
    devices = cell.id in rules.with_devices
    free = cell.memory_mb - cell.used_memory_mb - sum(pages.used * pages.size_kb // 1024 for pages in cell.pages)
    sign = 1 if rules.packing else -1
    return devices != (rules.near is not None), sign * free, sign * (len(cell.pcpus) - len(cell.pinned)), cell.id


def _placements(choices: Sequence[dict[int, GuestCell]], taken: frozenset[int]) -> Iterator[list[GuestCell]]:
    """Yield all placements of these guest cells (host cell -> placed guest cell), preferred ones first."""
    if not choices:
        yield []
        return
    for number, fitted in choices[0].items():
        if number not in taken and _matchable(choices[1:], taken | {number}):
            for rest in _placements(choices[1:], taken | {number}):
                yield [fitted, *rest]


def _matchable(choices: Sequence[dict[int, GuestCell]], taken: frozenset[int]) -> bool:
    """Return True if each guest cell can get a distinct host cell (bipartite matching), to avoid dead ends."""
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


def _fit_cell(cell: HostCell, guest: GuestTopology, index: int, rules: PlacementRules) -> GuestCell | None:
    wanted = guest.cells[index]
    if wanted.cpus and (len(wanted.cpus) > len(cell.cpus)
                      or cell.used_cpus + len(wanted.cpus) > len(cell.cpus) * rules.cpu_ratio):
        return None
    size = _page_size(cell, wanted.memory_mb, guest, rules)
    if size == 0:
        return None
    emulator_cpus = 1 if guest.emulator_policy == ISOLATE and index == 0 else 0
    count = len(wanted.pcpus) + emulator_cpus
    chosen = _pin(cell, count, guest.thread_policy) if count else ([], [])
    if chosen is None:
        return None
    cpus, beside = chosen
    return msgspec.structs.replace(
        wanted, host_cell=cell.id, pinning=dict(zip(wanted.pcpus, cpus, strict=False)),
        reserved_cpus=sorted([*cpus[len(wanted.pcpus):], *beside]), pagesize_kb=size)


def _page_size(cell: HostCell, memory_mb: int, guest: GuestTopology, rules: PlacementRules) -> int | None:
    """Return a size of pages of which the cell has ``memory_mb`` free (None: any size), or 0 if there is none."""
    smallest = _smallest(cell)
    if not guest.page_size:
        # The memory of pinned guests is never overcommitted.
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
    """Return the memory of a cell in small pages."""
    return (smallest.total - smallest.reserved) * smallest.size_kb // 1024


def _pin(cell: HostCell, count: int, thread_policy: str) -> tuple[list[int], list[int]] | None:
    """Return ``count`` free CPUs of the cell, and the CPUs of the same cores that must stay free, or None if there are
    not enough."""
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
    # Prefer cores with the most free threads: threads of the guest then share cores on the host.
    in_order = [cpu for left in sorted(usable, key=lambda left: (-len(left), left[0])) for cpu in left]
    return (in_order[:count], []) if len(in_order) >= count else None
