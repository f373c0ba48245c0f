"""Builders of clusters, groups and policies for tests of scheduling."""

from __future__ import annotations

from typing import Any

from nova.federator.api.names import NAME_LABEL
from nova.federator.api.selectors import compile_selector
from nova.federator.api.types import Cluster, Group, Item, Node, PodNeeds, Policy, Ref, Spread, Taint
from nova.federator.scheduling.capacity import Claims


def node(name: str = "n", cpu: int = 8000, pods: int = 110, labels: dict[str, str] | None = None,
         taints: tuple[Taint, ...] = ()) -> Node:
    """Return a node with ``cpu`` thousandths free."""
    return Node(name, {"cpu": cpu, "memory": 32 * 1024**3 * 1000, "pods": pods * 1000}, labels or {}, taints)


def cluster(name: str, *nodes: Node, ready: bool = True, reachable: bool = True, autoscaled: bool = False,
            **labels: str) -> Cluster:
    return Cluster(name, {NAME_LABEL: name, **labels}, ready, reachable, autoscaled=autoscaled,
                   nodes=nodes or (node(),))


def item(name: str, replicas: int | None = 1, cpu: int = 100, kind: str = "Deployment", **fields: Any) -> Item:
    """Return a workload whose pods request ``cpu`` thousandths."""
    needs = PodNeeds({"cpu": cpu, "pods": 1000}, **{key: fields.pop(key) for key in list(fields) if key in (
        "tolerations", "node_selector", "node_affinity", "every_node")})
    return Item(Ref("apps", "v1", kind, "shop", name), {"app": name}, replicas, needs, **fields)


def group(*items: Item, key: str = "group") -> Group:
    return Group(key, items or (item("web"),), "policy")


def policy(clusters: Any = None, spread: Spread | None = None, ordered: list[str] | None = None,
           **fields: Any) -> Policy:
    """Return a policy. ``clusters``: a LabelSelector; ``ordered``: names of clusters by priority."""
    return Policy(
        name="policy", created="2026", uid="u", namespaces=None, labels=(), kinds=None, spread=spread,
        clusters=None if clusters is None else compile_selector(clusters, "clusterSelector"),
        ordered=None if ordered is None else tuple(
            compile_selector({"matchLabels": {NAME_LABEL: name}}, "ordered") for name in ordered), **fields)


def claims(*clusters: Cluster) -> Claims:
    result = Claims()
    for entry in clusters:
        result.report(entry, lambda _group: False)
    return result
