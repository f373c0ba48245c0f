"""Standby: decisions to stop, start and create clusters. Pure functions of the state of a cluster and the time.

Active -> Suspending -> Suspended -> Waking -> Active; Failed for _RETRY_AFTER if the agent is not back at the deadline.
A phase is stored before the provider is called, so a restarted scheduler repeats the call.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from nova.common.errors import Invalid
from nova.federator.api.names import CLUSTER_LABELS, CLUSTER_NAME, NAME_LABEL
from nova.federator.api.types import Cluster, Group, Node, Policy, kind_name
from nova.federator.scheduling.capacity import Claims
from nova.federator.scheduling.policy import selects_cluster

Phase = Literal["Active", "Suspending", "Suspended", "Waking", "Failed"]
Action = Literal["begin", "suspend", "delete", "resume", "create", "enter"]
_RETRY_AFTER = 600.0  # seconds for which a cluster that did not wake up is not chosen again
# Longest duration of each step, in seconds; a longer step counts as failed.
_DEADLINES = {"enter": 30.0, "begin": 60.0, "suspend": 900.0, "delete": 1800.0, "resume": 900.0, "create": 1800.0}
VARIABLES = ("NOVA_IDLE_ENTER_STANDBY_ENABLE", "NOVA_IDLE_ENTER_STANDBY_SECS", "NOVA_DELETE_CLUSTER_IN_STANDBY",
             "NOVA_CREATE_CLUSTER_IF_NEEDED", "NOVA_MAX_CREATED_CLUSTERS", "NOVA_WAKE_TIMEOUT_SECS")
_TRUE, _FALSE = ("true", "1", "yes"), ("false", "0", "no", "")
SETTLE = 10.0  # seconds for which a group waits before a cluster is copied for it, and between two copies
_NAME_LIMIT = 54  # the name of a copy begins with so many characters of the name of the copied cluster


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of standby clusters. ``wake_seconds``: time in which the agent of a woken cluster must report again."""

    enabled: bool = False
    idle_seconds: float = 3600.0
    delete: bool = False
    create: bool = False
    most_created: int = 10
    wake_seconds: float = 1800.0
    retry_seconds: float = _RETRY_AFTER

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> "Settings":
        """Return the settings in environment variables. Raises Invalid, which names the variable."""
        enable, idle, delete, create, most, wake = VARIABLES
        settings = cls(enabled=_flag(environment, enable), idle_seconds=_number(environment, idle, 3600),
                       delete=_flag(environment, delete), create=_flag(environment, create),
                       most_created=_number(environment, most, 10), wake_seconds=_number(environment, wake, 1800))
        if settings.create and not (settings.enabled and settings.delete):
            raise Invalid(f"{create}: needs {enable} and {delete}.")
        return settings


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """The stored phase of a cluster that is not active. ``since``: wall clock time of its start. ``deleted``: True if
    waking must create the provider's cluster, which is deleted or is being deleted. ``template``: the cluster of which
    this one is a copy. ``epoch``: of the agent's Lease when the phase began. ``problem``: of the last failed call."""

    phase: Phase
    since: str
    deleted: bool = False
    template: str = ""
    epoch: int = 0
    problem: str = ""


