"""The fleet: newer states win, and choices count until newer usage is reported."""

from __future__ import annotations

from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from nova.objects.hosts.node import Inventory
from nova.objects.hosts.scheduling import NodeUsage, ServiceFlags
from tests.unit.scheduler.builders import changed, choose, fleet, node, spec


def usage(uuid: str, generation: int, vcpus: int = 0, **values) -> NodeUsage:
    return NodeUsage(node_uuid=uuid, used={"VCPU": vcpus, "MEMORY_MB": 0, "DISK_GB": 0}, generation=generation,
                     **values)


def test_node_state_is_returned_unchanged():
    state = node("a", host="h", up=False, disabled=True, traits=["A", "B"], availability_zone="z",
                 aggregates=[{"k": "v"}], num_instances=3, num_io_ops=2, failed_builds=1, hypervisor_type="QEMU",
                 hypervisor_version=9000000, host_ip="10.0.0.1", cpu_info={"a": [1]},
                 supported_instances=[("x86_64", "kvm", "hvm")],
                 metrics={"m": 1.5}, generation=7, used=(1, 2, 3), inventories={
                     "VCPU": Inventory(total=8, reserved=1, ratio=4.0, min_unit=2, max_unit=6, step_size=2, used=4)})
    assert fleet(state).state("a") == state


def test_older_node_state_is_ignored():
    made = fleet(node("a", generation=5, traits=["NEW"]))
    made.upsert(node("a", generation=4, traits=["OLD"]))
    assert made.state("a").traits == ["NEW"]


def test_newer_node_state_replaces_the_old_state():
    made = fleet(node("a", inventories={"VCPU": Inventory(total=8), "VGPU": Inventory(total=1)}))
    made.upsert(node("a", host="moved", inventories={"VCPU": Inventory(total=4, used=2)}, generation=2))
    state = made.state("a")
    assert state.inventories == {"VCPU": Inventory(total=4, used=2)}
    made.set_service("a", ServiceFlags(up=False, disabled=False))
    assert made.state("a").up
    made.set_service("moved", ServiceFlags(up=False, disabled=False))
    assert not made.state("a").up


def test_older_and_duplicate_usage_is_ignored():
    made = fleet(node("a", generation=3))
    made.apply(usage("a", 5, vcpus=5, num_instances=5))
    made.apply(usage("a", 4, vcpus=4, num_instances=4))
    made.apply(usage("unknown", 9))
    assert made.state("a").inventories["VCPU"].used == 5
    assert made.state("a").num_instances == 5


def test_node_state_older_than_usage_updates_everything_but_usage():
    made = fleet(node("a", generation=3))
    made.apply(usage("a", 5, vcpus=5))
    made.upsert(node("a", generation=4, traits=["NEW"], used=(4, 0, 0)))
    assert made.state("a").traits == ["NEW"]
    assert made.state("a").inventories["VCPU"].used == 5


@hypothesis_settings(max_examples=100, deadline=None)
@given(st.permutations(range(2, 9)))
def test_order_of_usage_reports_is_irrelevant(order):
    made = fleet(node("a", generation=1))
    for generation in order:
        made.apply(usage("a", generation, vcpus=generation, num_instances=generation, num_io_ops=generation))
    state = made.state("a")
    assert (state.inventories["VCPU"].used, state.num_instances, state.num_io_ops) == (8, 8, 8)


def test_service_state_applies_to_all_nodes_of_a_host():
    made = fleet(node("a1", host="a"), node("a2", host="a"), node("b"))
    made.set_service("a", ServiceFlags(up=False, disabled=True))
    made.set_service("unknown", ServiceFlags(up=False, disabled=True))
    assert [(made.state(uuid).up, made.state(uuid).disabled) for uuid in ("a1", "a2", "b")] == [
        (False, True), (False, True), (True, False)]


@hypothesis_settings(max_examples=60, deadline=None)
@given(st.permutations([ServiceFlags(up=number % 2 == 0, disabled=number % 3 == 0, generation=number)
                        for number in range(1, 7)]), st.integers(0, 6))
def test_service_states_apply_by_generation(said, reading):
    """The order of arrival and the moment of a refresh have no influence."""
    made = fleet(node("a", service_generation=1))
    for number, flags in enumerate(said):
        if number == reading:
            made.upsert(node("a", up=False, disabled=False, service_generation=3))
        made.set_service("a", flags)
    assert (made.state("a").up, made.state("a").disabled) == (True, True)


def test_recreated_service_with_lower_generation_is_applied():
    made = fleet(node("a", service_generation=900))
    made.remove("a")
    made.upsert(node("a", up=False, service_generation=5))
    assert not made.state("a").up


def test_removed_nodes_are_not_chosen_and_their_rows_are_reused():
    made = fleet(node("a", traits=["X"], num_instances=4), node("b"))
    made.remove("a")
    made.remove("a")
    assert choose(made, spec()) == [["b"]]
    made.upsert(node("c", ram=999999))
    assert len(made) == 2
    assert made.state("c").traits == []
    assert made.state("c").num_instances == 0
    assert choose(made, spec()) == [["c", "b"]]
    made.apply(usage("a", 99, vcpus=8))
    assert made.state("c").inventories["VCPU"].used == 1


def test_fleet_grows_beyond_a_chunk():
    made = fleet(*(node(f"n{number}", traits=[f"T{number}"]) for number in range(3000)))
    made.upsert(node("last", ram=999999, traits=["WANTED"]))
    assert choose(made, spec(required_traits=["WANTED"])) == [["last"]]
    assert made.state("n1500").traits == ["T1500"]
    made.retain({"n7", "last"})
    assert len(made) == 2
    assert sorted(choose(made, spec(alternates=9))[0]) == ["last", "n7"]


class TestChoices:
    def test_choices_count_immediately_until_newer_usage(self):
        made = fleet(node("a", generation=1))
        choose(made, spec(3))
        assert made.state("a").inventories["VCPU"].used == 3
        assert (made.state("a").num_instances, made.state("a").num_io_ops) == (3, 3)
        made.apply(usage("a", 2, vcpus=1, num_instances=1, num_io_ops=1))
        assert made.state("a").inventories["VCPU"].used == 1
        assert made.state("a").num_instances == 1

    def test_choices_are_retained_with_usage_of_the_same_generation(self):
        made = fleet(node("a", generation=1))
        choose(made, spec())
        made.apply(usage("a", 1))
        made.upsert(node("a", generation=1))
        assert made.state("a").inventories["VCPU"].used == 1

    def test_choices_without_a_claim_expire(self):
        made = fleet(node("a", used=(2, 2048, 20), num_instances=2), node("b", ram=512))
        choose(made, spec(2))
        assert made.expire(older_than=60) == 0
        assert made.state("a").num_instances == 4
        assert made.expire(older_than=0) == 1
        state = made.state("a")
        assert (state.inventories["VCPU"].used, state.num_instances, state.num_io_ops) == (2, 2, 0)
        assert made.expire(older_than=0) == 0

    def test_choices_are_discarded_by_a_newer_state(self):
        state = node("a")
        made = fleet(state)
        choose(made, spec(2))
        made.upsert(changed(state, num_instances=1))
        assert made.state("a").num_instances == 1
        assert made.state("a").inventories["VCPU"].used == 0
