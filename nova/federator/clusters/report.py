"""The report of an agent on its cluster: version, kinds, and what is free on each node."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from nova.common.errors import Invalid
from nova.federator.api import objects, quantity
from nova.federator.api.names import cluster_namespace
from nova.federator.kube.client import Api, ApiError, Object
from nova.federator.kube.informer import Informer
from nova.federator.store import reports
from nova.federator.store.reports import ClusterReport, NodeReport

LOG = logging.getLogger(__name__)
_INTERVAL = 10.0  # seconds between two reports
_CHANGE = 0.01  # part of a resource of a node that must have changed for a new report
_KINDS_INTERVAL = 60.0  # seconds between two lists of the kinds of the cluster
_PROVIDERS = {"gce": "gce", "aws": "aws", "azure": "azure", "openstack": "openstack", "kind": "kind"}
_AUTOSCALERS = ("cluster-autoscaler", "luna-manager")  # names of Deployments


class Reporter:
    """Counts the requests of pods per node, and writes a report when something relevant changed."""

    def __init__(self, nova: Api, member: Api, cluster: str, epoch: int,
                 applied: Callable[[], Mapping[str, int]]) -> None:
        self.nova, self.member, self.cluster, self.epoch, self.applied = nova, member, cluster, epoch, applied
        self.nodes: Informer[Object] = Informer(member, "/api/v1/nodes", lambda obj: obj, self._changed)
        self.pods: Informer[tuple[str, dict[str, int]]] = Informer(member, "/api/v1/pods", _pod, self._pod_changed)
        self.sequence = 0
        self._used: dict[str, dict[str, int]] = {}  # node -> resource -> thousandths
        self._wake = asyncio.Event()
        self._last: ClusterReport | None = None
        self._kinds: tuple[list[str], float] = ([], -_KINDS_INTERVAL)

    def _changed(self, _key: str, _new: Any, _old: Any) -> None:
        self._wake.set()

    def _pod_changed(self, _key: str, new: tuple[str, dict[str, int]] | None,
                     old: tuple[str, dict[str, int]] | None) -> None:
        for pod, sign in ((old, -1), (new, 1)):
            if pod is not None:
                used = self._used.setdefault(pod[0], {})
                for resource, amount in pod[1].items():
                    used[resource] = used.get(resource, 0) + sign * amount
        self._wake.set()

    async def run(self) -> None:
        """Report until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.nodes.run())
            tasks.create_task(self.pods.run())
            await self.nodes.synced.wait()
            await self.pods.synced.wait()
            while True:
                self._wake.clear()
                try:
                    await self._write()
                except ApiError as error:
                    LOG.warning("The report on the cluster was not written and is tried again: %s", error)
                await asyncio.sleep(_INTERVAL)
                try:
                    async with asyncio.timeout(_KINDS_INTERVAL):
                        await self._wake.wait()
                except TimeoutError:
                    pass

    async def _write(self) -> None:
        report = await self._report()
        if self._last is not None and not _differs(self._last, report):
            return
        namespace = cluster_namespace(self.cluster)
        self.sequence += 1
        body = reports.render(namespace, ClusterReport(**{
            **{field: getattr(report, field) for field in report.__struct_fields__}, "sequence": self.sequence}))
        try:
            current = await self.nova.get(reports.path_of(namespace))
            body["metadata"]["resourceVersion"] = current["metadata"]["resourceVersion"]
            await self.nova.replace(reports.path_of(namespace), body)
        except ApiError as error:
            if not error.missing:
                raise
            await self.nova.create(reports.path_of(namespace, ""), body)
        self._last = report

    async def _report(self) -> ClusterReport:
        applied = dict(self.applied())  # before the figures: they include at least these
        version = (await self.member.get("/version")).get("gitVersion") if self._last is None else self._last.version
        if time.monotonic() - self._kinds[1] > _KINDS_INTERVAL:
            self._kinds = await self._served(), time.monotonic()
        nodes = sorted(self.nodes.objects.values(), key=lambda node: str(node["metadata"]["name"]))
        labels = nodes[0]["metadata"].get("labels") or {} if nodes else {}
        provider = str((nodes[0].get("spec") or {}).get("providerID") or "").partition(":")[0] if nodes else ""
        autoscaled = await self._autoscaled() if self._last is None or self._wake.is_set() else self._last.autoscaled
        return ClusterReport(
            epoch=self.epoch, version=str(version or ""), clusterName=self.cluster.removeprefix("kind-"),
            provider=_PROVIDERS.get(provider, provider), region=labels.get("topology.kubernetes.io/region", ""),
            zone=labels.get("topology.kubernetes.io/zone", ""), autoscaled=autoscaled,
            nodes=[self._node(node) for node in nodes], kinds=self._kinds[0], applied=applied)

    def _node(self, node: Object) -> NodeReport:
        metadata, spec, status = node["metadata"], node.get("spec") or {}, node.get("status") or {}
        used, available = self._used.get(metadata["name"], {}), {}
        for resource, value in (status.get("allocatable") or {}).items():
            try:
                available[resource] = _text(max(0, quantity.parse(value) - used.get(resource, 0)))
            except Invalid:
                continue
        ready = any(entry.get("type") == "Ready" and entry.get("status") == "True"
                    for entry in status.get("conditions") or ())
        taints = [{key: str(taint[key]) for key in ("key", "value", "effect") if key in taint}
                  for taint in spec.get("taints") or ()]
        return NodeReport(metadata["name"], available, {key: str(value) for key, value in (
            status.get("capacity") or {}).items()}, metadata.get("labels") or {}, taints,
            ready and not spec.get("unschedulable"))

    async def _served(self) -> list[str]:
        """Return the kinds of objects that the cluster can have."""
        kinds = set()
        for kind in objects.KINDS:
            api_version = f"{kind.group}/{kind.version}" if kind.group else kind.version
            if kind.kind in await self.member.discover(api_version):
                kinds.add(f"{kind.kind}.{kind.group}" if kind.group else kind.kind)
        definitions = await self.member.list("/apis/apiextensions.k8s.io/v1/customresourcedefinitions")
        for definition in definitions["items"]:
            spec = definition["spec"]
            kinds.add(f"{spec['names']['kind']}.{spec['group']}")
        return sorted(kinds)

    async def _autoscaled(self) -> bool:
        page = await self.member.list("/apis/apps/v1/deployments", fieldSelector="metadata.namespace=kube-system")
        return any(name in item["metadata"]["name"] for item in page["items"] for name in _AUTOSCALERS)


def _pod(obj: Object) -> tuple[str, dict[str, int]] | None:
    """Return the node and the requests of a pod that uses resources, or None."""
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    if not spec.get("nodeName") or status.get("phase") in ("Succeeded", "Failed"):
        return None
    try:
        item = objects.item_of({"apiVersion": "v1", "kind": "Pod", **obj})
    except Invalid:
        return None
    return (str(spec["nodeName"]), dict(item.pod.requests)) if item.pod else None


def _text(thousandths: int) -> str:
    return str(thousandths // 1000) if thousandths % 1000 == 0 else f"{thousandths}m"


def _differs(old: ClusterReport, new: ClusterReport) -> bool:
    """Return True if a report has relevant news: other nodes, labels, taints or kinds, newly applied schedules, or a
    change of a resource by more than _CHANGE."""
    if (old.version, old.autoscaled, old.kinds, old.applied) != (new.version, new.autoscaled, new.kinds, new.applied):
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
