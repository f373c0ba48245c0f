"""The report of an agent on its cluster: version, kinds, and the free resources of each node."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Set
from typing import Any

import msgspec

from nova.common.errors import Invalid
from nova.federator.api import objects, quantity
from nova.federator.api.names import cluster_namespace
from nova.federator.api.types import kind_name
from nova.federator.clusters.copies import Copies
from nova.federator.clusters.observe import Copy
from nova.federator.kube.client import Api, ApiError, Object
from nova.federator.kube.informer import Informer
from nova.federator.store import reports
from nova.federator.store.reports import ClusterReport, NodeReport

LOG = logging.getLogger(__name__)
_INTERVAL = 10.0  # shortest time between two reports, in seconds
_CHANGE = 0.01  # fraction of a node's capacity; smaller changes of its free resources cause no new report
_DETAILS_INTERVAL = 60.0  # seconds between two requests for version, kinds and autoscalers of the cluster
_UNSCHEDULED = 1000  # missing schedules that a report names; further ones are left out
_RUNNING = "status.phase!=Succeeded,status.phase!=Failed,spec.nodeName!="  # pods that use resources of a node
_PROVIDERS = {"gce": "gce", "aws": "aws", "azure": "azure", "openstack": "openstack", "kind": "kind"}
_AUTOSCALERS = ("cluster-autoscaler", "luna-manager")  # a cluster with a Deployment of such a name is autoscaled


class _Pod(msgspec.Struct, frozen=True):
    """A pod that uses resources. ``owners``: the objects whose pods include this one."""

    node: str
    requests: dict[str, int]
    owners: tuple[tuple[str, str, str], ...]  # namespace, kind, name


class _Details(msgspec.Struct, frozen=True):
    """Properties of a cluster that rarely change."""

    version: str
    kinds: list[str]
    autoscaled: bool


class Reporter:
    """Adds up the requests of pods per node, and writes a report when relevant values have changed (see _differs).

    ``applied``: returns the applied generations of schedules. A generation is reported once all of its pods run on
    nodes, so that the figures of the nodes include them. ``unscheduled``: returns the names of missing schedules, which
    have copies but do not exist; a name is reported after two successive checks have found it.
    """

    def __init__(self, nova: Api, member: Api, cluster: str, epoch: int, applied: Callable[[], Mapping[str, int]],
                 unscheduled: Callable[[], Set[str]], copies: Copies) -> None:
        self.nova, self.member, self.cluster, self.epoch = nova, member, cluster, epoch
        self.applied, self.unscheduled, self.copies = applied, unscheduled, copies
        self._missing: Set[str] = frozenset()  # missing schedules of the previous check
        copies.kinds_changed = self._kinds_changed
        self.nodes: Informer[Object] = Informer(member, "/api/v1/nodes", _node_of, self._changed)
        self.pods: Informer[_Pod] = Informer(member, "/api/v1/pods", _pod_of, self._pod_changed, fieldSelector=_RUNNING)
        self.sequence = 0
        self._used: dict[str, dict[str, int]] = {}  # node -> resource -> thousandths
        self._running: dict[tuple[str, str, str], int] = {}  # owner -> number of its pods on nodes
        self._included: dict[str, int] = {}  # schedule -> generation all of whose pods run on nodes
        self._wake = asyncio.Event()
        self._due = 0.0  # monotonic time of the next inspection of the cluster
        self._last: ClusterReport | None = None
        self._details = _Details("", [], False)

    def _changed(self, _key: str, _new: Any, _old: Any) -> None:
        self._wake.set()

    def _pod_changed(self, _key: str, new: _Pod | None, old: _Pod | None) -> None:
        if new == old:
            return
        for pod, sign in ((old, -1), (new, 1)):
            if pod is None:
                continue
            used = self._used.setdefault(pod.node, {})
            for resource, amount in pod.requests.items():
                used[resource] = used.get(resource, 0) + sign * amount
            if not any(used.values()):
                del self._used[pod.node]
            for owner in pod.owners:
                self._running[owner] = self._running.get(owner, 0) + sign
                if not self._running[owner]:
                    del self._running[owner]
        self._wake.set()

    def _kinds_changed(self) -> None:
        self._due = 0.0
        self._wake.set()

    async def run(self) -> None:
        """Write reports until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.nodes.run())
            tasks.create_task(self.pods.run())
            await self.nodes.synced.wait()
            await self.pods.synced.wait()
            while True:
                self._wake.clear()
                try:
                    if time.monotonic() >= self._due:
                        self._due = time.monotonic() + _DETAILS_INTERVAL
                        self._details = await self._inspect()
                    await self._write()
                except ApiError as error:
                    LOG.warning("Cannot write the ClusterReport of cluster %s, retrying: %s", self.cluster, error)
                await asyncio.sleep(_INTERVAL)
                try:
                    async with asyncio.timeout(_INTERVAL if self._last is None else _DETAILS_INTERVAL):
                        await self._wake.wait()
                except TimeoutError:
                    pass

    async def _write(self) -> None:
        report = self._report()
        if self._last is not None and not _differs(self._last, report):
            return
        namespace = cluster_namespace(self.cluster)
        body = reports.render(namespace, msgspec.structs.replace(report, sequence=self.sequence + 1))
        self.sequence += 1
        try:
            current = await self.nova.get(reports.path_of(namespace))
            body["metadata"]["resourceVersion"] = current["metadata"]["resourceVersion"]
            await self.nova.replace(reports.path_of(namespace), body)
        except ApiError as error:
            if not error.missing:
                raise
            await self.nova.create(reports.path_of(namespace, ""), body)
        self._last = report

    def _report(self) -> ClusterReport:
        """Return the present report. The applied generations and the figures of the nodes are of the same moment."""
        details = self._details
        nodes = sorted(self.nodes.objects.values(), key=lambda node: str(node["metadata"]["name"]))
        labels = nodes[0]["metadata"].get("labels") or {} if nodes else {}
        provider = str((nodes[0].get("spec") or {}).get("providerID") or "").partition(":")[0] if nodes else ""
        applied = self.applied()
        for name in self._included.keys() - applied.keys():
            del self._included[name]
        for name, generation in applied.items():
            if self._included.get(name) != generation and all(map(self._runs, self.copies.of(name).values())):
                self._included[name] = generation
        previous, self._missing = self._missing, self.unscheduled()
        if self._missing != previous:
            self._wake.set()  # check again soon
        return ClusterReport(
            epoch=self.epoch, version=details.version, clusterName=self.cluster.removeprefix("kind-"),
            provider=_PROVIDERS.get(provider, provider), region=labels.get("topology.kubernetes.io/region", ""),
            zone=labels.get("topology.kubernetes.io/zone", ""), autoscaled=details.autoscaled,
            nodes=[self._node(node) for node in nodes], kinds=details.kinds, applied=dict(self._included),
            unscheduled=sorted(previous & self._missing)[:_UNSCHEDULED])

    def _runs(self, copy: Copy) -> bool:
        """Return True if all pods of a copy run on nodes."""
        owner = (copy.ref.namespace, copy.ref.kind, copy.ref.name)
        return bool(copy.fenced) or (copy.settled and self._running.get(owner, 0) >= copy.pods)

    def _node(self, node: Object) -> NodeReport:
        metadata, spec, status = node["metadata"], node.get("spec") or {}, node.get("status") or {}
        used, available = self._used.get(metadata["name"], {}), {}
        for resource, value in (status.get("allocatable") or {}).items():
            try:
                available[resource] = _text(max(0, quantity.parse(value) - used.get(resource, 0)))
            except Invalid:
                continue
        ready = objects.holds(status, "Ready")
        taints = [{key: str(taint[key]) for key in ("key", "value", "effect") if key in taint}
                  for taint in spec.get("taints") or ()]
        return NodeReport(metadata["name"], available, {key: str(value) for key, value in (
            status.get("capacity") or {}).items()}, metadata.get("labels") or {}, taints,
            ready and not spec.get("unschedulable"))

    async def _inspect(self) -> _Details:
        """Return version, kinds and autoscalers of the cluster."""
        versions = {kind.version for kind in objects.KINDS} | {"v2"}
        groups = {kind.group for kind in objects.KINDS}
        page = await self.member.get("/apis")
        served = ["v1"] + [str(version["groupVersion"]) for group in page.get("groups") or () if group["name"] in groups
                           for version in group["versions"] if version["version"] in versions]
        present = {(version.rpartition("/")[0], kind) for version in served
                   for kind in await self.member.discover(version)}
        kinds = {(kind.group, kind.kind) for kind in objects.KINDS} & present
        kinds |= {(item.group, item.kind) for item in self.copies.definitions.objects.values() if item.established}
        return _Details(str((await self.member.get("/version")).get("gitVersion") or ""),
                        sorted(kind_name(group, kind) for group, kind in kinds), await self._autoscaled())

    async def _autoscaled(self) -> bool:
        page = await self.member.list("/apis/apps/v1/namespaces/kube-system/deployments")
        names = [str(item["metadata"]["name"]) for item in page["items"]]
        for name in _AUTOSCALERS:
            page = await self.member.list("/apis/apps/v1/deployments", fieldSelector=f"metadata.name={name}")
            names += [name for _item in page["items"]]
        return any(part in name for name in names for part in _AUTOSCALERS)


