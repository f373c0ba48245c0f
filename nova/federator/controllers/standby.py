"""Standby: stops idle clusters, wakes clusters for which groups wait, and copies a cluster if no cluster has room.

Each phase is stored in the Cluster before the provider is called, and calls are repeatable: after a failure, or when
another scheduler leads, the call of the stored phase is made again.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Literal

import msgspec

from nova.common.errors import Invalid, ReportedError
from nova.federator.api import times
from nova.federator.api.names import CLUSTER_GROUP, STANDBY, STANDBY_REPORT, VERSION, cluster_namespace
from nova.federator.api.objects import conditions_of
from nova.federator.api.provider import NodeGroups, Provider, ProviderError, Target
from nova.federator.api.types import Ref
from nova.federator.controllers.clusters import UNREACHABLE_AFTER, Clusters, record_of
from nova.federator.controllers.events import Recorder
from nova.federator.controllers.joining import CLUSTERS, cluster_body, prepare, prepare_namespace
from nova.federator.controllers.placement import Placer
from nova.federator.controllers.providers import Providers
from nova.federator.kube.client import Api, ApiError, Object
from nova.federator.scheduling.standby import (
    SETTLE,
    Phase,
    Record,
    Settings,
    State,
    Step,
    clone,
    labels_of_copy,
    may_copy,
    next_step,
)
from nova.federator.store import reports, schedules

LOG = logging.getLogger(__name__)
_CHECK = 1.0  # seconds between two checks of all clusters
_FIRST_DELAY, _LONGEST_DELAY = 2.0, 300.0  # seconds before a failed call is repeated
_RECONSIDER = 30.0  # seconds between two attempts to copy a cluster for the same group
_LEAVING = 2 * UNREACHABLE_AFTER  # seconds after a stop; an agent that renews its Lease later was started again
# Reason and message of the event of a phase.
_EVENTS: dict[Phase, tuple[str, str]] = {
    "Suspending": ("EnteringStandby", "The cluster is idle, and is being stopped."),
    "Suspended": ("Standby", "The cluster is in standby."),
    "Waking": ("LeavingStandby", "A workload needs the cluster: it is being started."),
    "Active": ("StandbyEnded", "The agent of the cluster reports again."),
    "Failed": ("WakeFailed", "No heartbeat within NOVA_WAKE_TIMEOUT_SECS: no workload is placed here for ten minutes.")}


class _Memory(msgspec.Struct):
    """State of a cluster in this process; times are monotonic. ``began``: start of the phase; ``idle``: start of the
    idle time, None if workloads use the cluster; ``called``: time at which the call of this phase succeeded."""

    record: tuple[str, str] | None = None  # phase, since
    began: float = 0.0
    idle: float | None = None
    called: float | None = None
    failures: int = 0
    retry_at: float = 0.0
    task: asyncio.Task[None] | None = None


class Standby:
    """Carries out the steps of all clusters. ``join``: returns a kubeconfig with which the agent of a new cluster
    joins. ``leads``: returns False if another scheduler may decide."""

    def __init__(self, api: Api, clusters: Clusters, placer: Placer, recorder: Recorder, providers: Providers,
                 settings: Settings, join: Callable[[str], Awaitable[str]]) -> None:
        self.api, self.clusters, self.placer, self.recorder = api, clusters, placer, recorder
        self.providers, self.settings, self.join = providers, settings, join
        self.leads: Callable[[], bool] = lambda: True
        self._memory: dict[str, _Memory] = {}
        self._unmet: dict[str, float] = {}  # group that fits nowhere -> time at which a copy for it is considered
        self._copying: asyncio.Task[None] | None = None

    @property
    def failing(self) -> int:
        """Return the number of clusters whose last step failed."""
        return sum(memory.failures > 0 for memory in self._memory.values())

    async def run(self) -> None:
        """Check all clusters each second until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                names = self.clusters.names() if self.settings.enabled else list(self.clusters.records)
                for name in self._memory.keys() - set(names):
                    if (task := self._memory.pop(name).task) is not None:
                        task.cancel()
                for name in names:
                    if step := next_step(self._state(name), self.settings):
                        self._memory[name].task = tasks.create_task(self._carry_out(name, step))
                if self.settings.create and (self._copying is None or self._copying.done()):
                    self._copying = tasks.create_task(self._copy())
                await asyncio.sleep(_CHECK)

    def _state(self, name: str) -> State:
        now, record = time.monotonic(), self.clusters.records.get(name)
        memory = self._memory.get(name)
        stored = (record.phase, record.since) if record else None
        if memory is None or memory.record != stored:
            first, task = memory is None, memory.task if memory else None
            memory = self._memory[name] = _Memory(stored, now - times.seconds_since(record.since) if record else now,
                                                  task=task)
            memory.idle = now - self._idle_before(name) if first else now
        wanted = bool(self.placer.wanted.get(name))
        if wanted or self.clusters.busy(name):
            memory.idle = None
        elif memory.idle is None:
            memory.idle = now
        obj = self.clusters.objects.objects[name]
        return State(
            phase=record.phase if record else "Active", deleted=bool(record and record.deleted),
            elapsed=now - memory.began, idle=None if memory.idle is None else now - memory.idle, wanted=wanted,
            healthy=self._answers(name) and self._provider(name) is not None, back=self._back(name, memory),
            draining="deletionTimestamp" in obj["metadata"], calling=memory.task is not None and not memory.task.done(),
            called=memory.called is not None, due=now >= memory.retry_at)

    def _idle_before(self, name: str) -> float:
        """Return the seconds for which a cluster was idle before this process observed it."""
        idle = conditions_of(self.clusters.objects.objects[name].get("status")).get("Idle", {})
        return times.seconds_since(str(idle.get("lastTransitionTime"))) if idle.get("status") == "True" else 0.0

    def _answers(self, name: str) -> bool:
        """Return True if the agent of a cluster renews its Lease, and has reported since it started."""
        report = self.clusters.reports.get(cluster_namespace(name))
        return (report is not None and report.epoch == self.clusters.epoch(name)
                and time.monotonic() - self.clusters.observed(name) < UNREACHABLE_AFTER)

    def _back(self, name: str, memory: _Memory) -> bool:
        """Return True if the agent works again after the cluster was stopped: it has renewed its Lease later than an
        agent that is being stopped would, or it is a new agent, and a node is schedulable."""
        record, namespace = self.clusters.records.get(name), cluster_namespace(name)
        if record is None or not self._answers(name) or (namespace in self.clusters.copies and not any(
                node.schedulable for node in self.clusters.reports[namespace].nodes)):
            return False
        renewed = self.clusters.observed(name)
        if record.phase == "Waking":
            return memory.called is not None and (renewed > memory.called or self.clusters.epoch(name) > record.epoch)
        return renewed > memory.began + (_LEAVING if record.phase == "Suspended" else 0.0)

    def _provider(self, name: str) -> Provider | None:
        report = self.clusters.report(name)
        return self.providers.of(report.provider) if report else None

    def _used(self, name: str) -> bool:
        return bool(self.placer.wanted.get(name)) or self.clusters.busy(name) or self.placer.uses(name)

    async def _carry_out(self, name: str, step: Step) -> None:
        memory = self._memory[name]
        deadline = step.deadline(time.monotonic() - memory.began, self.settings)
        try:
            async with asyncio.timeout(deadline):
                if step.action == "enter":
                    await self._enter(name, step.phase)
                elif step.action == "begin":
                    await self._begin(name)
                else:
                    await self._call(name, step, memory)
            memory.failures = 0
        except Exception as error:  # an error of a provider must not stop the scheduler
            if not isinstance(error, (ReportedError, TimeoutError)):
                LOG.exception("Cluster %s: unexpected error in step %s, retrying", name, step.action)
            message = str(error) or f"{step.action} did not end within {deadline:.0f} s"
            memory.failures += 1
            memory.retry_at = time.monotonic() + min(_FIRST_DELAY * 2 ** min(memory.failures - 1, 20), _LONGEST_DELAY)
            if not (isinstance(error, ApiError) and (error.conflict or error.missing)):
                LOG.warning("Cluster %s: step %s failed, retrying: %s", name, step.action, message)
                self._emit(name, "StandbyFailed", f"{step.action} failed and is repeated: {message}", "Warning")
                await self._note(name, message)

    async def _note(self, name: str, problem: str) -> None:
        """Store the message of a failed call. If this fails, the next failure of the call stores its message."""
        record = self.clusters.records.get(name)
        if record and record.problem != problem[:1000] and self.leads():
            try:
                await self.clusters.store_record(name, msgspec.structs.replace(record, problem=problem[:1000]))
            except ApiError as error:
                LOG.debug("Cluster %s: cannot store the error message: %s", name, error)

    async def _begin(self, name: str) -> None:
        """Enter Suspending if certainly no workload uses the cluster: this process makes all decisions, and it reads
        the schedules that a former leader has stored from the API server."""
        self.clusters.hold(name, True)  # from now on, placements wait until the cluster is woken
        try:
            if not self._used(name):
                namespace, report = cluster_namespace(name), self.clusters.reports[cluster_namespace(name)]
                provider = self._provider(name)
                groups = dict(await provider.describe(self._target(name))) if provider else {}
                await self._store_copy(name, report, groups)
                page = await self.api.list(schedules.path_of(namespace))
                if not any(schedules.decode(item).consumes for item in page["items"]) and not self._used(name):
                    await self._enter(name, "Suspending")
                    return
            self._memory[name].idle = None  # in use: the idle time of the cluster restarts
        finally:
            self.clusters.hold(name, False)

    async def _store_copy(self, name: str, report: reports.ClusterReport, groups: NodeGroups) -> None:
        """Store a copy of a report, which decisions and the Cluster object use while the cluster is in standby."""
        namespace = cluster_namespace(name)
        body = reports.render(namespace, msgspec.structs.replace(
            report, nodeGroups={key: dict(group) for key, group in groups.items()}, applied={}), STANDBY_REPORT)
        try:
            reports.decode(body)
        except (msgspec.ValidationError, Invalid) as error:
            raise ProviderError(f"the provider described invalid node groups: {error}") from None
        path = reports.path_of(namespace, STANDBY_REPORT)
        if not await self.api.ensure(reports.path_of(namespace, ""), body):
            metadata = (await self.api.get(path))["metadata"]
            await self.api.replace(path, {**body, "metadata": metadata})

    async def _enter(self, name: str, phase: Phase) -> None:
        old = self.clusters.records.get(name)
        record = None
        if phase == "Suspending":
            record = Record("Suspending", times.now(), self.settings.delete, epoch=self.clusters.epoch(name))
        elif old and phase != "Active":
            record = msgspec.structs.replace(old, phase=phase, since=times.now(), epoch=self.clusters.epoch(name),
                                             problem=old.problem if phase == "Failed" else "")
        self._require_lead()
        await self.clusters.store_record(name, record)
        LOG.info("Cluster %s changed its phase of standby from %s to %s", name, old.phase if old else "Active", phase)
        self._emit(name, *_EVENTS[phase], "Warning" if phase == "Failed" else "Normal")

    def _require_lead(self) -> None:
        if not self.leads():
            raise ApiError("another scheduler may lead", 409)

    async def _call(self, name: str, step: Step, memory: _Memory) -> None:
        provider, target = self._provider(name), self._target(name)
        if provider is None:
            raise ProviderError(f"no provider is configured for clusters of {target.provider or 'unknown kind'}")
        self._require_lead()
        match step.action:
            case "suspend":
                await provider.suspend(target)
            case "delete":
                await provider.delete(target)
            case "resume":
                await provider.resume(target)
            case "create":
                await provider.create(msgspec.structs.replace(target, kubeconfig=await self.join(name)))
        if step.phase == "Suspended":
            await self._enter(name, "Suspended")
        else:
            memory.called = time.monotonic()
            await self._note(name, "")

    def _target(self, name: str) -> Target:
        report, record = self.clusters.report(name), self.clusters.records.get(name)
        if report is None:
            raise ProviderError("the cluster has not reported yet")
        return Target(name=name, provider=report.provider, kubernetescluster=report.clusterName, region=report.region,
                      zone=report.zone, version=report.version, node_groups=report.nodeGroups,
                      template=record.template if record else "")

    def _emit(self, name: str, reason: str, message: str, kind: Literal["Normal", "Warning"]) -> None:
        if obj := self.clusters.objects.objects.get(name):
            ref = Ref(CLUSTER_GROUP, VERSION, "Cluster", "", name)
            self.recorder.emit(ref, obj["metadata"]["uid"], reason, message, kind)

    async def _copy(self) -> None:
        """Create a Cluster in standby, as a copy of another one, for a group that fits into no cluster; the group then
        wakes it. Only one copy is created at a time, because other groups may fit into it, too."""
        now = time.monotonic()
        self._unmet = {key: self._unmet.get(key, now + SETTLE) for key in self.placer.unplaced}
        due = sorted((at, key) for key, at in self._unmet.items() if at <= now)
        if not due or not self._may_copy(self.clusters.objects.objects.values()):
            return
        clusters = self.clusters.snapshot()
        empty = {name: self.clusters.empty_nodes(name) for name, cluster in clusters.items()
                 if cluster.ready and self._provider(name)}
        for _at, key in due:
            self._unmet[key] = now + _RECONSIDER
            await asyncio.sleep(0)  # many groups may wait, and each takes time
            try:
                policy = self.placer.catalog.policy_of(key)
                if policy is None or not (chosen := clone(self.placer.catalog.group(key), policy, clusters, empty)):
                    continue
                if not self._may_copy((await self.api.list(CLUSTERS))["items"]):
                    return  # wait: the watch has not reported another copy yet
                self._require_lead()
                await self._create(*chosen, clusters[chosen[0]].labels)
                LOG.info("Cluster %s will be created as a copy of %s for group %s", chosen[1], chosen[0], key)
                return
            except Exception as error:  # a failed copy must not stop the scheduler
                LOG.warning("Cannot create a copy of a cluster for group %s, retrying: %s", key, error,
                            exc_info=not isinstance(error, ReportedError))
                await asyncio.sleep(_FIRST_DELAY)

    def _may_copy(self, clusters: Iterable[Object]) -> bool:
        """Return True if a further copy of a cluster may be made in addition to the present clusters."""
        records = [record_of(obj) for obj in clusters if (obj.get("spec") or {}).get("novacreated")]
        return may_copy([(record.phase, times.seconds_since(record.since)) if record else ("Active", 0.0)
                         for record in records], self.settings)

    async def _create(self, template: str, name: str, labels: Mapping[str, str]) -> None:
        """Create the namespace and the report of a copy, then its Cluster. An interrupted creation is repeated."""
        report = self.clusters.reports[cluster_namespace(template)]
        nodes = [msgspec.structs.replace(node, available=node.capacity) for node in report.nodes]
        await prepare_namespace(self.api, name)
        await self._store_copy(name, msgspec.structs.replace(
            report, epoch=0, sequence=0, clusterName=name, nodes=nodes), {})  # an agent must not set group sizes
        body = cluster_body(name)
        record = Record("Suspended", times.now(), deleted=True, template=template)
        body["metadata"] |= {"labels": labels_of_copy(labels, name),
                             "annotations": {STANDBY: msgspec.json.encode(record).decode()}}
        body["spec"]["novacreated"] = True
        await self.api.ensure(CLUSTERS, body)
        await prepare(self.api, name)
