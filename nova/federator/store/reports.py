"""ClusterReports: an agent's report on its cluster. The scheduler copies it into the Cluster object."""

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from nova.federator.api import quantity
from nova.federator.api.names import REPORT, SCHEDULE_GROUP, VERSION

API_VERSION = f"{SCHEDULE_GROUP}/{VERSION}"
REPORTS = f"/apis/{API_VERSION}/clusterreports"
_NODES = 10_000  # maximum number of nodes of a report
_Size = Annotated[int, msgspec.Meta(ge=0)]
_TEXT = 253  # maximum length of a version, in characters


class NodeReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """A node of a workload cluster. Quantities are texts, as in Kubernetes. ``schedulable``: ready, uncordoned."""

    name: str
    available: dict[str, str] = {}
    capacity: dict[str, str] = {}
    labels: dict[str, str] = {}
    taints: list[dict[str, str]] = []
    schedulable: bool = True


class _NodeGroup(msgspec.Struct, forbid_unknown_fields=True):
    """A node group, as Cluster objects accept it."""

    instanceType: str = ""
    nodeGroupType: str = ""
    accelType: str = ""
    accelCount: str = ""
    minSize: _Size = 0
    maxSize: _Size = 0
    desiredCapacity: _Size = 0


class ClusterReport(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A report. ``sequence``: increases with each report of an epoch. ``applied``: name of a schedule -> generation
    whose pods the figures of the nodes include. ``kinds``: "Kind.group" that the cluster serves. ``unscheduled``: names
    of schedules that do not exist, but have copies: the control plane was restored from an older backup."""

    epoch: int = 0
    sequence: int = 0
    version: str = ""  # as the server reports it, such as v1.25.4
    clusterName: str = ""  # at its provider
    provider: str = ""
    region: str = ""
    zone: str = ""
    autoscaled: bool = False
    nodes: list[NodeReport] = []
    kinds: list[str] = []
    applied: dict[str, int] = {}
    nodeGroups: dict[str, dict[str, Any]] = {}
    unscheduled: list[str] = []


def path_of(namespace: str, name: str = REPORT) -> str:
    return f"/apis/{API_VERSION}/namespaces/{namespace}/clusterreports{f'/{name}' if name else ''}"


def render(namespace: str, report: ClusterReport, name: str = REPORT) -> dict[str, Any]:
    """Return the object that the agent stores. Before a cluster enters standby, the scheduler stores a copy."""
    return {"apiVersion": API_VERSION, "kind": "ClusterReport", "metadata": {"name": name, "namespace": namespace},
            "report": msgspec.to_builtins(report)}


def decode(obj: Mapping[str, Any]) -> ClusterReport:
    """Return a stored report. Agents are less trusted: sizes are bounded. Raises msgspec.ValidationError, Invalid."""
    report = msgspec.convert(obj.get("report") or {}, ClusterReport)
    if len(report.nodes) > _NODES or len(report.version) > _TEXT:
        raise msgspec.ValidationError(f"more than {_NODES} nodes, or a version of more than {_TEXT} characters")
    for node in report.nodes:
        for value in (*node.available.values(), *node.capacity.values()):
            quantity.parse(value)
        if not all(taint.get("key") and taint.get("effect") for taint in node.taints):
            raise msgspec.ValidationError(f"node {node.name[:80]} has a taint without key or effect")
    msgspec.convert(report.nodeGroups, dict[str, _NodeGroup])
    return report
