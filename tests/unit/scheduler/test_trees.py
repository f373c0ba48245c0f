"""Hosts with nested resource providers, for example GPUs."""

from __future__ import annotations

import pytest

from nova.exception import NoValidHost
from nova.objects.hosts import trees
from nova.objects.hosts.node import Inventory, Provider
from nova.objects.hosts.scheduling import HostState, NodeUsage, RequestGroup
from nova.scheduler.select import Planner
from tests.unit.scheduler import builders


def gpu(number: int, total: int = 2, used: int = 0, traits: str = "") -> Provider:
    return Provider(uuid=f"gpu{number}", name=f"gpu{number}", parent_uuid="gpus", traits=traits.split(),
                    inventories={"VGPU": Inventory(total=total, used=used)})


def with_gpus(*children: Provider, **values: object) -> HostState:
    return builders.node("gpus", children=list(children), **values)  # type: ignore[arg-type]


PLAIN = {"VCPU": 1}
PLANNER = Planner(builders.filters(), [])


def test_child_provider_resources_are_available() -> None:
    made = builders.fleet(builders.node("plain"), with_gpus(gpu(0), gpu(1)))
    for _number in range(4):
        assert builders.choose(made, builders.spec(resources={**PLAIN, "VGPU": 1}), PLANNER) == [["gpus"]]
    with pytest.raises(NoValidHost):
        builders.choose(made, builders.spec(resources={**PLAIN, "VGPU": 1}), PLANNER)
    made.apply(NodeUsage(node_uuid="gpus", generation=2, used={"VCPU": 4}, children={
        "gpu0": {"VGPU": 1}, "gpu1": {"VGPU": 2}}))
    assert builders.choose(made, builders.spec(resources={**PLAIN, "VGPU": 1}), PLANNER) == [["gpus"]]


def test_expired_choices_release_child_resources() -> None:
    made = builders.fleet(with_gpus(gpu(0, total=1)))
    asked = builders.spec(resources={"VGPU": 1})
    builders.choose(made, asked, PLANNER)
    assert made.expire(0) == 1
    builders.choose(made, asked, PLANNER)


def test_request_group_is_provided_by_a_single_provider() -> None:
    made = builders.fleet(with_gpus(gpu(0), gpu(1, traits="BIG")), builders.node("plain"))
    two = [RequestGroup(resources={"VGPU": 1})] * 2
    assert builders.choose(made, builders.spec(resources=PLAIN, groups=two, group_policy="isolate"), PLANNER) == [
        ["gpus"]]
    big = [RequestGroup(resources={"VGPU": 1}, required=["BIG"])]
    builders.choose(made, builders.spec(resources=PLAIN, groups=big), PLANNER)
    with pytest.raises(NoValidHost) as caught:
        builders.choose(made, builders.spec(resources=PLAIN, groups=big), PLANNER)
    assert "ResourceProviders" in caught.value.inside


def test_servers_of_a_request_consume_child_resources_in_turn() -> None:
    made = builders.fleet(with_gpus(gpu(0), gpu(1)))
    asked = builders.spec(4, resources={"VCPU": 1, "VGPU": 1})
    assert builders.choose(made, asked, PLANNER) == [["gpus"]] * 4
    with pytest.raises(NoValidHost):
        builders.choose(made, builders.spec(resources={"VGPU": 1}), PLANNER)


def test_claim_uses_the_provider_tree_only_if_needed() -> None:
    made = builders.fleet(with_gpus(gpu(0, traits="BIG"), traits=["FAST"]))
    for asked, tree in ((builders.spec(resources=PLAIN, required_traits=["FAST"]), False),
                        (builders.spec(resources={**PLAIN, "VGPU": 1}), True),
                        (builders.spec(resources={"VGPU": 1}, required_traits=["BIG"]), True),
                        (builders.spec(resources={}, groups=[RequestGroup(resources=PLAIN)]), True)):
        this = builders.request(asked)
        with made.view() as view:
            [choice] = PLANNER.plan(view, this)
        assert made.selection(choice.row, request=this).tree is tree


def test_capacity_and_traits_of_the_root_provider_are_checked() -> None:
    made = builders.fleet(with_gpus(gpu(0), vcpus=2, traits=["SLOW"]))
    for refused in (builders.spec(resources={"VCPU": 3}), builders.spec(resources=PLAIN, required_traits=["FAST"]),
                    builders.spec(resources=PLAIN, forbidden_traits=["SLOW"])):
        with pytest.raises(NoValidHost):
            builders.choose(made, refused, PLANNER)


def test_children_without_requested_resources_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neutron's agents add providers of bandwidth to every host; only servers that request it pay for them."""
    examined = []

    def allocate(tree: list[Provider], wanted: trees.Amounts) -> trees.Allocation | None:
        examined.append(tree[0].uuid)
        return original(tree, wanted)

    original = trees.allocate
    monkeypatch.setattr(trees, "allocate", allocate)
    made = builders.fleet(with_gpus(gpu(0), traits=["FAST"]), builders.node("plain"))
    builders.choose(made, builders.spec(resources=PLAIN), PLANNER)
    assert builders.choose(made, builders.spec(resources=PLAIN, required_traits=["FAST"]), PLANNER) == [["gpus"]]
    assert examined == []
    assert builders.choose(made, builders.spec(resources={"VGPU": 1}), PLANNER) == [["gpus"]]
    assert set(examined) == {"gpus"}
    made.upsert(with_gpus(generation=9))
    examined.clear()
    with pytest.raises(NoValidHost):
        builders.choose(made, builders.spec(resources={"VGPU": 1}), PLANNER)
    assert examined == []
