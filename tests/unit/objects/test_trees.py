"""Allocation of a request from the provider tree of a host."""

from __future__ import annotations

import collections
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nova.objects.hosts.node import Inventory, Provider
from nova.objects.hosts.scheduling import RequestGroup
from nova.objects.hosts.trees import Amounts, allocate, taken_from, with_usage


def provider(uuid: str, traits: str = "", **totals: int | Inventory) -> Provider:
    return Provider(uuid=uuid, name=uuid, traits=traits.split(), parent_uuid=None if uuid == "root" else "root",
                    inventories={name: total if isinstance(total, Inventory) else Inventory(total=total)
                                 for name, total in totals.items()})


TREE = [provider("root", "FAST", VCPU=8, MEMORY_MB=1024), provider("gpu0", "BIG", VGPU=2), provider("gpu1", VGPU=4)]


def group(traits: str = "", without: str = "", **resources: int) -> RequestGroup:
    return RequestGroup(resources=resources, required=traits.split(), forbidden=without.split())


def find(resources: dict[str, int], *groups: RequestGroup, tree: list[Provider] | None = None,
         **values: Any) -> dict[str, dict[str, int]] | None:
    return allocate(tree or TREE, Amounts(resources, groups=groups, **values))


@pytest.mark.parametrize(("resources", "groups", "values", "found"), [
    ({"VCPU": 2}, [], {}, {"root": {"VCPU": 2}}),
    ({"VCPU": 2, "VGPU": 3}, [], {}, {"root": {"VCPU": 2}, "gpu1": {"VGPU": 3}}),
    ({"VGPU": 5}, [], {}, None),  # A resource class is provided by a single provider.
    ({"FPGA": 1}, [], {}, None),
    ({"VCPU": 1}, [group(VGPU=1)], {}, {"root": {"VCPU": 1}, "gpu0": {"VGPU": 1}}),
    ({}, [group(VGPU=2), group(VGPU=4)], {}, {"gpu0": {"VGPU": 2}, "gpu1": {"VGPU": 4}}),
    ({}, [group(VGPU=1), group(VGPU=1)], {}, {"gpu0": {"VGPU": 2}}),
    ({}, [group(VGPU=1), group(VGPU=1)], {"isolate": True}, {"gpu0": {"VGPU": 1}, "gpu1": {"VGPU": 1}}),
    ({}, [group(VGPU=1)] * 3, {"isolate": True}, None),
    ({}, [group(VGPU=1, without="BIG")], {}, {"gpu1": {"VGPU": 1}}),
    ({}, [group(VGPU=3, traits="BIG")], {}, None),
    ({}, [group(VGPU=1, VCPU=1)], {}, None),  # No provider has both classes.
    # The first group must not use the only provider suitable for the second group.
    ({}, [group(VGPU=2), group(VGPU=2, traits="BIG")], {}, {"gpu0": {"VGPU": 2}, "gpu1": {"VGPU": 2}}),
    ({"VCPU": 1}, [], {"required": frozenset({"FAST"})}, {"root": {"VCPU": 1}}),
    ({"VCPU": 1}, [], {"required": frozenset({"BIG"})}, None),  # The provider with the trait provides no resources.
    ({"VGPU": 1}, [], {"required": frozenset({"BIG"})}, {"gpu0": {"VGPU": 1}}),
    ({"VGPU": 1}, [], {"forbidden": frozenset({"BIG"})}, {"gpu1": {"VGPU": 1}}),
    ({"VCPU": 1}, [], {"forbidden": frozenset({"FAST"})}, None),
])
def test_request_groups_are_allocated_from_the_provider_tree(resources: dict[str, int], groups: list[RequestGroup],
                                                             values: dict[str, Any],
                                                             found: dict[str, dict[str, int]] | None) -> None:
    assert find(resources, *groups, **values) == found


def test_allocation_respects_units_ratio_and_usage() -> None:
    one = [provider("root"), provider("gpu", VGPU=Inventory(total=4, ratio=2.0, min_unit=2, max_unit=4, step_size=2,
                                                            used=4))]
    assert [find({"VGPU": amount}, tree=one) is not None for amount in (1, 2, 3, 4, 6)] == [
        False, True, False, True, False]
    assert find({"VGPU": 4}, tree=with_usage(one, {"gpu": {"VGPU": 6}})) is None


def test_impossible_allocation_fails_quickly() -> None:
    many = [provider("root"), *(provider(f"gpu{number}", VGPU=2) for number in range(16))]
    assert find({}, *[group(VGPU=1)] * 16, tree=many, isolate=True) is not None
    assert find({}, *[group(VGPU=1)] * 33, tree=many) is None


_GROUPS = st.lists(st.builds(
    lambda amounts, traits: group(traits, **amounts),
    st.dictionaries(st.sampled_from(["VGPU", "VCPU"]), st.integers(1, 3), min_size=1),
    st.sampled_from(["", "BIG", "FAST"])), max_size=4)


@settings(max_examples=150)
@given(requests=st.lists(st.tuples(st.dictionaries(st.sampled_from(["VCPU", "VGPU"]), st.integers(1, 3)), _GROUPS,
                                   st.booleans()), max_size=6))
def test_allocations_are_complete_and_within_inventories(
        requests: list[tuple[dict[str, int], list[RequestGroup], bool]]) -> None:
    tree = list(TREE)
    for resources, groups, isolate in requests:
        found = find(resources, *groups, tree=tree, isolate=isolate)
        if found is None:
            continue
        given_out: collections.Counter[str] = collections.Counter()
        for amounts in found.values():
            given_out.update(amounts)
        asked = collections.Counter(resources)
        for each in groups:
            asked.update(each.resources)
        assert given_out == asked
        tree = taken_from(tree, found)
        assert all(inventory.used <= inventory.total for one in tree for inventory in one.inventories.values())
