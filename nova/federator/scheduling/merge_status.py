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
# Fields that are not copied when a cluster does not report: pods that may not run must not count as ready.
_READY = ("readyReplicas", "availableReplicas", "numberReady", "numberAvailable")
STALE = "NovaStatusStale"  # type of a condition on objects of which a cluster does not report


class Copy(msgspec.Struct, frozen=True):
    """A copy in a cluster. ``stale``: the cluster does not report."""

    cluster: str
    status: Mapping[str, Any]
    stale: bool = False


def merge(ref: Ref, generation: int, copies: Sequence[Copy], now: str) -> dict[str, Any]:
    """Return the status of an object. ``now``: the time of changed conditions, RFC 3339.

    One copy: its status. Several: counters are summed, addresses of load balancers listed, and a condition is True only
    if it is True in all clusters. ``observedGeneration`` becomes that of the user's object.
    """
    if not copies:
        return {}
    fresh = [dict(copy.status) for copy in copies if not copy.stale]
    old = [{key: value for key, value in copy.status.items() if key not in _READY} for copy in copies if copy.stale]
    statuses = fresh + old
    merged: dict[str, Any]
    if len(copies) == 1:
        merged = statuses[0]
    else:
        merged = {field: total for field in _SUMS.get(ref.kind, ()) if (total := sum(
            value for status in statuses if isinstance(value := status.get(field), int)))}
        if ref.kind == "Service":
            merged["loadBalancer"] = {"ingress": [entry for status in statuses for entry in _entries(
                status.get("loadBalancer"), "ingress")]}
    conditions = _conditions(statuses) if len(copies) > 1 else [dict(entry) for entry in _entries(
        statuses[0], "conditions")]
    missing = sorted(copy.cluster for copy in copies if copy.stale)
    conditions = [entry for entry in conditions if entry.get("type") != STALE]
    if missing:
        conditions.append({"type": STALE, "status": "Unknown", "reason": "ClusterUnreachable",
                           "lastTransitionTime": now, "message": f"No report from: {', '.join(missing)}."})
    if conditions:
        merged["conditions"] = conditions
    if "observedGeneration" in statuses[0]:
        merged["observedGeneration"] = generation
    return merged


def _conditions(statuses: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the conditions of all copies: of each type the worst one (False, then Unknown, then True)."""
    rank = {"False": 0, "Unknown": 1, "True": 2}
    worst: dict[str, dict[str, Any]] = {}
    for status in statuses:
        for entry in _entries(status, "conditions"):
            kind, old = str(entry.get("type")), worst.get(str(entry.get("type")))
            if old is None or rank.get(str(entry.get("status")), 1) < rank.get(str(old.get("status")), 1):
                worst[kind] = dict(entry)
    return list(worst.values())


def _entries(value: object, field: str) -> list[Mapping[str, Any]]:
    entries = value.get(field) if isinstance(value, Mapping) else None
    return [entry for entry in entries if isinstance(entry, Mapping)] if isinstance(entries, list) else []
