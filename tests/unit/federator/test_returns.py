"""Tests of returns to preferred clusters: promise P1, health-gated and one group at a time."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from nova.federator.controllers.returns import Returns
from nova.federator.store.schedules import Observed, Ref, Report, Schedule

WEB = Ref("apps", "v1", "Deployment", "shop", "web")
WAITS = Schedule("nova-cluster-b", "web", "web", (), Report(1, 1, (Observed(WEB, "Applied"),)), generation=1)
READY = msgspec.structs.replace(WAITS, report=Report(1, 1, (Observed(WEB, "Ready"),)))
OLD = msgspec.structs.replace(READY, cluster_namespace="nova-cluster-a")


class Clusters:
    """Clusters of which some have just returned and some are unreachable."""

    def __init__(self) -> None:
        self.returned: set[str] = set()
        self.silent: set[str] = set()

    def unsettled(self) -> set[str]:
        return set(self.returned)

    def reachable(self, name: str) -> bool:
        return name not in self.silent


def make() -> tuple[Returns, Clusters]:
    clusters = Clusters()
    return Returns(cast(Any, clusters)), clusters


def test_groups_return_one_at_a_time() -> None:
    returns, _clusters = make()
    waiting = {"b/settled": {"second"}, "b/ready": {"third"}}
    returns.record("first", ["b"], {"a": {0: OLD}, "b": {0: WAITS}})
    assert (returns.held_back("first"), returns.held_back("second")) == (set(), {"b"})
    assert returns.next(waiting) == []
    returns.record("first", ["b"], {"b": {0: WAITS}})
    assert returns.next(waiting) == [], "its new share is not ready"
    returns.record("first", ["b"], {"b": {0: READY}})
    assert returns.held_back("second") == set()
    assert returns.next(waiting) == ["second"]
    assert returns.next(waiting) == []


def test_groups_wait_until_the_cluster_has_settled() -> None:
    returns, clusters = make()
    clusters.returned.add("b")
    waiting = {"b/settled": {"web"}}
    assert returns.held_back("web") == {"b"}
    assert returns.next(waiting) == []
    clusters.returned.clear()
    assert returns.next(waiting) == ["web"]


def test_new_groups_and_lost_clusters_hold_nobody_back() -> None:
    returns, clusters = make()
    returns.record("new", ["b"], {"b": {0: WAITS}})
    clusters.silent.add("a")
    returns.record("lost", ["b"], {"a": {0: OLD}, "b": {0: READY}})
    assert returns.held_back("web") == set()


def test_a_group_that_decides_otherwise_frees_the_cluster() -> None:
    returns, _clusters = make()
    returns.record("web", ["b"], {"a": {0: OLD}, "b": {0: WAITS}})
    returns.record("web", ["c"], {"a": {0: OLD}, "c": {0: WAITS}})
    assert returns.held_back("other") == {"c"}
    returns.record("web", (), {})
    assert returns.held_back("other") == set()
