"""State of a control plane: its components, custom resources, clusters, policies and schedule groups."""

import asyncio
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from nova.federator.api.names import CLUSTER_GROUP, MATCHING_POLICY, POLICY_GROUP, TARGET, VERSION
from nova.federator.api.objects import conditions_of, holds
from nova.federator.client.manifests import COMPONENTS, shortfall
from nova.federator.kube.client import Api, ApiError

Mark = Literal["", "√", "‼", "×"]
_CLUSTER_ADVICE = ("please connect at least one Cluster, otherwise Nova does not have a target cluster to run your"
                   " workloads. Connecting clusters can be done by running novactl install agent <cluster-name> in"
                   " correct Kube context.")
_POLICY_ADVICE = ("please create at least one SchedulePolicy, otherwise Nova does not know where to run your"
                  " workloads. SchedulePolicy spec: https://docs.elotl.co/nova/intro")
_RESOURCES = (("Cluster", f"clusters.{CLUSTER_GROUP}"), ("SchedulePolicy", f"schedulepolicies.{POLICY_GROUP}"),
              ("ScheduleGroup", f"schedulegroups.{POLICY_GROUP}"))
_ORDER = ("API Server", "Kube-controller-manager", "ETCD", "Nova scheduler")
_WIDTHS = (18, 38, 38)  # minimum widths of the columns of a table


class Line(msgspec.Struct, frozen=True):
    """A line of a status report. ``mark``: √ for good, ‼ for a warning, × for broken."""

    text: str
    mark: Mark = ""

    def __str__(self) -> str:
        return f"{self.text} {self.mark}" if self.mark else self.text


async def components(hosting: Api, namespace: str) -> list[Line]:
    """Return the state of the components in the hosting cluster. Raises ApiError if the cluster is unreachable."""
    prefix = f"/apis/apps/v1/namespaces/{namespace}"
    workloads = await asyncio.gather(*(hosting.find(f"{prefix}/{plural}/{name}") for plural, name, _ in COMPONENTS))
    by_title = {title: _component(title, f"{plural[:-1]} {name} does not exist in namespace {namespace}", workload)
                for (plural, name, title), workload in zip(COMPONENTS, workloads, strict=True)}
    lines = [Line("Checking status of Nova Control Plane Components"), *(by_title[title] for title in _ORDER)]
    healthy = all(line.mark != "×" for line in lines)
    return [*lines, Line("Nova Control Plane is healthy", "√") if healthy else Line(
        "Nova Control Plane is not healthy", "×")]


def local_components(running: Mapping[str, bool]) -> list[Line]:
    """Return the state of the components that run on this machine. ``running``: title -> True if it runs."""
    lines = [Line("Checking status of Nova Control Plane Components")]
    lines += [Line(f"* {title} status... Running", "√") if running[title] else Line(
        f"* {title} status... Not running", "×") for title in _ORDER]
    return [*lines, Line("Nova Control Plane is healthy", "√") if all(running.values()) else Line(
        "Nova Control Plane is not healthy", "×")]


async def resources(nova: Api) -> list[Line]:
    """Return the state of the custom resource definitions, the clusters and the policies."""
    lines = [Line("Checking presence of Nova Custom Resource Definitions")]
    installed = True
    try:
        for kind, name in _RESOURCES:
            path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}"
            present = holds((await nova.find(path) or {}).get("status"), "Established")
            installed = installed and present
            lines.append(Line(f"* {kind} CRD presence... {'installed' if present else 'not installed'}",
                              "√" if present else "×"))
            if present and kind == "Cluster":
                lines += _clusters((await nova.list(f"/apis/{CLUSTER_GROUP}/{VERSION}/clusters"))["items"])
            if present and kind == "SchedulePolicy":
                page = await nova.get(f"/apis/{POLICY_GROUP}/{VERSION}/schedulepolicies", limit="1")
                if not page.get("items"):
                    lines += [Line("* 0 SchedulePolicies defined", "‼"), Line(_POLICY_ADVICE)]
    except ApiError as error:
        return [*lines, Line(f"* Nova API server is not usable: {error.message}", "×")]
    return [*lines, Line("All Nova Custom Resource Definitions installed", "√") if installed else Line(
        "Nova Custom Resource Definitions are missing: kubectl create -f install/base/control-plane/nova_crds.yaml",
        "×")]


async def schedule_groups(nova: Api) -> str:
    """Return a table of the schedule groups, their clusters and their policies."""
    rows = []
    for group in (await nova.list(f"/apis/{POLICY_GROUP}/{VERSION}/schedulegroups"))["items"]:
        labels = group["metadata"].get("labels") or {}
        policy = (group.get("policy") or {}).get("name") or labels.get(MATCHING_POLICY) or ""
        rows.append((group["metadata"]["name"], labels.get(TARGET) or "Not assigned yet.", policy))
    header = ("NAME", "NOVA WORKLOAD CLUSTER", "NOVA POLICY NAME")
    widths = [max(least, *(len(row[column]) for row in (header, *rows))) for column, least in enumerate(_WIDTHS)]
    rule = _row(tuple("-" * width for width in widths), widths)
    body = [text for row in rows for text in ("", _row(row, widths))]
    return "\n".join([_row(header, widths), rule, *body, rule])


def _row(cells: tuple[str, ...], widths: list[int]) -> str:
    return "  " + "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()


def _component(title: str, missing: str, workload: Mapping[str, Any] | None) -> Line:
    """Return the line of a component. It is a warning, not an error, if some of the component's replicas are ready."""
    if workload is None:
        return Line(f"* {title} status... {missing}", "×")
    ready = (workload.get("status") or {}).get("readyReplicas", 0)
    reason = shortfall(workload)
    if not ready:
        return Line(f"* {title} status... Not running: {reason or 'it is scaled to 0 replicas'}", "×")
    return Line(f"* {title} status... Running: {reason}", "‼") if reason else Line(
        f"* {title} status... Running", "√")


def _clusters(clusters: list[dict[str, Any]]) -> list[Line]:
    if not clusters:
        return [Line("0 workload clusters connected", "‼"), Line(_CLUSTER_ADVICE)]
    return [_cluster(cluster) for cluster in sorted(clusters, key=lambda cluster: str(cluster["metadata"]["name"]))]


def _cluster(cluster: Mapping[str, Any]) -> Line:
    name = f"* Cluster {cluster['metadata']['name']}"
    if cluster["metadata"].get("deletionTimestamp"):
        return Line(f"{name} is being drained and removed", "‼")
    conditions = conditions_of(cluster.get("status"))
    ready, standby = conditions.get("Ready", {}), conditions.get("Standby", {})
    if ready.get("reason") == "Failed":
        return Line(f"{name} not ready: {standby.get('message')}", "×")
    if standby.get("status") == "True":
        return Line(f"{name} in standby", "‼")
    if ready.get("reason") == "Waking":
        return Line(f"{name} is being woken from standby", "‼")
    if ready.get("status") == "True":
        return Line(f"{name} connected and ready", "√")
    reason = ready.get("message") or ready.get("reason") or "its agent has not reported yet"
    return Line(f"{name} not ready: {reason}", "×")
