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


class ClaimsOfManyGroups(RuleBasedStateMachine):
    """Random claims, releases, starts and reports: decisions that fit never overcommit a cluster."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes = {"a": [1000, 600], "b": [2000]}
        self.books = Claims()
        self.wanted: dict[tuple[str, str], int] = {}
        self.running: dict[tuple[str, str], int] = {}
        for name in self.sizes:
            self.report(name)

    @rule(name=st.sampled_from("ab"), group=st.sampled_from("xyz"), pods=st.integers(1, 6))
    def place(self, name: str, group: str, pods: int) -> None:
        needs = [(item(group, pods, cpu=200), pods)]
        if self.books.fits(name, group, needs).ok:
            self.books.claim(name, group, needs)
            self.wanted[name, group] = pods

    @rule(name=st.sampled_from("ab"), group=st.sampled_from("xyz"))
    def start(self, name: str, group: str) -> None:
        """The cluster starts what is wanted; nobody knows yet."""
        if (name, group) in self.wanted:
            self.running[name, group] = self.wanted[name, group]

    @rule(name=st.sampled_from("ab"), group=st.sampled_from("xyz"))
    def withdraw(self, name: str, group: str) -> None:
        self.books.release(name, group)
        self.wanted.pop((name, group), None)
        self.running.pop((name, group), None)
        self.report(name)

    @rule(name=st.sampled_from("ab"))
    def report(self, name: str) -> None:
        used = sum(pods for (place, _group), pods in self.running.items() if place == name)
        nodes = []
        for number, size in enumerate(self.sizes[name]):
            here = min(used, size // 200)
            used -= here
            nodes.append(node(f"n{number}", cpu=size - here * 200))
        self.books.report(cluster(name, *nodes), lambda group: self.running.get((name, group)) == self.wanted.get(
            (name, group)))

    @invariant()
    def no_cluster_is_overcommitted(self) -> None:
        for name, sizes in self.sizes.items():
            wanted = sum(pods for (place, _group), pods in self.wanted.items() if place == name)
            assert wanted <= sum(size // 200 for size in sizes)


TestClaims = ClaimsOfManyGroups.TestCase
TestClaims.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