class State(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a cluster. ``elapsed``: seconds in its phase. ``idle``: seconds without objects that consume
    resources, None if there are any. ``wanted``: groups wait for it. ``healthy``: its agent reports, and a provider can
    stop it. ``back``: its agent reports again after the cluster was stopped. ``calling``: a call of the provider
    runs; ``called``: the call of this phase has succeeded; ``due``: the delay after the last failed call is over."""

    phase: Phase = "Active"
    deleted: bool = False
    elapsed: float = 0.0
    idle: float | None = None
    wanted: bool = False
    healthy: bool = False
    back: bool = False
    draining: bool = False
    calling: bool = False
    called: bool = False
    due: bool = True


class Step(msgspec.Struct, frozen=True):
    """An action on a cluster. ``begin``: make sure that no workload uses it, store its nodes and enter Suspending;
    ``enter``: only store ``phase``; the other actions are calls of the provider."""

    action: Action
    phase: Phase

    def deadline(self, elapsed: float, settings: Settings) -> float:
        """Return the seconds after which the step counts as failed. A call that wakes a cluster fails at the latest
        when the agent must be back. ``elapsed``: seconds in the present phase."""
        left = settings.wake_seconds - elapsed if self.action in ("resume", "create") else _DEADLINES[self.action]
        return min(max(left, 1.0), _DEADLINES[self.action])


def next_step(state: State, settings: Settings) -> Step | None:
    """Return the next step of a cluster, or None. The ``phase`` of a call is the phase after its success."""
    if state.calling or state.draining:
        return None
    idle = -1.0 if state.wanted or state.idle is None else state.idle
    used = idle < 0
    match state.phase:
        case "Active":
            if settings.enabled and state.healthy and state.due and not used and idle >= settings.idle_seconds:
                return Step("begin", "Suspending")
        case "Suspending":
            if used or not settings.enabled:
                return Step("enter", "Waking")
            if state.due:
                return Step("delete" if state.deleted else "suspend", "Suspended")
        case "Suspended":
            if state.back:
                return Step("enter", "Active")
            if used:
                return Step("enter", "Waking")
        case "Waking":
            if state.back and state.called:
                return Step("enter", "Active")
            if state.elapsed >= settings.wake_seconds:
                return Step("enter", "Failed")
            if not state.called and state.due:
                return Step("create" if state.deleted else "resume", "Waking")
        case "Failed":
            if state.back:
                return Step("enter", "Active")
            if state.elapsed >= settings.retry_seconds:
                return Step("enter", "Suspended")
    return None


def may_copy(copies: Sequence[tuple[Phase, float]], settings: Settings) -> bool:
    """Return True if a further copy of a cluster may be made. ``copies``: phase of each present copy, and its seconds
    in this phase. No copy is made while groups may still choose another one that is being made."""
    making = any(phase == "Waking" or (phase == "Suspended" and elapsed < SETTLE) for phase, elapsed in copies)
    return settings.create and not making and len(copies) < settings.most_created


def clone(group: Group, policy: Policy, clusters: Mapping[str, Cluster],
          empty: Mapping[str, tuple[Node, ...]]) -> tuple[str, str] | None:
    """Return the cluster to copy and the name of the copy for a group that fits into no cluster, or None. The copy
    satisfies the policy, and has room for the group.

    ``empty``: the nodes of accessible clusters that a provider can copy, as if no pod ran on them. No copy is made if
    an accessible cluster that the policy selects is autoscaled, nor for spread objects, whose shares adapt to clusters.
    """
    accessible = [cluster for cluster in clusters.values() if cluster.ready and not cluster.draining]
    if policy.spread is not None or any(cluster.autoscaled and selects_cluster(policy, cluster.labels)
                                        for cluster in accessible):
        return None
    missing = sorted({name for key, names in (policy.clusters.equal if policy.clusters else ()) if key == NAME_LABEL
                      for name in names if name not in clusters and CLUSTER_NAME.fullmatch(name)})
    digest = hashlib.sha256(group.key.encode()).hexdigest()[:8]
    for cluster in accessible:
        if cluster.name not in empty or not _has_kinds(cluster, group):
            continue
        for name in (*missing, f"{cluster.name[:_NAME_LIMIT].rstrip('-.')}-{digest}"):
            if name not in clusters and selects_cluster(policy, labels_of_copy(cluster.labels, name)) and _fits(
                    group, msgspec.structs.replace(cluster, nodes=empty[cluster.name])):
                return cluster.name, name
    return None


def labels_of_copy(labels: Mapping[str, str], name: str) -> dict[str, str]:
    """Return the labels of a copy of a cluster with these labels."""
    return {**labels, NAME_LABEL: name, f"{CLUSTER_LABELS}novacreated": "true"}


def _has_kinds(cluster: Cluster, group: Group) -> bool:
    return cluster.kinds is None or cluster.kinds >= {
        kind_name(item.ref.group, item.ref.kind) for item in group.items}


def _fits(group: Group, cluster: Cluster) -> bool:
    claims = Claims()
    claims.report(cluster, lambda _group: False)
    return claims.fits(cluster.name, group.key, [(item, item.replicas) for item in group.items]).ok


def _flag(environment: Mapping[str, str], name: str) -> bool:
    value = environment.get(name, "").lower()
    if value not in (*_TRUE, *_FALSE):
        raise Invalid(f"{name}: {value[:80]!r} is neither true nor false.")
    return value in _TRUE


def _number(environment: Mapping[str, str], name: str, default: int) -> int:
    value = environment.get(name) or str(default)
    if not value.isdecimal() or len(value) > 9:
        raise Invalid(f"{name}: {value[:80]!r} is not a whole number.")
    return int(value)
