"""Decisions by mode: facts chapter 4."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova.federator.api.names import NAME_LABEL
from nova.federator.api.types import Decision, Spread
from nova.federator.scheduling.decide import decide
from nova.federator.scheduling.policy import of_annotations
from tests.unit.federator.worlds import claims, cluster, group, item, node, policy

WEB = "Deployment.apps/shop/web"
A, B, C = cluster("a"), cluster("b"), cluster("c")


def run(*clusters: Any, current: Any = None, plan: Any = None, objects: Any = None, **options: Any) -> Decision:
    return decide(objects or group(), plan or policy(), clusters, claims(*clusters), current or {}, **options)


def reasons(decision: Decision) -> dict[str, str]:
    return {rejection.cluster: rejection.check for rejection in decision.rejections}


def test_annotation_pins_to_a_cluster_without_a_check_of_its_capacity() -> None:
    """Mode annotation: X, without a look at capacity."""
    full = cluster("b", node(cpu=0))
    decision = run(A, full, plan=of_annotations("b", ""))
    assert decision.targets == {"b": {WEB: 1}}


def test_annotation_that_names_an_unknown_cluster_leaves_the_object_unscheduled() -> None:
    decision = run(A, plan=of_annotations("x", ""))
    assert decision.targets == {}
    assert reasons(decision) == {"a": "selector"}


@pytest.mark.parametrize(("text", "shares"), [
    ("a,b", {"a": {WEB: 1}, "b": {WEB: 1}}), ("a, b::Divide", {"a": {WEB: 1}, "b": {WEB: 1}}),
    ("a,b::Duplicate", {"a": {WEB: 2}, "b": {WEB: 2}})])
def test_spread_onto_divides_evenly_or_duplicates(text: str, shares: Any) -> None:
    """Annotation spread-onto: 2 replicas on 2 clusters are 1+1, with ::Duplicate 2+2."""
    decision = run(A, B, C, objects=group(item("web", 2)), plan=of_annotations("", text))
    assert decision.targets == shares


def test_a_policy_with_one_cluster_uses_it() -> None:
    """Mode policy, one cluster selected: that one, also if it is full."""
    full = cluster("b", node(cpu=0))
    assert run(A, full, plan=policy({"matchLabels": {NAME_LABEL: "b"}})).targets == {"b": {WEB: 1}}


def test_the_cluster_with_room_for_the_whole_group_is_chosen() -> None:
    """Modes capacity and group: enough resources to host the whole group; all objects run in one cluster."""
    small, large = cluster("a", node(cpu=1000)), cluster("b", node(cpu=1000), node("m", cpu=1000))
    both = group(item("web", 2, cpu=500), item("db", 1, cpu=800))
    decision = run(small, large, objects=both)
    assert set(decision.targets) == {"b"}
    assert set(decision.targets["b"]) == {item.ref.key for item in both.items}
    assert reasons(decision) == {"a": "capacity"} or reasons(decision) == {"a": "cpu"}


def test_capacity_is_checked_per_node() -> None:
    """Two nodes with 500m free do not run a pod of 800m."""
    split_room, whole = cluster("a", node(cpu=500), node("m", cpu=500)), cluster("b", node(cpu=800))
    decision = run(split_room, whole, objects=group(item("web", 1, cpu=800)))
    assert set(decision.targets) == {"b"}
    assert "800m of cpu each, the largest free node has 500m" in decision.rejections[0].message
    assert decision.rejections[0].wait_for == "capacity"


def test_an_autoscaled_cluster_is_the_last_resort() -> None:
    """Facts chapter 4: if none has room, one that is autoscaled; else unscheduled."""
    full, scaled = cluster("a", node(cpu=0)), cluster("b", node(cpu=0), autoscaled=True)
    assert set(run(full, scaled).targets) == {"b"}
    assert set(run(A, cluster("b", autoscaled=True)).targets) == {"a"}
    assert run(full).targets == {}


def test_fill_and_spill_uses_the_first_value_that_has_room() -> None:
    """Mode fill-and-spill: the order of values is the priority."""
    ordered = policy(ordered=["b", "a"])
    assert set(run(A, B, C, plan=ordered).targets) == {"b"}
    assert set(run(A, cluster("b", node(cpu=0)), C, plan=ordered).targets) == {"a"}
    assert run(cluster("a", node(cpu=0)), C, plan=ordered).targets == {}


@pytest.mark.parametrize("brief", [False, True])
def test_a_group_returns_when_its_preferred_cluster_is_not_held_back(brief: bool) -> None:
    """Promise P1: failback is automatic, but not to a cluster that has just returned."""
    ordered, placed = policy(ordered=["b", "a"]), {"a": {WEB: 1}}
    assert set(run(A, B, plan=ordered, current=placed, brief=brief).targets) == {"b"}
    held = run(A, B, plan=ordered, current=placed, held_back={"b"}, brief=brief)
    assert set(held.targets) == {"a"}
    assert held.placed
    assert [rejection.wait_for for rejection in held.rejections] == ["settled"]
    assert set(run(A, B, plan=ordered, held_back={"b"}, brief=brief).targets) == {"b"}, "nothing runs elsewhere"
    gone = cluster("a", reachable=False)
    assert set(run(gone, B, plan=policy(ordered=["b", "a"], failover="AvailabilityFirst"), current=placed,
                   held_back={"b"}, brief=brief).targets) == {"b"}, "its cluster is lost"


def test_a_valid_placement_does_not_move() -> None:
    """Minimal movement: more room elsewhere is no reason."""
    small = cluster("a", node(cpu=1000))
    assert set(run(small, B, current={"a": {WEB: 1}}).targets) == {"a"}


def test_a_group_that_grew_too_large_moves_as_a_whole() -> None:
    """Mode group: a growing group that no longer fits moves as a whole; without another place it stays."""
    small, grown = cluster("a", node(cpu=1000)), group(item("web", 20, cpu=300))
    assert set(run(small, cluster("b", node(cpu=9000)), objects=grown, current={"a": {WEB: 3}}).targets) == {"b"}
    assert set(run(small, objects=grown, current={"a": {WEB: 3}}).targets) == {"a"}


def test_clusters_that_are_not_ready_get_nothing_new() -> None:
    decision = run(cluster("a", ready=False, reachable=False), cluster("b", ready=False))
    assert decision.targets == {}
    assert reasons(decision) == {"a": "ready", "b": "ready"}


def test_the_share_of_an_unreachable_cluster_is_frozen() -> None:
    """Promise P2: scaling up while a cluster is unreachable neither moves nor removes what runs there, unless the
    policy says AvailabilityFirst, or the fence time is over."""
    away = cluster("a", ready=False, reachable=False)
    assert set(run(away, B, current={"a": {WEB: 1}}).targets) == {"a"}
    assert set(run(away, B, current={"a": {WEB: 1}}, plan=policy(failover="AvailabilityFirst")).targets) == {"b"}
    fenced = policy(failover="Fenced")
    assert set(run(away, B, current={"a": {WEB: 1}}, plan=fenced).targets) == {"a"}
    assert set(run(away, B, current={"a": {WEB: 1}}, plan=fenced, released={"a"}).targets) == {"b"}


def test_an_avoided_cluster_is_not_chosen() -> None:
    """Promise P3: a share that is not ready before its deadline moves on."""
    decision = run(A, B, current={"a": {WEB: 1}}, avoided={"a"})
    assert set(decision.targets) == {"b"}
    assert reasons(decision) == {"a": "deadline"}


def test_a_cluster_without_a_kind_is_rejected_by_name() -> None:
    without = cluster("a")
    without = type(without)(**{**{field: getattr(without, field) for field in without.__struct_fields__},
                               "kinds": frozenset({"ConfigMap"})})
    decision = run(without)
    assert decision.rejections[0].message == "the cluster does not have the kind Deployment.apps"


def spread_of(decision: Decision) -> dict[str, int | None]:
    return {name: shares[WEB] for name, shares in decision.targets.items()}


@pytest.mark.parametrize(("percentages", "replicas", "shares"), [
    (None, 10, {"a": 5, "b": 5}), ({"a": 70, "b": 30}, 5, {"a": 4, "b": 1}), ({"a": 30, "b": 70}, 10, {"a": 3, "b": 7}),
    ({"a": 100}, 3, {"a": 3}), ({"a": 20, "b": 20}, 4, {"a": 2, "b": 2}), (None, 1, {"a": 1})])
def test_spread_divides_exactly(percentages: Any, replicas: int, shares: Any) -> None:
    """Mode spread, Divide: evenly or by percentages; nothing is lost; a share of 0 makes no object."""
    plan = policy(spread=Spread(NAME_LABEL, False, percentages))
    decision = run(A, B, objects=group(item("web", replicas)), plan=plan)
    assert spread_of(decision) == shares


def test_spread_creates_other_kinds_whole_in_each_cluster() -> None:
    """Mode spread: every other kind is created whole in each cluster, percentages ignored."""
    objects = group(item("web", 4), item("agent", None, kind="DaemonSet", every_node=True))
    decision = run(A, B, objects=objects, plan=policy(spread=Spread(NAME_LABEL, False, {"a": 75, "b": 25})))
    assert decision.targets == {"a": {WEB: 3, "DaemonSet.apps/shop/agent": None},
                                "b": {WEB: 1, "DaemonSet.apps/shop/agent": None}}


def test_spread_duplicates_all_replicas() -> None:
    decision = run(A, B, objects=group(item("web", 4)), plan=policy(spread=Spread(NAME_LABEL, True)))
    assert spread_of(decision) == {"a": 4, "b": 4}


def test_buckets_of_a_topology_share_evenly_inside() -> None:
    """Clusters are bucketed by topologyKey: the bucket has a share, its clusters divide it."""
    clusters = (cluster("a", zone="x"), cluster("b", zone="x"), cluster("c", zone="y"), cluster("d"))
    decision = run(*clusters, objects=group(item("web", 8)), plan=policy(spread=Spread("zone")))
    assert spread_of(decision) == {"a": 2, "b": 2, "c": 4}
    assert reasons(decision) == {"d": "topology"}


def test_impossible_percentages_are_warned_about() -> None:
    """Facts chapter 11: percentages are normalised by their sum, with a warning; an unknown value is named."""
    decision = run(A, B, objects=group(item("web", 3)),
                   plan=policy(spread=Spread(NAME_LABEL, False, {"a": 50, "b": 25, "x": 50})))
    assert spread_of(decision) == {"a": 2, "b": 1}
    assert decision.warnings == ("percentageSplit: the sum is 125, not 100; the parts are scaled",
                                 f"percentageSplit: no usable cluster has {NAME_LABEL}=x")


def test_spread_respects_capacity_and_places_the_rest_elsewhere() -> None:
    full = cluster("a", node(cpu=200))
    decision = run(full, B, objects=group(item("web", 10, cpu=100)), plan=policy(spread=Spread(NAME_LABEL)))
    assert spread_of(decision) == {"a": 2, "b": 8}


def test_spread_keeps_the_share_of_an_unreachable_cluster() -> None:
    """Promise P2: the share of the unreachable cluster counts, so a scale-up adds only to the others."""
    away = cluster("a", ready=False, reachable=False)
    decision = run(away, B, objects=group(item("web", 12)), plan=policy(spread=Spread(NAME_LABEL)),
                   current={"a": {WEB: 5}, "b": {WEB: 5}})
    assert spread_of(decision) == {"a": 5, "b": 7}


@given(st.integers(0, 40), st.lists(st.integers(1, 100), min_size=1, max_size=5), st.integers(1, 3))
def test_scaling_up_a_spread_object_removes_no_replica(replicas: int, weights: list[int], more: int) -> None:
    """Promise P6 through the whole decision, with the present shares as input."""
    clusters = [cluster(f"c{number}") for number in range(len(weights))]
    plan = policy(spread=Spread(NAME_LABEL, False, {entry.name: weight for entry, weight in zip(
        clusters, weights, strict=True)}))
    before = run(*clusters, objects=group(item("web", replicas)), plan=plan)
    after = run(*clusters, objects=group(item("web", replicas + more)), plan=plan, current=before.targets)
    for name, shares in before.targets.items():
        assert (shares[WEB] or 0) <= (after.targets.get(name, {}).get(WEB) or 0)


def test_a_full_group_moves_to_an_autoscaled_cluster_and_otherwise_waits_for_room() -> None:
    """Promise P5: a group that stays in a cluster without room for it is not placed, so it is tried again; facts
    chapter 4: if no cluster has room, one that is autoscaled."""
    small, grown = cluster("a", node(cpu=1000)), group(item("web", 20, cpu=300))
    waits = run(small, cluster("b", node(cpu=500)), objects=grown, current={"a": {WEB: 3}})
    assert (waits.targets, waits.placed) == ({"a": {WEB: 20}}, False)
    assert {rejection.wait_for for rejection in waits.rejections} == {"capacity"}
    moves = run(small, cluster("b", node(cpu=0), autoscaled=True), objects=grown, current={"a": {WEB: 3}})
    assert (set(moves.targets), moves.placed) == ({"b"}, True)


def test_both_cluster_selectors_apply() -> None:
    """Mode fill-and-spill with a clusterSelector: the order does not widen the selection."""
    plan = policy({"matchLabels": {"tier": "x"}}, ordered=["a", "b"])
    assert set(run(A, cluster("b", tier="x"), plan=plan).targets) == {"b"}


def test_a_copy_in_a_reachable_cluster_is_preferred_to_a_frozen_one() -> None:
    """A move whose old cluster becomes unreachable meanwhile ends in the new one, also if a third one has more room."""
    away = cluster("a", ready=False, reachable=False)
    decision = run(away, B, cluster("c", node(cpu=10**6)), current={"a": {WEB: 1}, "b": {WEB: 1}})
    assert set(decision.targets) == {"b"}
    assert reasons(decision)["a"] == "ready"


def test_shares_in_several_clusters_stay_if_no_cluster_takes_the_group() -> None:
    """A policy that does not spread any more removes nothing while no cluster has room for all replicas."""
    small, second = cluster("a", node(cpu=500)), cluster("b", node(cpu=500))
    decision = run(small, second, objects=group(item("web", 10)), current={"a": {WEB: 5}, "b": {WEB: 5}})
    assert (decision.targets, decision.placed) == ({"a": {WEB: 5}, "b": {WEB: 5}}, False)
    assert run(small, current={"x": {WEB: 5}}, objects=group(item("web", 10))).targets == {}, "x is deleted"


def test_the_room_of_a_cluster_is_used_once_by_the_members_of_a_spread_group() -> None:
    """Promise P3: room for 8 pods is not given to two members of a group."""
    small = cluster("a", node(cpu=800))
    objects = group(item("web", 16), item("api", 16))
    decision = run(small, B, objects=objects, plan=policy(spread=Spread(NAME_LABEL)))
    assert decision.targets["a"] == {WEB: 8}
    assert decision.targets["b"] == {WEB: 8, "Deployment.apps/shop/api": 16}


def test_replicas_that_fit_nowhere_go_to_autoscaled_clusters_or_wait() -> None:
    small, full = cluster("a", node(cpu=200)), cluster("b", node(cpu=100))
    plan = policy(spread=Spread(NAME_LABEL))
    decision = run(small, full, objects=group(item("web", 10)), plan=plan)
    assert spread_of(decision) == {"a": 5, "b": 5}
    assert decision.warnings == (
        "Deployment web: the clusters have room for 3 of 10 replicas; the other replicas wait there",)
    scaled = run(small, cluster("b", node(cpu=100), autoscaled=True), objects=group(item("web", 10)), plan=plan)
    assert (spread_of(scaled), scaled.warnings) == ({"a": 2, "b": 8}, ())


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 9)), min_size=1, max_size=6), st.integers(0, 30),
       st.integers(-6, 6))
def test_replicas_of_a_valid_placement_do_not_move(places: Any, replicas: int, more: int) -> None:
    """Minimal movement: a decision on its own result changes nothing, and a scaled object only gains or only loses
    replicas, whatever the history of the placement is."""
    clusters = [cluster(f"c{number}", zone=str(zone)) for number, (zone, _share) in enumerate(places)]
    plan, history = policy(spread=Spread("zone")), {
        entry.name: {WEB: share} for entry, (_zone, share) in zip(clusters, places, strict=True) if share}
    first = run(*clusters, objects=group(item("web", replicas)), plan=plan, current=history)
    again = run(*clusters, objects=group(item("web", replicas)), plan=plan, current=first.targets)
    assert again.targets == first.targets
    scaled = run(*clusters, objects=group(item("web", max(0, replicas + more))), plan=plan, current=first.targets)
    before, after = ([decision.targets.get(entry.name, {}).get(WEB) or 0 for entry in clusters]
                     for decision in (first, scaled))
    differences = [new - old for new, old in zip(after, before, strict=True)]
    assert min(differences) >= 0 or max(differences) <= 0
    assert sum(differences) == max(0, replicas + more) - replicas


@given(st.permutations([A, B, cluster("d", node(cpu=100)), cluster("e", ready=False, reachable=False)]))
def test_decisions_do_not_depend_on_the_order_of_clusters(clusters: list[Any]) -> None:
    for plan, replicas in itertools.product((policy(), policy(spread=Spread(NAME_LABEL))), (1, 7)):
        objects = group(item("web", replicas))
        assert run(*clusters, plan=plan, objects=objects) == run(*sorted(clusters, key=lambda entry: entry.name),
                                                                plan=plan, objects=objects)


def test_a_finished_job_never_runs_again() -> None:
    """Issue 27, scheduling 9: a succeeded Job stays where it ran, also if its group moves or its cluster is deleted."""
    job = item("work", None, kind="Job", finished=True, break_first=True)
    key = job.ref.key
    elsewhere = policy({"matchLabels": {NAME_LABEL: "b"}})
    assert run(A, B, objects=group(job), plan=elsewhere, current={"a": {key: None}}).targets == {"a": {key: None}}
    assert run(A, B, objects=group(job)).targets == {}
    both = group(item("web", 1), job)
    moved = run(A, B, objects=both, plan=elsewhere, current={"a": {key: None, WEB: 1}})
    assert moved.targets == {"b": {WEB: 1}}
    stays = run(A, B, objects=both, current={"a": {key: None, WEB: 1}})
    assert stays.targets == {"a": {WEB: 1, key: None}}


def test_brief_decisions_choose_the_same_clusters() -> None:
    """A decision without needless checks (chapter 15: cost with many clusters) has the targets of a complete one."""
    generator = random.Random(1)
    for _round in range(300):
        fleet = [cluster(f"c{number}", *(node(f"n{index}", cpu=generator.choice((500, 1000, 4000)))
                                            for index in range(generator.randint(1, 3))),
                                   autoscaled=generator.random() < 0.2, ready=generator.random() < 0.9)
                    for number in range(generator.randint(1, 8))]
        names = [entry.name for entry in fleet]
        items = [item(f"web{number}", generator.randint(1, 4), generator.choice((100, 400, 900)))
                 for number in range(generator.randint(1, 2))]
        plan = policy(ordered=generator.sample(names, len(names)) if generator.random() < 0.3 else None)
        booked = claims(*fleet)
        for name in names:
            booked.claim(name, "other", [(item("other", 1, generator.choice((100, 300))), 1)])
        current = {}
        if generator.random() < 0.5:
            current = {generator.choice(names): {entry.ref.key: entry.replicas for entry in items}}
            booked.claim(next(iter(current)), "group", [(entry, entry.replicas) for entry in items])
        complete = decide(group(*items), plan, fleet, booked, current)
        brief = decide(group(*items), plan, fleet, booked, current, brief=True)
        assert (brief.targets, brief.placed) == (complete.targets, complete.placed)


def test_annotations_that_name_unknown_clusters_are_warned_about() -> None:
    decision = run(A, objects=group(item("web", 2)), plan=of_annotations("", "a,x"))
    assert spread_of(decision) == {"a": 2}
    assert decision.warnings == ("the annotation names the cluster 'x', which does not exist",)
