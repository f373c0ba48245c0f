"""Inputs and results of scheduling decisions. All quantities are integers in thousandths (cpu 1 = 1000, memory 1Ki =
1,024,000), so that sums are exact."""

import sys
from collections.abc import Mapping
from typing import Any, Literal, Self

import msgspec

Quantities = Mapping[str, int]  # resource name -> thousandths
Failover = Literal["Fenced", "AvailabilityFirst", "Never"]


def api_version(group: str, version: str) -> str:
    """Return the apiVersion of objects of a group, which is empty for core kinds."""
    return f"{group}/{version}" if group else version


def kind_name(group: str, kind: str) -> str:
    """Return the name of a kind in all versions of its group, such as Deployment.apps."""
    return f"{kind}.{group}" if group else kind


class Ref(msgspec.Struct, frozen=True, order=True):
    """An object of the control plane. ``group`` is empty for core kinds, ``namespace`` for cluster-scoped objects."""

    group: str
    version: str
    kind: str
    namespace: str
    name: str

    @property
    def api_version(self) -> str:
        return api_version(self.group, self.version)

    @property
    def key(self) -> str:
        """Return the identity of the object in all versions of its group, such as Deployment.apps/shop/web."""
        return sys.intern(f"{kind_name(self.group, self.kind)}/{self.namespace}/{self.name}")

    @classmethod
    def shared(cls, group: str, version: str, kind: str, namespace: str, name: str) -> Self:
        """Return a Ref for a cache: its texts share memory with those of the other Refs of an object."""
        return cls(*map(sys.intern, (group, version, kind, namespace, name)))


class Taint(msgspec.Struct, frozen=True):
    key: str
    value: str
    effect: str


class Node(msgspec.Struct, frozen=True):
    """A schedulable, ready node. ``available``: allocatable minus the requests of its pods; "pods" is a resource."""

    name: str
    available: Quantities
    labels: Mapping[str, str] = {}
    taints: tuple[Taint, ...] = ()


class Cluster(msgspec.Struct, frozen=True):
    """A cluster with its report. ``reachable``: its agent renews its Lease. ``ready``: new work may be placed there."""

    name: str
    labels: Mapping[str, str]
    ready: bool
    reachable: bool
    standby: bool = False  # stopped, or being stopped or started: a workload that is placed here waits for it
    problem: str = ""  # why a cluster in standby cannot be woken now
    draining: bool = False  # being deleted: all groups move to other clusters
    autoscaled: bool = False
    nodes: tuple[Node, ...] = ()
    sequence: int = 0  # number of the report; claims that the report includes are not counted again
    kinds: frozenset[str] | None = None  # "Kind.group" that its API server has; None: unknown, accept all


class PodNeeds(msgspec.Struct, frozen=True):
    """Requirements of one pod. ``node_affinity``: requiredDuringScheduling terms in the form of the Kubernetes API."""

    requests: Quantities
    tolerations: tuple[Mapping[str, Any], ...] = ()
    node_selector: Mapping[str, str] = {}
    node_affinity: tuple[Mapping[str, Any], ...] = ()
    every_node: bool = False  # a DaemonSet: capacity is not checked


class Item(msgspec.Struct, frozen=True):
    """An object to place. ``replicas``: None if the object cannot be divided. ``pod``: None if it runs no pods."""

    ref: Ref
    labels: Mapping[str, str] = {}
    replicas: int | None = None
    pod: PodNeeds | None = None
    completions: int | None = None  # number of pods of a Job or Pod
    break_first: bool = False  # never run in two clusters at a time, not even during a move
    stop_time: int = 0  # seconds that its pods may take to end
    finished: bool = False  # a Job or Pod that has ended: it never runs again


class Group(msgspec.Struct, frozen=True):
    """Objects that are placed together. ``key``: unique, stable. One object without groupBy is a group of its own."""

    key: str
    items: tuple[Item, ...]
    policy: str = ""


class Selector(msgspec.Struct, frozen=True):
    """A compiled LabelSelector; see selectors.py."""

    equal: tuple[tuple[str, frozenset[str]], ...] = ()  # In, matchLabels
    unequal: tuple[tuple[str, frozenset[str]], ...] = ()  # NotIn
    present: frozenset[str] = frozenset()  # Exists
    absent: frozenset[str] = frozenset()  # DoesNotExist


class Override(msgspec.Struct, frozen=True):
    """A change of one field of an object's copies in the clusters of a topology value."""

    topology_value: str
    kind: str
    api_version: str
    name: str
    namespace: str
    path: tuple[str | int, ...]
    value: Any


class Spread(msgspec.Struct, frozen=True):
    """Copies in several clusters, which are put into buckets by the value of their label ``topology_key``."""

    topology_key: str
    duplicate: bool = False
    percentages: Mapping[str, int] | None = None  # topology value -> % of copies; None: evenly
    overrides: tuple[Override, ...] = ()


class Policy(msgspec.Struct, frozen=True):
    """A SchedulePolicy, parsed. ``ordered``: selectors by priority (fill and spill), or None."""

    name: str
    created: str
    uid: str
    namespaces: Selector | None  # None: all
    labels: tuple[Selector, ...]  # ORed
    kinds: frozenset[tuple[str, str]] | None  # (kind, group); None: all
    clusters: Selector | None  # None: all
    ordered: tuple[Selector, ...] | None = None
    group_by: str = ""
    spread: Spread | None = None
    failover: Failover = "Never"
    fence_after: int = 60  # seconds


class Rejection(msgspec.Struct, frozen=True):
    """A cluster that was not chosen. ``wait_for``: the change of the cluster after which it is checked again:
    "capacity", "labels", "ready" or "kind"; "" if only a change of the object or the policy helps. ``message``: the
    first failed check with its numbers, and what would change its result."""

    cluster: str
    check: str
    message: str
    wait_for: str = ""


class Decision(msgspec.Struct, frozen=True):
    """The desired placement of a group: cluster -> key of item -> replicas (None: the whole object).

    Items with a share of 0 replicas are left out. ``placed``: False if no cluster meets the policy; the targets are
    then the present ones, or none. ``warnings``: for events. ``wakes``: placements in clusters in standby, which Nova
    wakes. Until these clusters are ready, the targets remove nothing from any cluster, and ``placed`` is False.
    """

    targets: Mapping[str, Mapping[str, int | None]]
    rejections: tuple[Rejection, ...] = ()
    placed: bool = True
    warnings: tuple[str, ...] = ()
    wakes: Mapping[str, Mapping[str, int | None]] = {}
