"""Planning equals server-by-server selection, respects limits, and returns alternates and reasons."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from nova import conf, exception
from nova.objects.hosts.node import Inventory
from nova.objects.hosts.scheduling import GroupSpec, HostState
from nova.scheduler import stages
from nova.scheduler.filters.service import IoOpsFilter
from nova.scheduler.rank import Ranking
from nova.scheduler.select import Planner, feasible
from tests.unit.scheduler import reference
from tests.unit.scheduler.builders import choose, filters, fleet, node, request, spec, weighers

amounts = st.integers(0, 6)
# Strategies are made once: making and checking them takes longer than drawing from them.
_units = {"reserved": st.integers(0, 2), "ratio": st.sampled_from([1.0, 1.0, 1.5, 4.0, 0.7]), "used": amounts,
          "step_size": st.sampled_from([1, 1, 1, 2]), "max_unit": st.sampled_from([1000, 1000, 2])}
inventory = st.builds(Inventory, total=st.integers(0, 12), **_units)
inventories = st.fixed_dictionaries(
    dict.fromkeys(("VCPU", "MEMORY_MB", "DISK_GB"), inventory), optional={"CUSTOM_X": inventory})
metadata = st.sampled_from([
    [], [], [], [{"ram_weight_multiplier": "-1"}], [{"cpu_weight_multiplier": "0.3"}],
    [{"build_failure_weight_multiplier": "0.5"}, {"io_ops_weight_multiplier": "2"}]])
tenths, small, sizes = st.integers(0, 9), st.integers(0, 2), st.integers(1, 12)
versions, hosts_before = st.integers(1, 3), [st.integers(0, index) for index in range(12)]


@st.composite
def fleets(draw: st.DrawFn) -> list[HostState]:
    return [
        HostState(
            node_uuid=f"n{index}", node=f"n{index}", host=f"h{draw(hosts_before[index])}",
            up=draw(tenths) > 0, disabled=draw(tenths) == 9, inventories=draw(inventories),
            aggregates=draw(metadata),
            num_instances=draw(amounts), num_io_ops=draw(amounts), failed_builds=draw(small),
            hypervisor_version=draw(versions), generation=1)
        for index in range(draw(sizes))]


policies = st.sampled_from([None, None, "affinity", "anti-affinity", "soft-affinity", "soft-anti-affinity"])
hosts_of_group = st.dictionaries(st.sampled_from(["h0", "h1", "h2"]), st.integers(1, 2))
most_per_host, custom = st.integers(1, 2), st.sampled_from([0, 0, 0, 1])


@st.composite
def specs(draw: st.DrawFn):
    policy = draw(policies)
    group = policy and GroupSpec(uuid="g", policy=policy, max_server_per_host=draw(most_per_host),
                                 hosts=draw(hosts_of_group))
    resources = {name: draw(small) for name in ("VCPU", "MEMORY_MB", "DISK_GB")}
    resources["CUSTOM_X"] = draw(custom)
    return spec(draw(sizes), resources={name: amount for name, amount in resources.items() if amount},
                group=group or None)


@pytest.fixture
def _busy_hosts_last():
    conf.CONF.set_override("num_instances_weight_multiplier", -0.5, "filter_scheduler")
    conf.CONF.set_override("max_io_ops_per_host", 12, "filter_scheduler")
    yield
    conf.CONF.clear_override("num_instances_weight_multiplier", "filter_scheduler")
    conf.CONF.clear_override("max_io_ops_per_host", "filter_scheduler")


def attempt(made, asked, planner) -> list[str] | None:
    try:
        return [found[0] for found in choose(made, asked, planner)]
    except exception.NoValidHost:
        return None


@pytest.mark.usefixtures("_busy_hosts_last")
@hypothesis_settings(max_examples=400, deadline=None)
@given(fleets(), specs())
def test_plan_equals_the_reference_scheduler(hosts, asked):
    planner = Planner([*filters(), IoOpsFilter()], weighers())
    assert attempt(fleet(*hosts), asked, planner) == reference.plan(hosts, asked, 12)


@pytest.mark.usefixtures("_busy_hosts_last")
@hypothesis_settings(max_examples=300, deadline=None)
@given(fleets(), specs(), st.data())
def test_incremental_weights_equal_recomputed_weights(hosts, asked, data):
    """Nodes and weights are identical bit by bit, for any chosen node."""
    made, this = fleet(*hosts), request(asked)
    with made.view() as view:
        chain = stages.chain(this, [*filters(), IoOpsFilter()], view)
        ranking = Ranking(view, np.flatnonzero(feasible(view, this, chain)[0]), this, weighers(), chain)
        for _ in range(len(asked.instance_uuids)):
            if not len(ranking):
                break
            position = data.draw(st.integers(0, len(ranking) - 1))
            row = int(ranking.rows[position])
            view.planned.consume(row, this.resources)
            this.place(view.at(row).text("host", 0))
            ranking.consumed(position)
            anew = Ranking(view, np.flatnonzero(feasible(view, this, chain)[0]), this, weighers(), chain)
            assert ranking.rows.tolist() == anew.rows.tolist()
            assert ranking.weights.tolist() == anew.weights.tolist()


@pytest.mark.usefixtures("_busy_hosts_last")
@hypothesis_settings(max_examples=200, deadline=None)
@given(fleets(), st.lists(specs(), max_size=4), st.integers(1, 4), st.booleans(), st.randoms(use_true_random=False))
def test_resources_are_never_oversubscribed(hosts, requests, subset, shuffle, chance):
    """Limits hold for any sequence of requests, and failed requests consume nothing."""
    conf.CONF.set_override("host_subset_size", subset, "filter_scheduler")
    conf.CONF.set_override("shuffle_best_same_weighed_hosts", shuffle, "filter_scheduler")
    try:
        made, planner = fleet(*hosts), Planner(filters(), weighers(), random.Random(chance.random()))
        taken: dict[str, dict[str, int]] = {host.node_uuid: {} for host in hosts}
        servers = dict.fromkeys(taken, 0)
        for asked in requests:
            for uuid in attempt(made, asked, planner) or []:
                servers[uuid] += 1
                for name, amount in asked.resources.items():
                    taken[uuid][name] = taken[uuid].get(name, 0) + amount
        for host in hosts:
            now = made.state(host.node_uuid)
            assert now.num_instances == host.num_instances + servers[host.node_uuid]
            assert now.num_io_ops == host.num_io_ops + servers[host.node_uuid]
            for name, inventory in host.inventories.items():
                amount = taken[host.node_uuid].get(name, 0)
                assert now.inventories[name].used == inventory.used + amount
                if amount:
                    assert inventory.used + amount <= (inventory.total - inventory.reserved) * inventory.ratio
    finally:
        conf.CONF.clear_override("host_subset_size", "filter_scheduler")
        conf.CONF.clear_override("shuffle_best_same_weighed_hosts", "filter_scheduler")


def test_plan_on_a_large_fleet_equals_single_selections():
    chance = random.Random(7)
    hosts = [node(f"n{number}", vcpus=chance.choice((4, 8, 16)), ram=chance.choice((8192, 16384, 65536)),
                  disk=chance.randrange(50, 500), ratio=2.0, num_io_ops=chance.randrange(3)) for number in range(300)]
    asked = spec(120)
    one_by_one = fleet(*hosts)
    expected = [choose(one_by_one, spec())[0][0] for _ in range(120)]
    assert [found[0] for found in choose(fleet(*hosts), asked)] == expected


class TestAlternates:
    def test_alternates_are_the_next_best_hosts(self):
        states = [node("a", ram=4096), node("b", ram=16384), node("c", ram=8192), node("d", ram=2048)]
        assert choose(fleet(*states), spec()) == [["b", "c", "a"]]
        assert choose(fleet(*states), spec(alternates=0)) == [["b"]]
        assert choose(fleet(*states), spec(alternates=9)) == [["b", "c", "a", "d"]]

    def test_alternates_are_distinct_and_exclude_the_chosen_host(self):
        states = [node(name) for name in "abcdef"]
        for found in choose(fleet(*states), spec(12, alternates=3)):
            assert len(found) == 4
            assert len(set(found)) == 4

    def test_alternates_are_spread_over_the_fleet(self):
        found = choose(fleet(*(node(f"n{number}") for number in range(40))), spec(10))
        assert len({alternate for choice in found for alternate in choice[1:]}) == 20

    def test_alternates_have_room_for_the_server(self):
        states = [node("a", ram=1024), node("b", ram=1024), node("c", ram=512)]
        assert choose(fleet(*states), spec()) == [["a", "b"]]
        assert choose(fleet(*states), spec(2)) == [["a"], ["b"]]

    def test_alternates_respect_anti_affinity_within_the_request(self):
        group = GroupSpec(uuid="g", policy="anti-affinity")
        found = choose(fleet(*(node(name) for name in "abcd")), spec(2, group=group))
        assert [choice[0] for choice in found] == ["a", "b"]
        assert all(set(choice[1:]) <= {"c", "d"} for choice in found)

    def test_affinity_group_members_limit_alternates(self):
        group = GroupSpec(uuid="g", policy="affinity")
        assert choose(fleet(node("a"), node("b")), spec(group=group)) == [["a", "b"]]
        group = GroupSpec(uuid="g", policy="affinity", hosts={"b": 1})
        assert choose(fleet(node("a"), node("b")), spec(group=group)) == [["b"]]


class TestNamedHosts:
    def test_requested_host_and_node_pass_the_filters(self):
        made = fleet(node("a"), node("b1", host="b"), node("b2", host="b"), node("down", up=False))
        assert choose(made, spec(requested_host="b")) == [["b1", "b2"]]
        assert choose(made, spec(requested_node="b2")) == [["b2"]]
        assert choose(made, spec(requested_host="b", requested_node="b2")) == [["b2"]]
        for named in ({"requested_host": "B"}, {"requested_host": "down"},
                      {"requested_host": "a", "requested_node": "b1"}):
            with pytest.raises(exception.NoValidHost):
                choose(made, spec(**named))

    def test_forced_hosts_skip_filters_and_zone_but_not_capacity(self):
        made = fleet(node("Down", up=False, availability_zone="x"), node("b"))
        assert choose(made, spec(force_host="dOWN", availability_zone="y")) == [["Down"]]
        assert choose(made, spec(force_node="Down")) == [["Down"]]
        with pytest.raises(exception.NoValidHost):
            choose(made, spec(force_node="down"))
        with pytest.raises(exception.NoValidHost) as caught:
            choose(made, spec(force_host="Down", resources={"MEMORY_MB": 99999}))
        assert "MEMORY_MB: 1 host refused" in caught.value.inside

    def test_forced_disabled_host_is_refused(self):
        with pytest.raises(exception.NoValidHost) as caught:
            choose(fleet(node("a", disabled=True)), spec(force_host="a"))
        assert "DisabledHosts" in caught.value.inside

    def test_ignored_hosts_are_not_chosen(self):
        made = fleet(node("a"), node("b"))
        assert choose(made, spec(ignore_hosts=["a", "unknown"])) == [["b"]]
        assert choose(made, spec(ignore_nodes=["a", "unknown"])) == [["b"]]


class TestReasons:
    def test_refusal_counts_are_reported_to_operators_only(self):
        made = fleet(node("a", up=False), node("b", up=False), node("c", ram=512), node("d", availability_zone="x"))
        with pytest.raises(exception.NoValidHost) as caught:
            choose(made, spec(availability_zone="nova"))
        assert str(caught.value) == "No valid host was found. There are not enough hosts available."
        assert caught.value.inside == (
            "No valid host was found. Requested 1; AvailabilityZoneFilter: 1 host refused, "
            "ComputeFilter: 2 hosts refused, MEMORY_MB: 1 host refused.")

    def test_partial_fit_is_refused_and_consumes_nothing(self):
        made = fleet(node("a", ram=2048))
        with pytest.raises(exception.NoValidHost) as caught:
            choose(made, spec(3))
        assert str(caught.value) == "No valid host was found. There are not enough hosts available."
        assert len(choose(made, spec(2))) == 2

    def test_no_registered_hosts_is_reported(self):
        with pytest.raises(exception.NoValidHost) as caught:
            choose(fleet(), spec())
        assert "No compute hosts are registered" in caught.value.inside

    def test_group_policy_without_its_filter_is_refused(self):
        group = GroupSpec(uuid="g", policy="affinity")
        with pytest.raises(exception.UnsupportedGroupPolicy, match="ServerGroupAffinityFilter"):
            choose(fleet(node("a")), spec(group=group), Planner([], weighers()))


class TestOptions:
    def test_host_subset_size_chooses_randomly_among_the_best(self, settings):
        settings("filter_scheduler", host_subset_size=2)
        states = [node("a", ram=1024), node("b", ram=4096), node("c", ram=8192)]
        planner = Planner(filters(), weighers(), random.Random(1))
        seen = {choose(fleet(*states), spec(), planner)[0][0] for _ in range(50)}
        assert seen == {"b", "c"}

    def test_shuffle_chooses_randomly_among_equal_hosts(self, settings):
        states = [node("a"), node("b"), node("c"), node("small", ram=2048)]
        planner = Planner(filters(), weighers(), random.Random(1))
        assert {choose(fleet(*states), spec(), planner)[0][0] for _ in range(20)} == {"a"}
        settings("filter_scheduler", shuffle_best_same_weighed_hosts=True)
        assert {choose(fleet(*states), spec(), planner)[0][0] for _ in range(50)} == {"a", "b", "c"}


class TestExplain:
    def test_explain_returns_weight_or_refusal_of_every_node(self):
        made = fleet(node("a", up=False), node("b", ram=8192), node("c", ram=16384), node("d", traits=["X"]),
                     node("e", used=(8, 0, 0)))
        with made.view() as view:
            verdicts = Planner(filters(), weighers()).explain(view, request(spec(forbidden_traits=["X"])))
        assert [(verdict.node, verdict.refused_by, verdict.reason) for verdict in verdicts] == [
            ("c", None, ""), ("b", None, ""), ("a", "ComputeFilter", "the compute service is down"),
            ("d", "Traits", "the host has X"), ("e", "VCPU", "requested 1, free 0")]
        assert verdicts[0].weight > verdicts[1].weight
        assert verdicts[2].weight is None

    def test_explain_consumes_nothing(self):
        made = fleet(node("a", ram=1024))
        with made.view() as view:
            Planner(filters(), weighers()).explain(view, request(spec()))
        assert choose(made, spec()) == [["a"]]


def test_in_place_request_checks_only_the_image():
    made = fleet(node("full", vcpus=1, disabled=True), node("other"))
    asked = spec(requested_host="full", in_place=True, resources={"VCPU": 8}, availability_zone="another")
    assert choose(made, asked) == [["full"]]
    with made.view() as view:
        assert (view.used("VCPU").sum(), view.num_instances.sum()) == (0, 0), "the in-place request consumed resources"


@pytest.mark.parametrize("asked", [
    {"required_traits": ["X"]}, {"properties": {"hw_architecture": "s390x"}}])
def test_in_place_request_with_unsupported_image_is_refused(asked):
    with pytest.raises(exception.NoValidHost):
        choose(fleet(node("here"), node("there", traits=["X"])), spec(requested_host="here", in_place=True, **asked))
