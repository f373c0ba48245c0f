"""The state of copies: phases by kind, ownership of fields, comparison with a manifest. Facts chapters 5 and 11."""

from typing import Any

import pytest

from nova.federator.clusters.observe import contains, copy_of, phase_of
from nova.federator.clusters.report import _differs
from nova.federator.store.reports import ClusterReport, NodeReport


def workload(kind: str, status: dict[str, Any], generation: int = 1, **spec: Any) -> dict[str, Any]:
    group = {"Pod": "v1", "Job": "batch/v1", "PersistentVolumeClaim": "v1", "Service": "v1"}.get(kind, "apps/v1")
    return {"apiVersion": group, "kind": kind, "spec": spec, "status": status,
            "metadata": {"name": "x", "namespace": "n", "uid": "u", "generation": generation}}


def condition(kind: str, status: str = "True") -> dict[str, Any]:
    return {"conditions": [{"type": kind, "status": status}]}


@pytest.mark.parametrize(("obj", "phase"), [
    (workload("Deployment", {"observedGeneration": 1, "availableReplicas": 2, "updatedReplicas": 2}, replicas=2),
     "Ready"),
    (workload("Deployment", {"observedGeneration": 1, "availableReplicas": 2, "updatedReplicas": 1}, replicas=2),
     "Applied"),
    (workload("Deployment", {"observedGeneration": 1, "availableReplicas": 2, "updatedReplicas": 2}, 2, replicas=2),
     "Applied"),
    (workload("Deployment", {"observedGeneration": 1}, replicas=0), "Ready"),
    (workload("Deployment", {}, replicas=1), "Applied"),
    (workload("StatefulSet", {"observedGeneration": 1, "readyReplicas": 1}, replicas=1), "Ready"),
    (workload("StatefulSet", {"observedGeneration": 1, "readyReplicas": 1}, replicas=2), "Applied"),
    (workload("ReplicaSet", {"observedGeneration": 1, "availableReplicas": 1}, replicas=1), "Ready"),
    (workload("DaemonSet", {"observedGeneration": 1, "desiredNumberScheduled": 2, "numberReady": 2,
                            "updatedNumberScheduled": 2}), "Ready"),
    (workload("DaemonSet", {"observedGeneration": 1, "desiredNumberScheduled": 2, "numberReady": 1}), "Applied"),
    (workload("DaemonSet", {}), "Applied"),
    (workload("Pod", condition("Ready")), "Ready"),
    (workload("Pod", {"phase": "Succeeded"}), "Ready"),
    (workload("Pod", {"phase": "Failed"}), "Failed"),
    (workload("Pod", {"phase": "Running", **condition("Ready", "False")}), "Applied"),
    (workload("Job", condition("Complete")), "Ready"),
    (workload("Job", condition("Failed")), "Failed"),
    (workload("Job", {"active": 1}), "Ready"),
    (workload("Job", {}), "Applied"),
    (workload("PersistentVolumeClaim", {"phase": "Bound"}), "Ready"),
    (workload("PersistentVolumeClaim", {"phase": "Pending"}), "Applied"),
    (workload("PersistentVolumeClaim", {"phase": "Lost"}), "Failed"),
    (workload("Service", {}), "Ready"),
])
def test_phase_of_each_kind(obj: dict[str, Any], phase: str) -> None:
    assert phase_of(obj)[0] == phase


def test_a_rollout_that_stands_still_says_why() -> None:
    status = {"conditions": [{"type": "Progressing", "status": "False", "message": "exceeded its deadline"}]}
    assert phase_of(workload("Deployment", status, replicas=1)) == (
        "Applied", "0 of 1 replicas are available: exceeded its deadline")


@pytest.mark.parametrize(("actual", "desired", "equal"), [
    ({"a": 1, "b": 2}, {"a": 1}, True),
    ({"a": 1}, {"a": 2}, False),
    ({}, {"a": {}}, True),
    ({}, {"a": []}, True),
    ({}, {"a": {"b": 1}}, False),
    ({"a": [{"x": 1, "y": 2}]}, {"a": [{"x": 1}]}, True),
    ({"a": [1, 2]}, {"a": [1]}, False),
    ({"a": 1, "status": 1}, {"a": 1, "status": 2}, True),
    ({"a": None}, {"a": 0}, True),
    ({"a": 1}, {"a": 0}, False),
    ("text", {"a": 1}, False),
])
def test_a_copy_contains_its_manifest(actual: Any, desired: Any, equal: bool) -> None:
    assert contains(actual, desired) is equal


