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
    returns.waiting = {"b": {"second"}}
    returns.record("first", ["b"], {"a": {0: OLD}, "b": {0: WAITS}})
    assert (returns.held_back("first"), returns.held_back("second")) == (set(), {"b"})
    assert returns.next() == []
    returns.record("first", ["b"], {"b": {0: WAITS}})
    assert returns.next() == [], "its new share is not ready"
    returns.record("first", ["b"], {"b": {0: READY}})
    assert returns.held_back("second") == set()
    assert returns.next() == ["second"]
    assert returns.next() == []


def test_groups_wait_until_the_cluster_has_settled() -> None:
    returns, clusters = make()
    clusters.returned.add("b")
    returns.waiting = {"b": {"web"}}
    assert returns.held_back("web") == {"b"}
    assert returns.next() == []
    clusters.returned.clear()
    assert returns.next() == ["web"]


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
    returns.forget("web")
    assert returns.held_back("other") == set()


def test_deleted_groups_neither_hold_others_back_nor_take_their_turn() -> None:
    returns, _clusters = make()
    returns.waiting = {"b": {"deleted", "web"}, "c": {"deleted"}}
    returns.record("deleted", ["b"], {"a": {0: OLD}, "b": {0: WAITS}})
    returns.forget("deleted")
    assert returns.next() == ["web"]
    assert returns.next() == []


def test_a_copy_whose_deletion_does_not_end_holds_no_group_back() -> None:
    """A finalizer in a cluster may keep a copy forever; a group that must stop first has not moved by then, however."""
    returns, _clusters = make()
    deleted = msgspec.structs.replace(OLD, deleting=True)
    returns.record("stops first", ["b"], {"a": {0: deleted}})
    assert returns.held_back("web") == {"b"}
    returns.record("stops first", ["b"], {"a": {0: deleted}, "b": {0: WAITS}})
    assert returns.held_back("web") == {"b"}
    returns.record("stops first", ["b"], {"a": {0: deleted}, "b": {0: READY}})
    assert returns.held_back("web") == set()