def _node_of(obj: Object) -> Object:
    """Return the part of a node that a report contains."""
    status = obj.get("status") or {}
    return {"metadata": {key: obj["metadata"].get(key) for key in ("name", "labels")}, "spec": obj.get("spec") or {},
            "status": {key: status.get(key) for key in ("allocatable", "capacity", "conditions")}}


def _pod_of(obj: Object) -> _Pod | None:
    """Return the node and the requests of a pod that uses resources, or None."""
    metadata, spec, status = obj["metadata"], obj.get("spec") or {}, obj.get("status") or {}
    if not spec.get("nodeName") or status.get("phase") in ("Succeeded", "Failed"):
        return None
    try:
        item = objects.item_of({"apiVersion": "v1", "kind": "Pod", **obj})
    except Invalid:
        return None
    namespace, owners = str(metadata.get("namespace")), []
    for owner in metadata.get("ownerReferences") or ():
        if owner.get("controller") and "deletionTimestamp" not in metadata:
            kind, name = str(owner.get("kind")), str(owner.get("name"))
            owners.append((namespace, kind, name))
            if kind == "ReplicaSet":  # its name is the name of its Deployment, a hyphen and a hash
                owners.append((namespace, "Deployment", name.rpartition("-")[0]))
    return _Pod(str(spec["nodeName"]), dict(item.pod.requests) if item.pod else {}, tuple(owners))


def _text(thousandths: int) -> str:
    return str(thousandths // 1000) if thousandths % 1000 == 0 else f"{thousandths}m"


def _differs(old: ClusterReport, new: ClusterReport) -> bool:
    """Return True if a new report must be written: with other nodes, labels, taints or kinds, newly applied or missing
    schedules, or with free resources that changed by more than _CHANGE."""
    if any(getattr(old, field) != getattr(new, field) for field in (
            "version", "autoscaled", "kinds", "applied", "provider", "region", "zone", "unscheduled")):
        return True
    if len(old.nodes) != len(new.nodes):
        return True
    for before, after in zip(old.nodes, new.nodes, strict=True):
        if (before.name, before.labels, before.taints, before.schedulable, before.capacity.keys()) != (
                after.name, after.labels, after.taints, after.schedulable, after.capacity.keys()):
            return True
        for resource, value in after.available.items():
            whole = quantity.parse(after.capacity.get(resource, "0"))
            if abs(quantity.parse(value) - quantity.parse(before.available.get(resource, "0"))) > whole * _CHANGE:
                return True
    return False