def test_ownership_follows_the_names_of_fields_of_the_agent_only() -> None:
    """Promise P7: the digest changes if Nova loses a field, and only then."""
    def copy(*entries: tuple[str, str, dict[str, Any]]) -> Any:
        obj = workload("Deployment", {}, replicas=1)
        obj["metadata"]["managedFields"] = [
            {"manager": manager, "operation": operation, "fieldsV1": fields} for manager, operation, fields in entries]
        return copy_of(obj)
    whole = {"f:spec": {"f:replicas": {}, "f:paused": {}}}
    owner = copy(("nova-agent", "Apply", whole))
    assert owner.owns_replicas
    assert copy(("nova-agent", "Apply", whole), ("kubectl", "Update", {"f:data": {}})).owned == owner.owned
    assert copy(("nova-agent", "Update", {"f:x": {}}), ("nova-agent", "Apply", whole)).owned == owner.owned
    loser = copy(("nova-agent", "Apply", {"f:spec": {"f:paused": {}}}), ("kubectl", "Update", whole))
    assert loser.owned != owner.owned
    assert not loser.owns_replicas
    assert not copy(("nova-agent", "Apply", {})).owns_replicas


@pytest.mark.parametrize(("annotations", "fence_after"), [
    ({}, None), ({"nova.elotl.co/fence-after": "60"}, 60.0)])
def test_the_fence_time_is_read_from_the_copy(annotations: dict[str, str], fence_after: float | None) -> None:
    """Promise P2: fencing needs no control plane."""
    obj = workload("Deployment", {}, replicas=1)
    obj["metadata"]["annotations"] = annotations
    assert copy_of(obj).fence_after == fence_after


@pytest.mark.parametrize(("kind", "status", "spec", "pods", "settled"), [
    ("Deployment", {"observedGeneration": 1, "updatedReplicas": 3}, {"replicas": 3}, 3, True),
    ("Deployment", {"observedGeneration": 1, "updatedReplicas": 2}, {"replicas": 3}, 3, False),
    ("StatefulSet", {}, {"replicas": 2}, 2, False),
    ("Job", {"startTime": "now", "succeeded": 1}, {"parallelism": 5, "completions": 3}, 2, True),
    ("Job", {"startTime": "now"}, {"parallelism": 2}, 2, True),
    ("Job", condition("Complete"), {"parallelism": 2}, 0, True),
    ("Pod", {}, {"nodeName": "n1"}, 0, True),
    ("Pod", {}, {}, 0, False),
])
def test_pods_that_a_copy_must_have(kind: str, status: dict[str, Any], spec: dict[str, Any], pods: int, settled: bool,
                                    ) -> None:
    """Promise P3: a claim ends once all pods run on nodes, so that nothing is counted twice or not at all."""
    copy = copy_of(workload(kind, status, **spec))
    assert (copy.pods, copy.settled) == (pods, settled)


def test_reports_differ_by_more_than_a_hundredth_of_a_resource_or_by_a_property() -> None:
    """Chapter 15: a report is written on relevant changes only."""
    def report(cpu: str = "4", **fields: Any) -> ClusterReport:
        node = NodeReport("n1", {"cpu": cpu}, {"cpu": "8"}, **{
            key: fields.pop(key) for key in ("labels", "taints", "schedulable") if key in fields})
        return ClusterReport(nodes=[node], **fields)
    assert not _differs(report(), report("4070m"))
    assert _differs(report(), report("4090m"))
    assert _differs(report(), ClusterReport())
    for change in ({"labels": {"a": "b"}}, {"taints": [{"key": "k", "effect": "NoSchedule"}]}, {"schedulable": False},
                   {"version": "v1.21.0"}, {"kinds": ["Pod"]}, {"autoscaled": True}, {"applied": {"s": 1}}):
        assert _differs(report(), report(**change)), change
