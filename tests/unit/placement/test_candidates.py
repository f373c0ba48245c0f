"""Allocation candidates of one tree of providers."""

import itertools
import time

from nova.objects.hosts import candidates
from nova.objects.hosts.node import Inventory
from nova.objects.hosts.placement import CandidateRequest, ProviderView, RequestedGroup


def provider(uuid, parent=None, traits=(), aggregates=(), **inventories):
    return ProviderView(
        uuid=uuid, name=uuid, generation=0, root_uuid="root", parent_uuid=parent, traits=list(traits),
        aggregates=list(aggregates), inventories={
            name: amount if isinstance(amount, Inventory) else Inventory(total=amount)
            for name, amount in inventories.items()})


TREE = [provider("root", VCPU=4, aggregates=["agg"], traits=["HW_ROOT"]),
        provider("agent", "root"),
        provider("nic1", "agent", ["HW_FAST"], NET=100), provider("nic2", "agent", ["HW_SLOW"], NET=100),
        provider("gpu", "root", VGPU=2)]


def allocations(*groups, tree=TREE, **options):
    request = CandidateRequest(groups=list(groups), limit=1000, **options)
    return sorted(sorted((uuid, *sorted(amounts.items())) for uuid, amounts in candidate.allocations.items())
                  for candidate in candidates.of_tree(tree, request, itertools.count()))


def group(suffix="", **values):
    return RequestedGroup(suffix=suffix, resources={
        name: values.pop(name) for name in list(values) if name.isupper()}, **values)


def test_resources_of_the_unsuffixed_group_come_from_any_providers():
    assert allocations(group(VCPU=1, NET=10)) == [
        [("nic1", ("NET", 10)), ("root", ("VCPU", 1))], [("nic2", ("NET", 10)), ("root", ("VCPU", 1))]]


def test_a_suffixed_group_comes_from_one_provider():
    assert allocations(group("1", VCPU=1, NET=10)) == []
    assert len(allocations(group(VCPU=1), group("1", NET=10))) == 2


def test_traits_of_groups():
    assert allocations(group("1", NET=10, required=[["HW_SLOW"]])) == [[("nic2", ("NET", 10))]]
    assert allocations(group("1", NET=10, forbidden=["HW_SLOW"])) == [[("nic1", ("NET", 10))]]
    assert len(allocations(group("1", NET=10, required=[["HW_SLOW", "HW_FAST"]]))) == 2
    # the un-suffixed group needs each trait on some of its providers
    assert allocations(group(VCPU=1, NET=10, required=[["HW_ROOT"], ["HW_FAST"]])) == [
        [("nic1", ("NET", 10)), ("root", ("VCPU", 1))]]


def test_isolated_groups_use_distinct_providers():
    two = group("1", NET=10), group("2", NET=10)
    assert len(allocations(*two)) == 4  # both from one of two NICs, or one from each (the mappings differ)
    assert [[uuid for uuid, *_amounts in each] for each in allocations(*two, isolate=True)] == [["nic1", "nic2"]] * 2


def test_groups_share_the_room_of_a_provider():
    assert [[uuid for uuid, *_amounts in each] for each in allocations(group("1", NET=60), group("2", NET=60))] == [
        ["nic1", "nic2"]] * 2


def test_units_ratio_and_usage_are_obeyed():
    tree = [provider("root", VCPU=Inventory(total=4, ratio=2.0, used=5, min_unit=2, max_unit=3, step_size=1))]
    assert [len(allocations(group(VCPU=amount), tree=tree)) for amount in (1, 2, 3, 4)] == [0, 1, 1, 0]
    tree = [provider("root", VCPU=Inventory(total=8, step_size=4))]
    assert [len(allocations(group(VCPU=amount), tree=tree)) for amount in (3, 4)] == [0, 1]


def test_aggregates_of_the_root_count_for_its_tree():
    assert len(allocations(group(VCPU=1, NET=1, member_of=[["agg", "other"]]))) == 2
    assert allocations(group(VCPU=1, member_of=[["other"]])) == []
    assert allocations(group(VCPU=1, not_member_of=["agg"])) == []


def test_root_traits_and_root_only():
    assert len(allocations(group(VCPU=1), root_required=["HW_ROOT"])) == 1
    assert allocations(group(VCPU=1), root_required=["HW_FAST"]) == []
    assert allocations(group(VCPU=1), root_forbidden=["HW_ROOT"]) == []
    assert allocations(group(VCPU=1, NET=1), nested=False) == []


def test_a_tree_must_contain_the_provider_of_in_tree():
    assert len(allocations(group(VCPU=1, in_tree="gpu"))) == 1
    assert allocations(group(VCPU=1, in_tree="elsewhere")) == []


def test_same_subtree_needs_an_ancestor_among_the_providers():
    nic, card = group("1", NET=1), group("2", VGPU=1)
    assert allocations(nic, card, same_subtree=[["1", "2"]]) == []
    assert len(allocations(nic, group("2", VCPU=1), same_subtree=[["1", "2"]])) == 2
    assert len(allocations(nic, group("2", required=[]), group("3", VCPU=1), same_subtree=[["1", "2"]])) > 2


def test_the_number_of_combinations_is_bounded():
    tree = [provider("root", VCPU=1), *(provider(f"nic{number}", "root", NET=1000) for number in range(100))]
    started = time.process_time()
    request = CandidateRequest(groups=[group(str(number), NET=1) for number in range(1, 20)], limit=10**6)
    assert len(list(candidates.of_tree(tree, request, itertools.count()))) <= 5000
    assert time.process_time() - started < 20


def test_aggregates_of_the_root_hold_for_the_unsuffixed_group_only():
    # API reference, member_of: "directly or via the root provider", and "directly" for granular groups
    assert len(allocations(group(NET=10, member_of=[["agg"]]))) == 2
    assert allocations(group("1", NET=10, member_of=[["agg"]])) == []
    assert allocations(group(NET=10, not_member_of=["agg"])) == []
    assert len(allocations(group("1", NET=10, not_member_of=["agg"]))) == 2
    assert len(allocations(group("1", VCPU=1, member_of=[["agg"]]))) == 1


def test_the_trees_of_a_request_share_the_number_of_combinations():
    """Requests that no tree can fulfil would otherwise take minutes with thousands of hosts."""
    tree = [provider("root"), *(provider(f"gpu{number}", "root", VGPU=1) for number in range(8))]
    request = CandidateRequest(groups=[group(str(number), VGPU=1) for number in range(1, 9)], limit=1000,
                               same_subtree=[["1", "2"]])
    budget = iter(range(12_000))
    assert [list(candidates.of_tree(tree, request, budget)) for _ in range(3)] == [[], [], []]
    assert next(budget, None) is None
    assert list(candidates.of_tree(TREE, CandidateRequest(groups=[group(VCPU=1)], limit=1), budget)) == []
