"""Statuses of copies, merged: facts chapter 5, and complaint 17 of chapter 12 (a dead cluster must not stay ready)."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from nova.federator.api.types import Ref
from nova.federator.scheduling.merge_status import STALE, Copy, merge
from tests.unit.federator.test_api import json_values

NOW = "2026-11-29T00:00:00Z"


def ref(kind: str = "Deployment") -> Ref:
    return Ref("apps", "v1", kind, "shop", "web")


def condition(kind: str, status: str = "True") -> dict[str, Any]:
    return {"type": kind, "status": status, "reason": "R"}


def states(status: dict[str, Any]) -> dict[str, str]:
    return {entry["type"]: entry["status"] for entry in status.get("conditions", [])}


def test_the_status_of_a_single_copy_is_that_of_the_object() -> None:
    status = {"phase": "Running", "podIP": "10.0.0.1", "conditions": [condition("Ready")]}
    assert merge(ref("Pod"), 3, [Copy("a", status)], NOW) == status
    assert merge(ref("Pod"), 3, [Copy("a", {})], NOW) == {}
    assert merge(ref("Pod"), 3, [], NOW) == {}


def test_the_counter_of_clashing_names_is_not_copied() -> None:
    """The next cluster of the object may have a lower one, which API servers refuse."""
    status = {"replicas": 1, "collisionCount": 2}
    assert merge(ref(), 3, [Copy("a", status)], NOW) == {"replicas": 1}
    assert merge(ref(), 3, [Copy("a", status), Copy("b", status)], NOW) == {"replicas": 2}


def test_counters_of_spread_copies_are_summed() -> None:
    """Deployment, ReplicaSet, StatefulSet: 5/5 and 5/5 are 10/10."""
    status = {"replicas": 5, "readyReplicas": 5, "availableReplicas": 5, "updatedReplicas": 5, "observedGeneration": 7,
              "conditions": [condition("Available")]}
    merged = merge(ref(), 3, [Copy("a", status), Copy("b", status)], NOW)
    assert (merged["replicas"], merged["readyReplicas"], merged["observedGeneration"]) == (10, 10, 3)
    assert states(merged) == {"Available": "True"}


def test_the_generation_is_observed_once_all_copies_have_it() -> None:
    """Clients such as kubectl rollout status wait for observedGeneration."""
    status = {"replicas": 1, "observedGeneration": 1}
    copies = [Copy("a", status), Copy("b", status, applied=False)]
    assert merge(ref(), 3, copies, NOW)["observedGeneration"] == 2
    assert merge(ref(), 3, copies[:1], NOW)["observedGeneration"] == 3


def test_the_worst_condition_counts() -> None:
    """A condition that a copy lacks is not True; of conditions that report problems True is worst."""
    merged = merge(ref(), 1, [
        Copy("a", {"conditions": [condition("Available"), condition("Progressing")]}),
        Copy("b", {"conditions": [condition("Available", "False"), condition("ReplicaFailure")]})], NOW)
    assert states(merged) == {"Available": "False", "ReplicaFailure": "True"}


def test_a_job_is_complete_when_it_is_complete_in_all_clusters() -> None:
    """Job: condition Complete comes back; kubectl wait must not return early."""
    done = {"succeeded": 1, "startTime": "2026-01-01T00:00:02Z", "completionTime": "2026-01-01T00:00:09Z",
            "conditions": [condition("Complete")]}
    running = {"active": 1, "startTime": "2026-01-01T00:00:01Z"}
    merged = merge(ref("Job"), 1, [Copy("a", done), Copy("b", running)], NOW)
    assert merged == {"active": 1, "succeeded": 1, "startTime": "2026-01-01T00:00:01Z"}
    assert merge(ref("Job"), 1, [Copy("a", done), Copy("b", {})], NOW).get("conditions") is None
    merged = merge(ref("Job"), 1, [Copy("a", done), Copy("b", {**done, "completionTime": "2026-01-01T00:00:30Z"})], NOW)
    assert (states(merged), merged["completionTime"]) == ({"Complete": "True"}, "2026-01-01T00:00:30Z")
    failed = merge(ref("Job"), 1, [Copy("a", done), Copy("b", {"failed": 1, "conditions": [condition("Failed")]})], NOW)
    assert states(failed) == {"Failed": "True"}


def test_addresses_of_load_balancers_are_listed() -> None:
    """Service: the list of all clusters' entries."""
    copies = [Copy(ip, {"loadBalancer": {"ingress": [{"ip": ip}]}}) for ip in ("1.1.1.1", "2.2.2.2")]
    assert merge(ref("Service"), 1, copies, NOW)["loadBalancer"]["ingress"] == [{"ip": "1.1.1.1"}, {"ip": "2.2.2.2"}]


def test_pods_of_a_cluster_that_does_not_report_are_not_ready() -> None:
    status = {"replicas": 5, "readyReplicas": 5, "availableReplicas": 5, "conditions": [condition("Available")]}
    merged = merge(ref(), 1, [Copy("a", status), Copy("b", status, stale=True)], NOW)
    assert (merged["replicas"], merged["readyReplicas"], merged["availableReplicas"]) == (10, 5, 5)
    assert states(merged) == {"Available": "Unknown", STALE: "Unknown"}
    assert merged["conditions"][-1]["message"] == "No report from: b."
    alone = merge(ref(), 1, [Copy("b", status, stale=True)], NOW)
    assert "readyReplicas" not in alone
    assert states(alone) == {"Available": "Unknown", STALE: "Unknown"}
    back = merge(ref(), 1, [Copy("b", {**status, "conditions": alone["conditions"]})], NOW)
    assert STALE not in states(back)


def test_a_finished_job_stays_finished_while_its_cluster_does_not_report() -> None:
    merged = merge(ref("Job"), 1, [Copy("a", {"succeeded": 1, "conditions": [condition("Complete")]}, stale=True)], NOW)
    assert states(merged) == {"Complete": "True", STALE: "Unknown"}


def test_other_kinds_in_several_clusters_have_conditions_only() -> None:
    copies = [Copy("a", {"phase": "Bound", "conditions": [condition("Ready")]}), Copy("b", {"conditions": [
        condition("Ready", "False")]})]
    assert merge(ref("Widget"), 1, copies, NOW) == {"conditions": [condition("Ready", "False")]}


@given(st.lists(st.tuples(st.dictionaries(st.sampled_from(
    ["replicas", "readyReplicas", "conditions", "loadBalancer", "startTime", "observedGeneration"]), json_values),
    st.booleans()), max_size=3), st.sampled_from(["Deployment", "Job", "Service", "Widget"]))
def test_hostile_statuses_break_nothing(reported: list[tuple[dict[str, Any], bool]], kind: str) -> None:
    copies = [Copy(str(number), status, stale) for number, (status, stale) in enumerate(reported)]
    merged = merge(ref(kind), 1, copies, NOW)
    if len(copies) > 1:
        assert 0 <= merged.get("replicas", 0) < 1 << 31
