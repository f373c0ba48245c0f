"""Capacity and claims: facts chapter 4, promises P3 (a claim counts at once, and only once) and P4 (per node)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from nova.federator.api.types import Taint
from nova.federator.scheduling.capacity import Claims
from tests.unit.federator.worlds import claims, cluster, item, node

GPU = Taint("gpu", "yes", "NoSchedule")


def test_a_claim_counts_at_once() -> None:
    """Promise P3: what is chosen counts as used before a report says so."""
    small = cluster("a", node(cpu=1000))
    books = claims(small)
    needs = [(item("web", 2, cpu=400), 2)]
    assert books.fits("a", "one", needs).ok
    books.claim("a", "one", needs)
    assert not books.fits("a", "two", needs).ok
    assert books.fits("a", "one", needs).ok, "a group does not compete with itself"
    books.release("a", "one")
    assert books.fits("a", "two", needs).ok


def test_a_report_that_includes_a_claim_replaces_it() -> None:
    """Promise P3: nothing is counted twice, and a claim that the report does not include stays."""
    books = claims(cluster("a", node(cpu=1000)))
    needs = [(item("web", 2, cpu=400), 2)]
    books.claim("a", "one", needs)
    books.report(cluster("a", node(cpu=1000)), lambda _group: False)
    assert not books.fits("a", "two", [(item("x", 1, cpu=300), 1)]).ok
    books.report(cluster("a", node(cpu=200)), lambda group: group == "one")
    assert books.fits("a", "two", [(item("x", 1, cpu=200), 1)]).ok
    assert not books.fits("a", "two", [(item("x", 1, cpu=201), 1)]).ok
    assert books.claimed("a") == {}


def test_growth_needs_room_for_the_difference_only() -> None:
    """Pods that run and are reported need no room a second time."""
    books = claims(cluster("a", node(cpu=1000)))
    books.claim("a", "one", [(item("web", 2, cpu=400), 2)])
    books.report(cluster("a", node(cpu=400)), lambda _group: True)
    assert books.fits("a", "one", [(item("web", 3, cpu=400), 3)]).ok
    assert not books.fits("a", "one", [(item("web", 4, cpu=400), 4)]).ok


@pytest.mark.parametrize(("entry", "fields", "message"), [
    (node(taints=(GPU,)), {}, "taint gpu=yes:NoSchedule"),
    (node(taints=(GPU,)), {"tolerations": ({"key": "gpu", "operator": "Exists"},)}, ""),
    (node(taints=(GPU,)), {"tolerations": ({"key": "gpu", "value": "yes", "effect": "NoSchedule"},)}, ""),
    (node(taints=(GPU,)), {"tolerations": ({"key": "gpu", "value": "no"},)}, "taint"),
    (node(taints=(GPU,)), {"tolerations": ({"operator": "Exists"},)}, ""),
    (node(taints=(Taint("x", "", "PreferNoSchedule"),)), {}, ""),
    (node(labels={"disk": "ssd"}), {"node_selector": {"disk": "ssd"}}, ""),
    (node(), {"node_selector": {"disk": "ssd"}}, "label disk=ssd"),
    (node(labels={"n": "5"}), {"node_affinity": ({"matchExpressions": [
        {"key": "n", "operator": "Gt", "values": ["4"]}]},)}, ""),
    (node(labels={"n": "5"}), {"node_affinity": ({"matchExpressions": [
        {"key": "n", "operator": "Lt", "values": ["4"]}]},)}, "affinity"),
    (node(), {"node_affinity": ({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]},)}, ""),
    (node(), {"node_affinity": ({},)}, "affinity"),
    (node(labels={"n": "x"}), {"node_affinity": ({"matchExpressions": [
        {"key": "n", "operator": "Gt", "values": ["4"]}]}, {"matchExpressions": [
        {"key": "n", "operator": "Exists"}]})}, "")])
def test_taints_selectors_and_affinity(entry: Any, fields: Any, message: str) -> None:
    """Mode capacity: taints, selectors and affinity of pods decide which nodes count."""
    fit = claims(cluster("a", entry)).fits("a", "one", [(item("web", **fields), 1)])
    assert fit.ok is not bool(message)
    assert message in fit.message


def test_the_number_of_pods_of_a_node_is_a_resource() -> None:
    fit = claims(cluster("a", node(pods=2))).fits("a", "one", [(item("web", 3, cpu=0), 3)])
    assert fit.message == "has room for 2 of 3 pods of cpu 0, pods 1"


def test_daemon_sets_need_no_capacity() -> None:
    assert claims(cluster("a", node(cpu=0))).fits("a", "one", [(item("web", None, every_node=True), None)]).ok


def test_the_cost_of_a_check_does_not_grow_with_replicas() -> None:
    """A million pods are placed arithmetically."""
    books = claims(cluster("a", *(node(f"n{number}", cpu=10**12, pods=10**9) for number in range(100))))
    needs = [(item("web", 10**6), 10**6)]
    books.claim("a", "one", needs)
    booked = books.claimed("a")
    assert booked["pods"] == 10**9


def test_a_decision_is_booked_until_its_schedules_are_stored() -> None:
    """Promise P3: a report that arrives between a decision and the write of its schedules includes nothing of it, and
    an event on the old schedules does not end its claim."""
    books = claims(cluster("a", node(cpu=1000)))
    books.claim("a", "one", [(item("web", 1, cpu=300), 1)], included=True)
    books.decide("one", {"a": [(item("web", 3, cpu=300), 3)]})
    books.report(cluster("a", node(cpu=700)), lambda _group: True)
    assert books.claimed("a")["cpu"] == 600
    books.claim("a", "one", [(item("web", 1, cpu=300), 1)], included=True)
    assert books.claimed("a")["cpu"] == 600
    books.claim("a", "one", [(item("web", 3, cpu=300), 3)])
    books.report(cluster("a", node(cpu=100)), lambda _group: True)
    assert books.claimed("a") == {}


def test_a_decision_replaces_the_former_decision_in_all_clusters() -> None:
    """No claim leaks: neither of a decision that was never stored, nor of a group that does not exist any more."""
    books, needs = claims(cluster("a"), cluster("b")), [(item("web", 2, cpu=400), 2)]
    books.decide("one", {"a": needs})
    books.decide("one", {"b": needs})
    assert (books.claimed("a"), books.claimed("b")["cpu"]) == ({}, 800)
    books.claim("b", "one", needs)
    books.decide("one", {})
    assert books.claimed("b")["cpu"] == 800, "the schedules exist"
    books.release("b", "one")
    assert books.claimed("b") == {}


def test_a_smaller_decision_frees_nothing_before_it_is_stored() -> None:
    books = claims(cluster("a", node(cpu=1000)))
    books.claim("a", "one", [(item("web", 5, cpu=200), 5)])
    books.decide("one", {"a": [(item("web", 1, cpu=200), 1)]})
    assert books.claimed("a")["cpu"] == 1000
    books.claim("a", "one", [(item("web", 1, cpu=200), 1)])
    assert books.claimed("a")["cpu"] == 200


def test_pods_that_were_scaled_down_and_up_again_are_booked_again() -> None:
    """Promise P3: the next report may include the smaller number."""
    books = claims(cluster("a", node(cpu=1000)))
    for pods, included in ((5, True), (1, False), (5, False)):
        books.claim("a", "one", [(item("web", pods, cpu=200), pods)], included)
    books.report(cluster("a", node(cpu=800)), lambda _group: False)
    assert not books.fits("a", "two", [(item("x", 1, cpu=200), 1)]).ok


def test_larger_requests_need_the_difference() -> None:
    """A change of requests does not move a group that its cluster can run."""
    books = claims(cluster("a", node(cpu=1000)))
    books.claim("a", "one", [(item("web", 4, cpu=200), 4)])
    books.report(cluster("a", node(cpu=200)), lambda _group: True)
    assert books.fits("a", "one", [(item("web", 4, cpu=250), 4)]).ok
    assert not books.fits("a", "one", [(item("web", 4, cpu=300), 4)]).ok
    elsewhere = item("web", 4, cpu=200, node_selector={"disk": "ssd"})
    assert not books.fits("a", "one", [(elsewhere, 4)]).ok, "other nodes: all pods are new"


def test_a_check_changes_no_claim() -> None:
    """Promise P3: pods of several sizes stay booked where they are, also if a check would distribute them otherwise."""
    books = claims(cluster("a", node("n", cpu=1000), node("m", cpu=600)))
    books.claim("a", "one", [(item("large", 1, cpu=600), 1), (item("small", 2, cpu=300), 2)])
    books.claim("a", "two", [(item("web", 1, cpu=400), 1)])
    before = books.claimed("a")
    for group in ("one", "two", "three"):
        books.fits("a", group, [(item("web", 1, cpu=400), 1)])
        room = books.room("a", group)
        room.take(item("web", 1, cpu=100), 1)
        assert room.count(item("web", 1, cpu=100)) >= 0
    assert books.claimed("a") == before


def test_rooms_are_those_of_the_checks() -> None:
    """Mode capacity: the cluster with the most room left by the dominant resource is preferred."""
    gpus = node(cpu=8000)
    gpus.available["gpu"] = 4000  # type: ignore[index]
    books, pod = claims(cluster("a", gpus), cluster("b", node(cpu=1000))), item("web", 2, cpu=400)
    books.claim("b", "other", [(item("x", 1, cpu=100), 1)])
    books.claim("a", "one", [(pod, 1)])
    for needs in ([(pod, 2)], [(pod, 1), (item("y", 1, cpu=100), 1)]):
        rooms = books.rooms(["a", "b", "c"], "one", needs)
        assert {name: books.fits(name, "one", needs).room for name in "ab"} == {name: rooms[name] for name in "ab"}
    assert books.rooms(["b"], "one", [(pod, 2)]) == {"b": 100}, "1000m - 100m of another group - 2 x 400m"
    assert pod.pod is not None
    pod.pod.requests["gpu"] = 1000  # type: ignore[index]
    assert books.rooms(["a"], "two", [(pod, 2)]) == {"a": 500}, "2 of 4 are left"


def test_a_check_reads_few_nodes_if_the_first_ones_suffice() -> None:
    """Promise P10: the cost of a placement does not grow with the nodes of clusters that have room."""
    reads = []

    class Labels(dict[str, str]):
        def get(self, key: str, default: Any = None) -> Any:
            reads.append(key)
            return super().get(key, default)

    nodes = [node(f"n{number}", labels=Labels(disk="ssd")) for number in range(1000)]
    books = claims(cluster("a", *nodes))
    assert books.fits("a", "one", [(item("web", 3, node_selector={"disk": "ssd"}), 3)]).ok
    assert len(reads) == 1


class ClaimsOfManyGroups(RuleBasedStateMachine):
    """Decisions, writes, agents and reports in any order and with any delay: what fits never overcommits a cluster.

    ``decided`` is what the scheduler wants, ``stored`` the schedules with a generation, ``running`` the pods with the
    generation that the agent has applied.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sizes = {"a": [1000, 600], "b": [2000]}
        self.books = Claims()
        self.decided: dict[str, dict[str, int]] = {}  # group -> cluster -> pods
        self.stored: dict[tuple[str, str], tuple[int, int]] = {}  # cluster, group -> generation, pods
        self.running: dict[tuple[str, str], tuple[int, int]] = {}
        self.reported: dict[str, dict[str, int]] = {"a": {}, "b": {}}  # cluster -> group -> generation
        self.generation = 0
        for name in self.sizes:
            self.report(name)

    @rule(name=st.sampled_from("ab"), group=st.sampled_from("xyz"), pods=st.integers(1, 8))
    def place(self, name: str, group: str, pods: int) -> None:
        needs = [(item(group, pods, cpu=200), pods)]
        if self.books.fits(name, group, needs).ok:
            self.books.decide(group, {name: needs})
            self.decided[group] = {name: pods}

    @rule(group=st.sampled_from("xyz"))
    def write(self, group: str) -> None:
        """The decision on a group is stored: schedules in its clusters, none in the others."""
        for name in self.sizes:
            pods, old = self.decided.get(group, {}).get(name, 0), self.stored.get((name, group))
            if pods and (old is None or old[1] != pods):
                self.generation += 1
                self.stored[name, group] = self.generation, pods
            elif not pods and old is not None:
                del self.stored[name, group]
            self.event(name, group)

    @rule(name=st.sampled_from("ab"), group=st.sampled_from("xyz"))
    def event(self, name: str, group: str) -> None:
        """The scheduler receives the stored schedule, possibly again."""
        if (name, group) in self.stored:
            generation, pods = self.stored[name, group]
            self.books.claim(name, group, [(item(group, pods, cpu=200), pods)],
                             self.reported[name].get(group, -1) >= generation)
        else:
            self.books.release(name, group)

    @rule(group=st.sampled_from("xyz"))
    def delete(self, group: str) -> None:
        self.books.decide(group, {})
        self.decided.pop(group, None)

    @rule(name=st.sampled_from("ab"))
    def apply(self, name: str) -> None:
        """The agent makes the pods of its cluster equal to the schedules."""
        self.running = {**{key: value for key, value in self.running.items() if key[0] != name},
                        **{key: value for key, value in self.stored.items() if key[0] == name}}

    @rule(name=st.sampled_from("ab"))
    def report(self, name: str) -> None:
        running = {group: value for (place, group), value in self.running.items() if place == name}
        used, nodes = sum(pods for _generation, pods in running.values()), []
        for number, size in enumerate(self.sizes[name]):
            here = min(used, size // 200)
            used -= here
            nodes.append(node(f"n{number}", cpu=size - here * 200))
        self.reported[name] = {group: generation for group, (generation, _pods) in running.items()}
        self.books.report(cluster(name, *nodes), lambda group: self.reported[name].get(group, -1) >= self.stored.get(
            (name, group), (0, 0))[0])

    @invariant()
    def no_cluster_is_overcommitted(self) -> None:
        for name, sizes in self.sizes.items():
            wanted = {group: max(self.decided.get(group, {}).get(name, 0), self.stored.get((name, group), (0, 0))[1])
                      for group in "xyz"}
            assert sum(wanted.values()) <= sum(size // 200 for size in sizes)

    def teardown(self) -> None:
        """After all writes, agents and reports nothing is booked twice, and nothing remains booked."""
        for group in "xyz":
            self.write(group)
        for name, sizes in self.sizes.items():
            self.apply(name)
            self.report(name)
            assert self.books.claimed(name) == {}
            free = sum(size // 200 for size in sizes) - sum(
                pods for (place, _group), (_generation, pods) in self.stored.items() if place == name)
            assert self.books.room(name, "new").count(item("new", cpu=200)) == free


TestClaims = ClaimsOfManyGroups.TestCase
TestClaims.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
