"""Clusters: liveness by Leases, the reports of agents, and the Cluster objects that users see."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from nova.common.errors import Invalid
from nova.federator.api import quantity, times
from nova.federator.api.names import (
    CLUSTER_LABELS,
    DRAIN_FINALIZER,
    HEARTBEAT,
    NAME_LABEL,
    ORPHAN,
    REPORT,
    STANDBY,
    STANDBY_REPORT,
    WAITING,
    cluster_namespace,
)
from nova.federator.api.objects import conditions_of
from nova.federator.api.types import Cluster, Node, Taint
from nova.federator.controllers.joining import CLUSTERS
from nova.federator.kube.client import Api, ApiError, Object
from nova.federator.kube.informer import Informer
from nova.federator.scheduling.standby import Record
from nova.federator.store import reports
from nova.federator.store.reports import ClusterReport

LOG = logging.getLogger(__name__)
UNREACHABLE_AFTER = 40.0  # seconds without a renewal of the Lease
SETTLED_AFTER = 60.0  # seconds for which a cluster must be reachable again before groups return to it
_CHECK = 2.0  # seconds between two checks of the Leases
_HEARTBEAT_WRITES = 300.0  # seconds after which an unchanged status is written again, with its heartbeat times
# Messages of the condition Standby, by phase.
_PHASES = {"Suspending": "The cluster is being stopped, because it is idle.",
           "Suspended": "The cluster is in standby, and is woken for the next workload.",
           "Waking": "The cluster is being woken from standby.",
           "Failed": "The cluster was not woken from standby within NOVA_WAKE_TIMEOUT_SECS."}
# Called with the name of a cluster and the change: "ready", "labels", "capacity", "kind", "draining" or "removed".
Listener = Callable[[str, str], None]


class _Lease(msgspec.Struct):
    """The heartbeat of an agent. ``seen``: monotonic time at which this process received the newest renewal.
    ``observed``: the same time, but -inf for a renewal in the first list, which may be old."""

    renewed: str
    epoch: int
    seen: float
    observed: float = float("-inf")


class Clusters:
    """The state of all clusters, by name."""

    def __init__(self, api: Api, listener: Listener) -> None:
        self.api, self.listener = api, listener
        self.leases: dict[str, _Lease] = {}  # namespace -> heartbeat
        self.reports: dict[str, ClusterReport] = {}  # namespace -> report
        self._nodes: dict[str, tuple[Node, ...]] = {}  # namespace/name of a report -> nodes of the report
        self.copies: dict[str, ClusterReport] = {}  # namespace -> report before the cluster entered standby
        self.records: dict[str, Record] = {}  # cluster that is not active -> its phase
        self._entering: set[str] = set()  # clusters that may be suspended: nothing new is placed there
        self._started = time.monotonic()
        self._reachable: dict[str, bool] = {}  # cluster -> last state that listeners received
        self._returned: dict[str, float] = {}  # cluster -> time at which it became reachable again
        self._busy: dict[str, int] = {}  # cluster -> number of its schedules that consume resources
        self._written: dict[str, tuple[bytes, float]] = {}  # cluster -> status and time of its last write
        self._dirty: set[str] = set()
        self._snapshot: dict[str, Cluster] = {}  # by name, in order
        self._stale: set[str] = set()  # clusters whose entry in the snapshot is outdated
        self._wake = asyncio.Event()
        self.objects = Informer(api, CLUSTERS, lambda obj: obj, self._cluster_changed)
        self._leases = Informer(api, "/apis/coordination.k8s.io/v1/leases", _lease_of, self._renewed,
                                fieldSelector=f"metadata.name={HEARTBEAT}")
        self._reports = Informer(api, reports.REPORTS, reports.decode, self._reported)
        self.informers: dict[str, Informer[Any]] = {
            "clusters": self.objects, "heartbeats": self._leases, "cluster reports": self._reports}

    def names(self) -> list[str]:
        return sorted(self.objects.objects)

    def cluster(self, name: str) -> Cluster | None:
        """Return a cluster for a scheduling decision, or None if it does not exist."""
        return self.snapshot().get(name)

    def _make(self, name: str) -> Cluster | None:
        obj = self.objects.objects.get(name)
        if obj is None:
            return None
        namespace, record = cluster_namespace(name), self.records.get(name)
        report = self.report(name)
        reachable = self.reachable(name)
        standby = record is not None or name in self._entering
        copied = record is not None and namespace in self.copies
        return Cluster(
            name=name, labels={**(obj["metadata"].get("labels") or {}), NAME_LABEL: name},
            ready=reachable and report is not None and not standby, reachable=reachable, standby=standby,
            problem=record.problem or "its agent did not report" if record and record.phase == "Failed" else "",
            draining="deletionTimestamp" in obj["metadata"], autoscaled=report.autoscaled if report else False,
            nodes=self._nodes.get(f"{namespace}/{STANDBY_REPORT if copied else REPORT}", ()),
            sequence=report.sequence if report else 0,
            kinds=frozenset(report.kinds) if report and report.kinds else None)

    def snapshot(self) -> Mapping[str, Cluster]:
        """Return all clusters by name, sorted. Only the entries of changed clusters are computed again."""
        while self._stale:
            name = self._stale.pop()
            if (cluster := self._make(name)) is None:
                self._snapshot.pop(name, None)
            elif name in self._snapshot:
                self._snapshot[name] = cluster
            else:
                self._snapshot = dict(sorted({**self._snapshot, name: cluster}.items()))
        return self._snapshot

    def report(self, name: str) -> ClusterReport | None:
        """Return the report of a cluster; for a cluster that is not active, its report before it entered standby."""
        namespace = cluster_namespace(name)
        copy = self.copies.get(namespace) if name in self.records else None
        return copy or self.reports.get(namespace)

    def unscheduled(self, name: str) -> list[str]:
        """Return the names of schedules that have copies in a cluster, but did not exist at its last report."""
        report = self.reports.get(cluster_namespace(name))
        return report.unscheduled if report else []

    def empty_nodes(self, name: str) -> tuple[Node, ...]:
        """Return the nodes of a cluster as if no pod ran there."""
        report = self.report(name)
        return tuple(node for entry in (report.nodes if report else ()) if (
            node := _node(msgspec.structs.replace(entry, available=entry.capacity))) is not None)

    def observed(self, name: str) -> float:
        """Return the monotonic time at which this process observed the last renewal; -inf if there was none."""
        lease = self.leases.get(cluster_namespace(name))
        return lease.observed if lease else float("-inf")

    def epoch(self, name: str) -> int:
        """Return the epoch of the newest agent of a cluster that has renewed the Lease, or 0."""
        lease = self.leases.get(cluster_namespace(name))
        return lease.epoch if lease else 0

    def busy(self, name: str) -> bool:
        """Return True if schedules of a cluster consume resources."""
        return bool(self._busy.get(name))

    def hold(self, name: str, held: bool) -> None:
        """Treat a cluster as in standby before its phase is stored; with ``held`` False, end this."""
        (self._entering.add if held else self._entering.discard)(name)
        self._stale.add(name)
        if not held and name not in self.records:
            self.listener(name, "ready")

    async def store_record(self, name: str, record: Record | None) -> None:
        """Store the phase of a cluster (None: active). Raises ApiError, also if the stored phase changed meanwhile."""
        current = await self.api.get(f"{CLUSTERS}/{name}")
        if record_of(current) != self.records.get(name):
            raise ApiError(f"the phase of cluster {name} has changed", 409)
        text = None if record is None else msgspec.json.encode(record).decode()
        new = await self.api.patch(f"{CLUSTERS}/{name}", {"metadata": {
            "resourceVersion": current["metadata"]["resourceVersion"], "annotations": {STANDBY: text}}})
        old = self.objects.objects.get(name)
        if self.objects.put(new):
            self._cluster_changed(name, new, old)

    def reachable(self, name: str) -> bool:
        """Return True if this process has observed a renewal of the Lease within the last UNREACHABLE_AFTER seconds."""
        lease = self.leases.get(cluster_namespace(name))
        return lease is not None and time.monotonic() - lease.seen < UNREACHABLE_AFTER

    def unsettled(self) -> set[str]:
        """Return the clusters that became reachable again only a short time ago: they may fail again."""
        now = time.monotonic()
        self._returned = {name: at for name, at in self._returned.items() if now - at < SETTLED_AFTER}
        return set(self._returned)

    def draining(self) -> list[str]:
        """Return the names of deleted clusters that still exist."""
        return [name for name, obj in self.objects.objects.items() if "deletionTimestamp" in obj["metadata"]]

    def orphan(self, name: str) -> bool:
        """Return True if the copies in a deleted cluster must stay."""
        annotations = self.objects.objects.get(name, {"metadata": {}})["metadata"].get("annotations") or {}
        return annotations.get(ORPHAN) == "true"

    async def finish(self, name: str) -> None:
        """Remove a drained cluster: its namespace, with the rights of its agent, and the Cluster object."""
        await self.api.remove(f"/api/v1/namespaces/{cluster_namespace(name)}")
        if (obj := self.objects.objects.get(name)) is None:
            return
        rest = [entry for entry in obj["metadata"].get("finalizers") or () if entry != DRAIN_FINALIZER]
        await self.api.patch(f"{CLUSTERS}/{name}", {"metadata": {"finalizers": rest or None}})
        LOG.info("Removed cluster %s: it is drained", name)

    def silent_for(self, name: str) -> float:
        """Return the seconds since the last renewal that this process observed."""
        lease = self.leases.get(cluster_namespace(name))
        return time.monotonic() - (self._started if lease is None else lease.seen)

    async def confirm_silence(self, name: str) -> bool:
        """Return True if the API server has no later renewal of a Lease than this process has observed: the watch may
        be late, or this process may have been suspended. Raises ApiError."""
        namespace = cluster_namespace(name)
        lease = await self.api.find(f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{HEARTBEAT}")
        if lease is None:
            return True
        fresh = _lease_of(lease)
        fresh.observed = fresh.seen
        stored = self.leases.get(namespace)
        if stored is not None and (stored.renewed, stored.epoch) == (fresh.renewed, fresh.epoch):
            return True
        self.leases[namespace] = fresh
        self._check(name)
        return False

    def assume_silent(self, name: str) -> None:
        """Treat a cluster as unreachable until its Lease is observed to be renewed."""
        if lease := self.leases.get(cluster_namespace(name)):
            lease.seen = float("-inf")
        self._check(name)

    def applied(self, name: str) -> Mapping[str, int]:
        """Return the generations of schedules whose pods the report of a cluster includes."""
        report = self.reports.get(cluster_namespace(name))
        return report.applied if report else {}

    def count_busy(self, name: str, change: int) -> None:
        """Add ``change`` to the number of schedules of a cluster that consume resources; at 0 the cluster is idle."""
        before = self._busy.get(name, 0)
        self._busy[name] = before + change
        if (before == 0) != (before + change == 0):
            self._mark(name)

    def _mark(self, name: str) -> None:
        self._dirty.add(name)
        self._wake.set()

    def _cluster_changed(self, key: str, new: Object | None, old: Object | None) -> None:
        self._stale.add(key)
        if new is None:
            self._written.pop(key, None)
            self.records.pop(key, None)
            self.listener(key, "removed")
            return
        record = record_of(new)
        if (previous := self.records.pop(key, None)) != record:
            self._mark(key)
        if record:
            self.records[key] = record
        if old is None or old["metadata"].get("labels") != new["metadata"].get("labels"):
            self.listener(key, "labels")
        if old is not None and (previous and previous.phase) != (record and record.phase):
            self.listener(key, "ready")
        if "deletionTimestamp" in new["metadata"] and (old is None or "deletionTimestamp" not in old["metadata"]):
            self.listener(key, "draining")
        if old is None or old.get("spec") != new.get("spec") or old["metadata"].get("labels") != new["metadata"].get(
                "labels"):
            self._mark(key)

    def _renewed(self, key: str, new: _Lease | None, old: _Lease | None) -> None:
        namespace = key.partition("/")[0]
        stored = self.leases.get(namespace)  # kept if the Lease is deleted: its agent may still run
        if new is not None and (stored is None or (stored.renewed, stored.epoch) != (new.renewed, new.epoch)):
            if stored is not None or self._leases.synced.is_set():
                new.observed = new.seen
            self.leases[namespace] = new
        if name := self.name_of(namespace):
            self._check(name)

    def _reported(self, key: str, new: ClusterReport | None, old: ClusterReport | None) -> None:
        namespace, _slash, part = key.partition("/")
        if part not in (REPORT, STANDBY_REPORT):
            return
        stored = self.reports if part == REPORT else self.copies
        if new is None:
            stored.pop(namespace, None)
            self._nodes.pop(key, None)
        else:
            stored[namespace] = new
            self._nodes[key] = tuple(node for report in new.nodes if (node := _node(report)) is not None)
        name = self.name_of(namespace)
        if name is None:
            return
        self._mark(name)
        self._stale.add(name)
        if (new is None) != (old is None):
            self.listener(name, "ready")
        elif new is not None and old is not None:
            if new.kinds != old.kinds:
                self.listener(name, "kind")
            self.listener(name, "capacity")

    def name_of(self, namespace: str) -> str | None:
        """Return the cluster of a namespace, or None if it has none."""
        plain = namespace.removeprefix("nova-cluster-")
        if plain in self.objects.objects:
            return plain
        return next((name for name in self.objects.objects if cluster_namespace(name) == namespace), None)

    def _check(self, name: str) -> None:
        reachable = self.reachable(name)
        if self._reachable.get(name) is not reachable:
            if reachable and name in self._reachable and name not in self.records:  # in standby: stopped, not lost
                self._returned[name] = time.monotonic()
            self._reachable[name] = reachable
            self._stale.add(name)
            LOG.info("Cluster %s is %s", name, "reachable" if reachable else "unreachable: no heartbeat")
            self._mark(name)
            self.listener(name, "ready")

    async def watch_leases(self) -> None:
        """Detect silent agents until cancelled."""
        while True:
            for name in list(self.objects.objects):
                self._check(name)
            await asyncio.sleep(_CHECK)

    async def run(self) -> None:
        """Write the status of Cluster objects until cancelled."""
        while True:
            for name, (_content, at) in self._written.items():
                if time.monotonic() - at > _HEARTBEAT_WRITES and self.reachable(name):
                    self._dirty.add(name)
            dirty, self._dirty = self._dirty, set()
            for name in dirty:
                try:
                    await self._write(name)
                except ApiError as error:
                    if not error.missing:
                        LOG.warning("Cannot write the status of cluster %s, retrying: %s", name, error)
                        self._dirty.add(name)
            self._wake.clear()
            try:
                async with asyncio.timeout(_CHECK):
                    await self._wake.wait()
                await asyncio.sleep(0.1)  # collect changes that arrive together
            except TimeoutError:
                pass

    async def _write(self, name: str) -> None:
        obj, report = self.objects.objects.get(name), self.report(name)
        if obj is None or report is None:
            return
        spec = {"name": name, "kubernetescluster": report.clusterName, "provider": report.provider,
                "kubernetesversion": ".".join(report.version.removeprefix("v").split(".")[:2]),
                "region": report.region, "zone": report.zone}
        novacreated = bool((obj.get("spec") or {}).get("novacreated"))
        labels = {NAME_LABEL: name, **{f"{CLUSTER_LABELS}{key}": _label(value) for key, value in (
            ("provider", report.provider), ("region", report.region), ("zone", report.zone),
            ("version", report.version), ("novacreated", "true" if novacreated else "false"))}}
        status = self._status(name, report, obj)
        content = msgspec.json.encode((spec, labels, _without_times(status)), order="sorted")
        written = self._written.get(name)
        if written and written[0] == content and time.monotonic() - written[1] < _HEARTBEAT_WRITES:
            return
        await self.api.patch(f"{CLUSTERS}/{name}", {"metadata": {"labels": labels}, "spec": spec, "status": status})
        self._written[name] = content, time.monotonic()

    def _status(self, name: str, report: ClusterReport, obj: Object) -> dict[str, Any]:
        now = times.now()
        previous = conditions_of(obj.get("status"))
        conditions = []
        for kind, state, reason, message in self._states(name):
            old = previous.get(kind) or {}
            changed = old.get("lastTransitionTime") if old.get("status") == state else None
            conditions.append({"type": kind, "status": state, "reason": reason, "message": message,
                               "lastHeartbeatTime": now, "lastTransitionTime": changed or now})
        return {"conditions": conditions, "lastUpdateTime": now, "autoscaled": report.autoscaled,
                "availableResources": _replaced(obj, "availableResources", {n.name: n.available for n in report.nodes}),
                "capacityResources": _replaced(obj, "capacityResources", {n.name: n.capacity for n in report.nodes}),
                "nodeTaints": _replaced(obj, "nodeTaints", {n.name: n.taints for n in report.nodes if n.taints}),
                "nodeGroupsConfigs": _replaced(obj, "nodeGroupsConfigs", report.nodeGroups)}

    def _states(self, name: str) -> list[tuple[str, str, str, str]]:
        """Return type, status, reason and message of the conditions of a cluster."""
        record, reachable = self.records.get(name), self.reachable(name)
        ready = ("Ready", "True", "AgentReporting", "The agent renews its Lease.")
        if not reachable:
            ready = ("Ready", "Unknown", "AgentSilent", f"The Lease was not renewed for {UNREACHABLE_AFTER:g} s.")
        idle = ("Idle", "True", "NoWorkload", "No workload that consumes resources runs here.")
        if self.busy(name) or (record and record.phase == "Waking"):
            idle = ("Idle", "False", "Workload", "Workloads run here, or wait for this cluster.")
        if record is None:
            return [ready, idle, ("Standby", "False", "Active", "The cluster is not in standby.")]
        stopped = record.phase in ("Suspending", "Suspended")
        if not stopped or time.monotonic() - self.observed(name) > UNREACHABLE_AFTER:
            ready = ("Ready", "False", "Standby" if stopped else record.phase, _PHASES[record.phase])
        problem = f" The last try failed, and is repeated: {record.problem}" if record.problem else ""
        reason = f"{record.phase}:Retrying" if problem and record.phase in ("Suspending", "Waking") else record.phase
        return [ready, idle, ("Standby", str(record.phase != "Waking"), reason,
                              f"{_PHASES[record.phase]}{problem}"[:2000])]


def record_of(obj: Object) -> Record | None:
    """Return the stored phase of a cluster, or None if it is active."""
    text = (obj["metadata"].get("annotations") or {}).get(STANDBY)
    try:
        record = msgspec.json.decode(text, type=Record) if text else None
    except msgspec.MsgspecError as error:
        LOG.warning("Cluster %s: ignoring the invalid annotation %s: %s", obj["metadata"].get("name"), STANDBY, error)
        return None
    return record if record and record.phase != "Active" else None


def _replaced(obj: Object, field: str, new: Mapping[str, Any]) -> dict[str, Any]:
    """Return a merge patch that makes a map of the status equal to ``new``: old keys are removed by null."""
    old = (obj.get("status") or {}).get(field) or {}
    return {**dict.fromkeys(old.keys() - new.keys()), **new}


def _without_times(status: Mapping[str, Any]) -> dict[str, Any]:
    conditions = [(entry["type"], entry["status"], entry["reason"], entry["message"]) for entry in status["conditions"]]
    return {**status, "conditions": conditions, "lastUpdateTime": ""}


def _label(value: str) -> str:
    """Return a text as a label value: invalid characters become hyphens."""
    plain = "".join(char if char.isascii() and (char.isalnum() or char in "-_.") else "-" for char in value[:63])
    return plain.strip("-_.")


def _lease_of(obj: Object) -> _Lease:
    spec = obj.get("spec") or {}
    epoch = spec.get("leaseTransitions")
    waiting = (obj["metadata"].get("annotations") or {}).get(WAITING, "")  # the note counts as a renewal
    return _Lease(f"{spec.get('renewTime')}/{waiting}", epoch if isinstance(epoch, int) else 0, time.monotonic())


def _node(report: reports.NodeReport) -> Node | None:
    """Return a node for scheduling, or None if it accepts no pods or its figures are invalid."""
    if not report.schedulable:
        return None
    try:
        available = {resource: quantity.parse(value) for resource, value in report.available.items()}
    except Invalid:
        return None
    taints = tuple(Taint(str(taint.get("key")), str(taint.get("value", "")), str(taint.get("effect")))
                   for taint in report.taints)
    return Node(report.name, available, report.labels, taints)
