"""The status of a user's object, from the statuses of its copies."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from nova.federator.api.types import Ref

_SUMS = {
    "Deployment": ("replicas", "updatedReplicas", "readyReplicas", "availableReplicas", "unavailableReplicas"),
    "ReplicaSet": ("replicas", "fullyLabeledReplicas", "readyReplicas", "availableReplicas"),
    "StatefulSet": ("replicas", "readyReplicas", "currentReplicas", "updatedReplicas"),
    "DaemonSet": ("currentNumberScheduled", "numberMisscheduled", "desiredNumberScheduled", "numberReady",
                  "updatedNumberScheduled", "numberAvailable", "numberUnavailable"),
    "Job": ("active", "succeeded", "failed"),
}
# Fields that are not copied while a cluster does not report: its pods may have stopped, and must not count as ready.
_READY = ("readyReplicas", "availableReplicas", "numberReady", "numberAvailable")
# Conditions that are True while pods run; their status is Unknown while the cluster does not report.
_LIVE = ("Available", "Ready", "ContainersReady")
# Conditions that report a problem: True is their worst status. The worst status of other conditions is False.
_PROBLEMS = ("Failed", "ReplicaFailure", "FailureTarget", "DisruptionTarget")
_LARGEST = (1 << 31) - 1  # largest value of a counter
# A counter of name collisions in one cluster. API servers refuse to lower or remove it, so it is left as it is.
COLLISIONS = "collisionCount"
STALE = "NovaStatusStale"  # type of the condition of an object with a copy in a cluster that does not report


class Copy(msgspec.Struct, frozen=True):
    """A copy in a cluster; its status is empty until the agent reports it. ``stale``: True if the cluster does not
    report. ``applied``: True if the copy has the present generation of the object."""

    cluster: str
    status: Mapping[str, Any]
    stale: bool = False
    applied: bool = True


def merge(ref: Ref, generation: int, copies: Sequence[Copy], now: str) -> dict[str, Any]:
    """Return the status of an object. ``now``: the time of changed conditions, RFC 3339.

    An object with one copy has the status of the copy. The statuses of several copies are merged: counters are summed,
    addresses of load balancers are listed, and the worst status of each condition counts. ``observedGeneration``
    becomes ``generation`` once all copies have this generation.
    """
    if not any(copy.status for copy in copies):
        return {}
    statuses = [_stale(copy) if copy.stale else dict(copy.status)
                for copy in sorted(copies, key=lambda copy: copy.stale)]
    merged: dict[str, Any]
    if len(copies) == 1:
        merged = statuses[0]
        merged.pop(COLLISIONS, None)
    else:
        merged = {field: total for field in _SUMS.get(ref.kind, ()) if (total := min(_LARGEST, sum(
            value for status in statuses if isinstance(value := status.get(field), int) and value > 0)))}
        if ref.kind in ("Service", "Ingress"):
            merged["loadBalancer"] = {"ingress": [entry for status in statuses for entry in _entries(
                status.get("loadBalancer"), "ingress")]}
        if ref.kind == "Job":
            merged |= _times(statuses)
    conditions = _conditions(statuses) if len(copies) > 1 else [dict(entry) for entry in _entries(
        statuses[0], "conditions")]
    missing = sorted(copy.cluster for copy in copies if copy.stale)
    conditions = [entry for entry in conditions if entry.get("type") != STALE]
    if missing:
        conditions.append({"type": STALE, "status": "Unknown", "reason": "ClusterUnreachable",
                           "lastTransitionTime": now, "message": f"No report from: {', '.join(missing)}."})
    if conditions:
        merged["conditions"] = conditions
    if any("observedGeneration" in status for status in statuses):
        merged["observedGeneration"] = generation if all(copy.applied for copy in copies) else max(0, generation - 1)
    return merged


def _stale(copy: Copy) -> dict[str, Any]:
    """Return the status of a copy in a cluster that does not report: the pods may have stopped, so none is ready."""
    status = {key: value for key, value in copy.status.items() if key not in _READY}
    if "conditions" in status:
        status["conditions"] = [{**entry, "status": "Unknown", "reason": "ClusterUnreachable"} if entry.get(
            "type") in _LIVE and entry.get("status") == "True" else dict(entry)
            for entry in _entries(status, "conditions")]
    return status


def _times(statuses: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the earliest start of the copies of a Job and, once all have completed, the latest completion."""
    begun = [value for status in statuses if isinstance(value := status.get("startTime"), str)]
    ended = [value for status in statuses if isinstance(value := status.get("completionTime"), str)]
    return {**({"startTime": min(begun)} if begun else {}),
            **({"completionTime": max(ended)} if len(ended) == len(statuses) else {})}


def _conditions(statuses: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the worst condition of all copies for each type. A condition that a copy lacks counts as not True, and not
    as a problem."""
    rank = {"False": 0, "Unknown": 1, "True": 2}
    by_type: dict[str, list[dict[str, Any]]] = {}
    for status in statuses:
        for kind, entry in {str(entry.get("type")): dict(entry) for entry in _entries(status, "conditions")}.items():
            by_type.setdefault(kind, []).append(entry)
    result = []
    for kind, entries in by_type.items():
        states = [rank.get(str(entry.get("status")), 1) for entry in entries]
        worst = entries[states.index(max(states) if kind in _PROBLEMS else min(states))]
        if kind in _PROBLEMS or len(entries) == len(statuses) or worst.get("status") != "True":
            result.append(worst)
    return result


def _entries(value: object, field: str) -> list[Mapping[str, Any]]:
    entries = value.get(field) if isinstance(value, Mapping) else None
    return [entry for entry in entries if isinstance(entry, Mapping)] if isinstance(entries, list) else []
