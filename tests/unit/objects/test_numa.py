"""Fitting of guests into NUMA cells of a host: no double allocation, and no missed fit."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nova.objects.dedicated_resources.numa import (
    GuestCell,
    GuestTopology,
    HostCell,
    HostTopology,
    Pages,
    PlacementRules,
    fit,
    plus,
    used,
)


def host(cells=2, cpus=4, shared=True, threads=1, memory_mb=1024, huge=0, **values):
    """Return a host with consecutive CPU numbers, and small pages for the memory without ``huge`` pages of 2 MiB."""
    made = []
    for number in range(cells):
        mine = list(range(number * cpus, (number + 1) * cpus))
        made.append(HostCell(
            id=number, cpus=mine if shared else [], pcpus=[] if shared else mine, memory_mb=memory_mb,
            siblings=[mine[start:start + threads] for start in range(0, cpus, threads)] if threads > 1 else [],
            pages=[Pages(size_kb=4, total=(memory_mb - 2 * huge) * 256), Pages(size_kb=2048, total=huge)]
            if huge else [], **values))
    return HostTopology(cells=made)


def guest(*cells, **values):
    """Return a guest; ``cells`` are tuples of floating CPUs, pinned CPUs and MiB."""
    made, start = [], 0
    for number, (floating, pinned, memory) in enumerate(cells):
        cpus = list(range(start, start + floating + pinned))
        made.append(GuestCell(id=number, cpus=cpus[:floating], pcpus=cpus[floating:], memory_mb=memory))
        start += floating + pinned
    return GuestTopology(cells=made, **values)


def test_guest_cells_are_placed_on_different_host_cells():
    found = fit(host(), guest((2, 0, 512), (2, 0, 512)), PlacementRules())
    assert sorted(found.host_cells) == [0, 1]
    assert fit(host(), guest(*[(1, 0, 1)] * 3), PlacementRules()) is None


def test_emptiest_cell_is_used_first_unless_packing():
    busy = plus(host(), fit(host(), guest((1, 0, 100)), PlacementRules()))
    assert busy.cells[0].used_memory_mb == 100
    assert fit(busy, guest((1, 0, 1)), PlacementRules()).host_cells == [1]
    assert fit(busy, guest((1, 0, 1)), PlacementRules(packing=True)).host_cells == [0]


def test_cells_with_devices_are_reserved_for_guests_with_devices():
    rules = PlacementRules(with_devices=frozenset({0}))
    assert fit(host(), guest((1, 0, 1)), rules).host_cells == [1]
    near = PlacementRules(with_devices=frozenset({1}), near=lambda cells: 1 in cells)
    assert fit(host(), guest((1, 0, 1)), near).host_cells == [1]
    assert fit(host(), guest((1, 0, 1)), PlacementRules(near=lambda cells: False)) is None


def test_shared_cpus_are_overcommitted_but_not_within_a_guest():
    one = host(cells=1, cpus=2)
    assert fit(one, guest((3, 0, 1)), PlacementRules(cpu_ratio=4.0)) is None
    for count in range(4):
        found = fit(one, guest((2, 0, 1)), PlacementRules(cpu_ratio=4.0))
        assert found is not None, count
        one = plus(one, found)
    assert fit(one, guest((1, 0, 1)), PlacementRules(cpu_ratio=4.0)) is None


def test_pinned_guests_get_exclusive_cpus_and_no_memory_overcommit():
    one = host(cells=1, shared=False, memory_mb=100)
    found = fit(one, guest((0, 3, 60)), PlacementRules(memory_ratio=2.0))
    assert found.cells[0].pinning == {0: 0, 1: 1, 2: 2}
    busy = plus(one, found)
    assert fit(busy, guest((0, 2, 1)), PlacementRules()) is None
    assert fit(busy, guest((0, 1, 60)), PlacementRules(memory_ratio=2.0)) is None
    assert fit(busy, guest((0, 1, 40)), PlacementRules()).cells[0].pinning == {0: 3}


def test_mixed_guest_uses_shared_and_dedicated_cpus():
    both = HostTopology(cells=[HostCell(id=0, cpus=[0, 1], pcpus=[2, 3], memory_mb=100)])
    found = fit(both, guest((1, 2, 10)), PlacementRules())
    assert found.cells[0].pinning == {1: 2, 2: 3}
    busy = plus(both, found)
    assert (busy.cells[0].used_cpus, busy.cells[0].pinned) == (1, [2, 3])


@pytest.mark.parametrize(("policy", "count", "pinned", "kept"), [
    ("prefer", 2, [0, 1], []), ("prefer", 3, [0, 1, 2], []), ("require", 2, [0, 1], []), ("isolate", 2, [0, 2], [1, 3]),
    ("isolate", 3, None, None), ("", 4, [0, 1, 2, 3], [])])
def test_cpu_thread_policy_selects_pinned_and_reserved_cpus(policy, count, pinned, kept):
    found = fit(host(cells=1, shared=False, threads=2), guest((0, count, 1), thread_policy=policy), PlacementRules())
    assert (None if found is None else list(found.cells[0].pinning.values())) == pinned
    assert (None if found is None else found.cells[0].reserved_cpus) == kept


def test_thread_siblings_are_preferred_or_required():
    busy = host(cells=1, shared=False, threads=2, pinned=[0])
    assert list(fit(busy, guest((0, 2, 1)), PlacementRules()).cells[0].pinning.values()) == [2, 3]
    placed = fit(busy, guest((0, 2, 1), thread_policy="require"), PlacementRules())
    assert list(placed.cells[0].pinning.values()) == [2, 3]
    assert fit(busy, guest((0, 3, 1), thread_policy="require"), PlacementRules()) is None
    assert fit(host(cells=1, shared=False), guest((0, 1, 1), thread_policy="require"), PlacementRules()) is None
    assert list(fit(busy, guest((0, 1, 1), thread_policy="isolate"), PlacementRules()).cells[0].pinning.values()) == [2]


def test_isolated_emulator_has_a_cpu_in_the_first_cell():
    found = fit(host(shared=False), guest((0, 2, 1), (0, 2, 1), emulator_policy="isolate"), PlacementRules())
    assert [len(cell.reserved_cpus) for cell in found.cells] == [1, 0]
    assert found.cells[0].reserved_cpus[0] not in found.cells[0].pinning.values()
    assert fit(host(cells=1, shared=False), guest((0, 4, 1), emulator_policy="isolate"), PlacementRules()) is None


@pytest.mark.parametrize(("wish", "memory", "size"), [
    ("", 512, None), ("small", 512, 4), ("large", 512, 2048), ("any", 512, 2048), ("2048", 512, 2048), ("4", 512, 4),
    ("1048576", 512, 0), ("large", 513, 0), ("any", 501, 4), ("large", 600, 0), ("small", 600, 0), ("any", 600, 0)])
def test_page_size_of_a_cell_follows_the_request(wish, memory, size):
    """The host has a cell of 1 GiB with half of its memory in huge pages."""
    found = fit(host(cells=1, huge=256), guest((1, 0, memory), page_size=wish), PlacementRules())
    assert (0 if found is None else found.cells[0].pagesize_kb) == size


def test_huge_pages_are_consumed_and_reserved_pages_excluded():
    one = host(cells=1, huge=10)
    one.cells[0].pages[1].reserved = 4
    found = fit(one, guest((1, 0, 12), page_size="large"), PlacementRules())
    busy = plus(one, found)
    assert busy.cells[0].pages[1].used == 6
    assert fit(busy, guest((1, 0, 2), page_size="large"), PlacementRules()) is None
    assert busy.cells[0].used_memory_mb == 0


def test_adding_a_guest_does_not_modify_the_host_and_equals_a_recount():
    one = host(shared=False, huge=100)
    before = msgspec.json.encode(one)
    found = fit(one, guest((0, 2, 20), page_size="large"), PlacementRules())
    assert plus(one, found) == used(one, [found]) == used(plus(one, found), [found])
    assert msgspec.json.encode(one) == before


# --- against brute force -------------------------------------------------------------------------
_HOSTS = st.builds(host, cells=st.integers(1, 3), cpus=st.sampled_from((2, 4)), shared=st.booleans(),
                   threads=st.sampled_from((1, 2)), memory_mb=st.sampled_from((64, 128)), huge=st.sampled_from((0, 8)))
_GUESTS = st.builds(
    lambda cells, **values: guest(*cells, **values),
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(1, 40)), min_size=1, max_size=3),
    thread_policy=st.sampled_from(("", "prefer", "isolate", "require")),
    emulator_policy=st.sampled_from(("", "isolate")), page_size=st.sampled_from(("", "small", "large", "any", "2048")))


@given(one=_HOSTS, guests=st.lists(_GUESTS, max_size=8), ratio=st.sampled_from((1.0, 2.0)))
@settings(max_examples=150, deadline=None)
def test_cpus_and_pages_are_not_allocated_twice(one, guests, ratio):
    fitted, now = [], one
    for each in guests:
        found = fit(now, each, PlacementRules(cpu_ratio=ratio, memory_ratio=ratio))
        if found is not None:
            assert len(set(found.host_cells)) == len(found.cells)
            fitted.append(found)
            now = plus(now, found)
    assert now == used(one, fitted)
    for cell in now.cells:
        assert len(cell.pinned) == len(set(cell.pinned))
        assert set(cell.pinned) <= set(cell.pcpus)
        assert cell.used_cpus <= len(cell.cpus) * ratio
        assert all(pages.used <= pages.total - pages.reserved for pages in cell.pages)
        small = next((pages.free_mb for pages in cell.pages if pages.size_kb == 4), cell.memory_mb)
        assert cell.used_memory_mb <= small * ratio
    for each in fitted:
        for cell in each.cells:
            assert sorted(cell.pinning) == cell.pcpus
            assert set(cell.pinning.values()) <= set(one.cells[cell.host_cell].pcpus)


@given(one=_HOSTS, first=_GUESTS, second=_GUESTS)
@settings(max_examples=150, deadline=None)
def test_fit_finds_a_placement_if_a_permutation_of_cells_fits(one, first, second):
    found = fit(one, first, PlacementRules())
    now = one if found is None else plus(one, found)

    def fits_alone(cell, part, index):
        alone = GuestTopology(cells=[part], thread_policy=second.thread_policy, page_size=second.page_size,
                              emulator_policy=second.emulator_policy if index == 0 else "")
        # Memory overcommit is decided for the whole guest.
        return fit(HostTopology(cells=[cell]), alone, PlacementRules()) is not None

    possible = any(all(fits_alone(cell, part, index) for index, (cell, part) in enumerate(
        zip(cells, second.cells, strict=True)))
        for cells in itertools.permutations(now.cells, len(second.cells)))
    assert (fit(now, second, PlacementRules()) is not None) == possible


def test_unplaceable_guest_with_many_cells_is_refused_quickly():
    """Sixteen cells have 20,922,789,888,000 permutations."""
    wide = host(cells=16)
    assert len(fit(wide, guest(*[(1, 0, 1)] * 16), PlacementRules()).host_cells) == 16
    assert fit(wide, guest(*[(1, 0, 1)] * 15, (1, 0, 4096)), PlacementRules()) is None
    assert fit(wide, guest(*[(1, 0, 1)] * 16), PlacementRules(near=lambda cells: False)) is None
