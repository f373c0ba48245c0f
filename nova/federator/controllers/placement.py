"""Placement: makes the schedules of a group equal to the decision on it, one group at a time.

New shares are created first; old ones are removed once the new ones are ready (make before break), except for objects
that must never run twice. Everything is derived from the stored schedules, so a restarted scheduler continues.
"""

import asyncio
import logging
import time
from collections.abc import Collection, Mapping

from nova.federator.api import tracing
from nova.federator.api.keyed_queue import KeyedQueue
from nova.federator.api.names import cluster_namespace
from nova.federator.api.objects import consumes
from nova.federator.api.types import Decision, Group, Policy
from nova.federator.controllers.catalog import Catalog, template_of
from nova.federator.controllers.clusters import Clusters
from nova.federator.controllers.events import Recorder
from nova.federator.controllers.groups import ScheduleGroups, group_name
from nova.federator.controllers.returns import Returns
from nova.federator.controllers.schedule_writer import ScheduleWriter, Stored
from nova.federator.controllers.shares import grows, phases, retiring, shrinks
from nova.federator.kube.client import Api, ApiError
from nova.federator.scheduling.capacity import Claims
from nova.federator.scheduling.decide import decide
from nova.federator.store.schedules import STOP_MARGIN, Schedule, name_of

LOG = logging.getLogger(__name__)
_WORKERS = 16
_LONGEST_DELAY = 60.0  # longest delay before a group whose writes failed is tried again, in seconds
_READY_DEADLINE = 300.0  # seconds after which a share that is not ready moves to another cluster.
_PARTS = 4  # number of schedules (parts) per group and cluster that are searched for among the missing schedules
_INSPECTION = 300.0  # seconds between two searches for the groups of the same missing schedules
_AVOID = 600.0  # seconds for which a cluster where a group did not become ready is not chosen for it


class Placer:
    """Places the groups that were enqueued. A group is processed once, even if it was enqueued several times."""

    def __init__(self, api: Api, catalog: Catalog, clusters: Clusters, recorder: Recorder,
                 groups: ScheduleGroups) -> None:
        self.api, self.catalog, self.clusters, self.recorder, self.groups = api, catalog, clusters, recorder, groups
        self.claims = Claims()
        self.returns = Returns(clusters)
        self.schedules = Stored()
        self.writer = ScheduleWriter(api, catalog, clusters, recorder, self.schedules)
        self.unassigned: dict[str, dict[str, Schedule]] = {}  # namespace without Cluster object -> its schedules by key
        self.decisions: dict[str, Decision] = {}  # group -> last decision, for explain and for retries
        self.unplaced: set[str] = set()  # groups that run nowhere and that no cluster can take
        self.wanted: dict[str, set[str]] = {}  # cluster in standby -> groups that wait until it is awake
        self.waiting: dict[str, set[str]] = {}  # cause or "cluster/cause" -> groups that wait for it
        self._stopped: set[tuple[str, str]] = set()  # group, unreachable cluster in which its workloads have stopped
        self._handovers: dict[str, set[str]] = {}  # group -> groups that wait until it has schedules
        self._since: dict[tuple[str, str], float] = {}  # group, cluster -> when a share began to wait for readiness
        self._avoid: dict[tuple[str, str], float] = {}  # group, cluster -> time until which the cluster is avoided
        self._unscheduled: dict[str, set[str]] = {}  # cluster -> names of missing schedules, at the last inspection
        self._inspected = 0.0
        self._queue = KeyedQueue()
        self._failures: dict[str, int] = {}
        self.processed = self.failed = 0  # groups, for metrics
        self._cluster_of: dict[str, str] = {}  # namespace -> cluster

    @property
    def queue_length(self) -> int:
        return len(self._queue)

    def enqueue(self, group: str) -> None:
        self._queue.put(group)

    def cluster_changed(self, cluster: str, cause: str) -> None:
        """Take over a new report of a cluster, and enqueue the groups for which the change may matter."""
        state = self.clusters.cluster(cluster)
        if state is None:
            self.claims.forget(cluster)
        elif cause in ("capacity", "ready"):
            self.claims.report(state, lambda group: self._included(group, cluster))
        self.wake(cluster, cause)

    def wake(self, cluster: str, cause: str) -> None:
        """Enqueue the groups for which a change of a cluster may matter: groups that wait for this change and, unless
        the cause is "capacity", groups that run in the cluster."""
        for key in (f"{cluster}/{cause}", cause):
            for group in self.waiting.pop(key, ()):
                self.enqueue(group)
        if cause != "capacity":
            for group in self.schedules.clusters.get(cluster, ()):
                self.enqueue(group)

    def schedule_changed(self, key: str, new: Schedule | None, old: Schedule | None) -> None:
        """Record a stored schedule and its claims; handler of the informer of schedules."""
        current = new or old
        if current is None:
            return
        cluster = self._cluster(current.cluster_namespace)
        if cluster is None:  # the Cluster object is deleted already, or not listed yet
            unassigned = self.unassigned.setdefault(current.cluster_namespace, {})
            unassigned.pop(key, None)
            if new is not None:
                unassigned[key] = new
            elif not unassigned:
                del self.unassigned[current.cluster_namespace]
            return
        stored = self.schedules.get(current.group, {}).get(cluster, {}).get(current.part)
        written_here = new is not None and stored is not None and stored.version == new.version
        if new is not None:
            self.schedules.put(cluster, new)
        else:
            self.schedules.discard(cluster, current)
        if change := int(new is not None and new.consumes) - int(old is not None and old.consumes):
            self.clusters.count_busy(cluster, change)
        self._claim(current.group, cluster)
        if new is None:
            self.wake(cluster, "capacity")
        if written_here:
            return
        if new is None or old is None or new.ready != old.ready or new.generation != old.generation \
                or phases(new) != phases(old):
            self.enqueue(current.group)

    def _cluster(self, namespace: str) -> str | None:
        if namespace not in self._cluster_of:
            for name in self.clusters.names():
                self._cluster_of[cluster_namespace(name)] = name
        return self._cluster_of.get(namespace)

    def _claim(self, group: str, cluster: str) -> None:
        """Book the resources of the schedules of a group in a cluster. The report of the cluster includes the claim
        once the agent has applied this generation."""
        parts = self.schedules.get(group, {}).get(cluster, {})
        if not parts:
            self.claims.release(cluster, group)
            return
        shares = {entry.ref.key: entry.replicas for part in parts.values() for entry in part.entries}
        items = [(template.item, replicas) for key, replicas in shares.items()
                 if (template := self.catalog.templates.get(key)) is not None]
        self.claims.claim(cluster, group, items, self._included(group, cluster))

    def _included(self, group: str, cluster: str) -> bool:
        """Return True if the report of a cluster includes all pods of a group's schedules."""
        applied = self.clusters.applied(cluster)
        return all(applied.get(part.name, -1) >= part.generation
                   for part in self.schedules.get(group, {}).get(cluster, {}).values() if part.runs_pods)

    async def run(self) -> None:
        """Process enqueued groups until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch_deadlines())
            for _number in range(_WORKERS):
                tasks.create_task(self._work())

    async def _work(self) -> None:
        while True:
            group = await self._queue.get()
            try:
                with tracing.span("place", group=group):
                    await self._place(group)
                self.processed += 1
                self._failures.pop(group, None)
            except ApiError as error:
                self.failed += 1
                failures = self._failures[group] = self._failures.get(group, 0) + 1
                delay = min((0.05 if error.conflict else 0.5) * 2 ** min(failures, 12), _LONGEST_DELAY)
                LOG.log(logging.DEBUG if error.conflict else logging.WARNING,
                        "Cannot schedule group %s, retrying in %.1f s: %s", group, delay, error)
                asyncio.get_running_loop().call_later(delay, self.enqueue, group)
            except Exception:  # a group that cannot be processed must not stop the others
                LOG.exception("Unexpected error while scheduling group %s, retrying when it changes", group)
            finally:
                if self._queue.done(group):
                    self._queue.put(group)

    async def _watch_deadlines(self) -> None:
        """Enqueue groups with a schedule that missed its deadline, or whose avoided clusters may be used again."""
        while True:
            await asyncio.sleep(5.0)
            now = time.monotonic()
            await self._finish_drains()
            await self._discard_unscheduled()
            for group in self.returns.next():
                self.enqueue(group)
            stopped = {(group, cluster) for cluster, groups in self.schedules.clusters.items()
                       if not self.clusters.reachable(cluster) for group, parts in groups.items()
                       if self._released(cluster, parts)}
            for group, _cluster in stopped - self._stopped:
                self.enqueue(group)
            self._stopped = stopped
            for (group, cluster), since in list(self._since.items()):
                if now - since > _READY_DEADLINE:
                    del self._since[group, cluster]
                    self._avoid[group, cluster] = now + _AVOID
                    self._report_late(group, cluster)
                    self.enqueue(group)
            for key in [key for key, until in self._avoid.items() if now > until]:
                del self._avoid[key]
                self.enqueue(key[0])

    async def _discard_unscheduled(self) -> None:
        """Delete the copies that clusters have without a schedule, if their group has schedules in other clusters only:
        the backup from which the control plane was restored is older than a move. Copies of unknown objects stay."""
        reported = {cluster: set(self.clusters.unscheduled(cluster)) for cluster in self.clusters.names() if (
            self.clusters.reachable(cluster) and self.clusters.unscheduled(cluster))}
        now = time.monotonic()
        if not reported or (reported == self._unscheduled and now - self._inspected < _INSPECTION):
            return  # unchanged: do not compute the names of all groups again
        self._unscheduled, self._inspected = reported, now
        for group, placed in list(self.schedules.items()):
            for part in range(_PARTS):
                name = name_of(group, part)
                for cluster, names in reported.items():
                    if name in names and cluster not in placed:
                        try:
                            await self.writer.discard(cluster, group, part)
                        except ApiError as error:
                            LOG.warning("Cluster %s: cannot delete the copies of %s without a schedule: %s", cluster,
                                        group, error)

    async def _finish_drains(self) -> None:
        """Remove deleted clusters: immediately if their copies must stay, otherwise when no schedule is left. Schedules
        of an unreachable cluster are removed without its agent, after the time that :meth:`_patience` returns."""
        for name in self.clusters.draining():
            placed = [part for parts in self.schedules.clusters.get(name, {}).values() for part in parts.values()]
            orphan = self.clusters.orphan(name)  # read before the loop yields: the object may disappear
            silent = not self.clusters.reachable(name) and self.clusters.silent_for(name) > max(
                map(self._patience, placed), default=0)
            try:
                for part in placed:
                    if orphan or (silent and part.deleting):
                        await self.api.patch(part.path, {"metadata": {"finalizers": None, "uid": part.uid}})
                        await self.writer.delete(part)
                if not placed:
                    await self.clusters.finish(name)
            except ApiError as error:
                if not error.missing:
                    LOG.warning("Cannot delete cluster %s, retrying: %s", name, error)

    def _patience(self, part: Schedule) -> int:
        """Return the seconds of silence after which a schedule of a deleted cluster is removed without the agent. By
        then, workloads that are fenced now must have stopped, even if the agent has not received this policy."""
        policy = self.catalog.policy_of(part.group)
        fenced = "Fenced" in (part.failover, policy.failover if policy else "")
        return part.silence if fenced else part.fence_after + part.stop_time + STOP_MARGIN

    def _report_late(self, group: str, cluster: str) -> None:
        """Emit the event that a group is rescheduled because it did not become ready."""
        for part in self.schedules.get(group, {}).get(cluster, {}).values():
            for observed in part.report.objects:
                template = self.catalog.templates.get(observed.ref.key)
                if observed.phase != "Ready" and template is not None and self.catalog.belongs(observed.ref, group):
                    name = f"{observed.ref.kind.lower()} {observed.ref.namespace}/{observed.ref.name}"
                    self.recorder.emit(observed.ref, template.uid, "ReschedulingTriggered",
                                       f"{name} does not have minimum replicas available", "Warning")

    def _released(self, cluster: str, parts: Mapping[int, Schedule]) -> bool:
        """Return True if an unreachable cluster has stopped the workloads of fenced schedules by now: its agent scales
        them down after the fence time, and their pods have ended."""
        return bool(parts) and not self.clusters.reachable(cluster) and self.clusters.silent_for(cluster) > max(
            part.silence for part in parts.values())

    async def _end(self, policy: Policy, leaving: Mapping[str, Mapping[int, Schedule]]) -> bool:
        """Remove the shares of clusters, and return True if none of their workloads can run any more.

        An agent that returns renews its Lease, then reads its schedules, then acts. The reverse order here - first the
        schedules are deleted, then the Lease is read - leaves no gap in which both sides could run. Raises ApiError."""
        await self.writer.remove(leaving)
        for cluster, parts in leaving.items():
            if not self.clusters.reachable(cluster) and policy.failover == "AvailabilityFirst":
                continue
            if not self._released(cluster, parts) or not await self.clusters.confirm_silence(cluster):
                return False
        return True

    def decide(self, group: Group, policy: Policy, brief: bool = False) -> Decision:
        """Return the decision on a group, without acting on it. ``brief``: see :func:`decide`."""
        current = self.schedules.get(group.key, {})
        shares = {cluster: {entry.ref.key: entry.replicas for part in parts.values() for entry in part.entries}
                  for cluster, parts in current.items() if not retiring(parts)}
        avoided = {cluster for (avoiding, cluster) in self._avoid if avoiding == group.key}
        released = {cluster for cluster, parts in current.items() if self._released(cluster, parts)}
        held_back = self.returns.held_back(group.key) if policy.ordered is not None and current else ()
        return decide(group, policy, self.clusters.snapshot(), self.claims, shares, avoided, released,
                      held_back=held_back, brief=brief)

    def simulate(self, name: str) -> dict[str, dict[str, int | None]]:
        """Return the placement of a new decision on a group: key -> cluster -> replicas. Books its resources."""
        policy, result = self.catalog.policy_of(name), dict[str, dict[str, int | None]]()
        if policy is not None:
            group = self.catalog.group(name)
            decision = self.decide(group, policy)
            self._remember(group, policy, decision)
            for cluster, shares in (*decision.targets.items(), *decision.wakes.items()):
                for key, replicas in shares.items():
                    result.setdefault(key, {})[cluster] = replicas
        return result

    async def _confirmed(self, current: Mapping[str, Mapping[int, Schedule]]) -> bool:
        """Return True if the objects of schedules do not exist, or are not selected any more. Raises ApiError if an
        object exists that the catalog does not have yet, so that nothing is deleted because a watch is late."""
        refs = {entry.ref.key: entry.ref for parts in current.values() for part in parts.values()
                for entry in part.entries}
        for key, ref in refs.items():
            if key in self.catalog.templates:
                continue
            resource = await self.api.resource(ref.api_version, ref.kind)
            if resource is None:
                continue  # nothing to do: the kind was deleted with all its objects
            obj = await self.api.find(resource.path(ref.namespace, ref.name))
            if obj is not None and template_of(obj) is not None:
                raise ApiError(f"{key} exists, but has not been listed yet")
        return True

    async def _place(self, name: str) -> None:
        current = self.schedules.get(name, {})
        if not self._handed_over(name, current):
            return
        policy = self.catalog.policy_of(name)
        if policy is None:
            if current and await self._confirmed(current):
                await self._leave(name, current)
            await self.groups.remove(name)
            self._forget(name)
            return
        group = self.catalog.group(name)
        decision = self.decide(group, policy, brief=True)
        self._remember(group, policy, decision)
        settled = _settled(policy, decision, current)
        try:
            await self._execute(group, policy, decision, current)
        finally:  # emit events after the schedules, which their requests would delay
            self._emit(group, policy, decision, settled)
        if policy.ordered is not None:
            self.returns.record(name, decision.targets, self.schedules.get(name, {}))
            for returning in self.returns.next():
                self.enqueue(returning)
        else:
            self.returns.forget(name)
        label = self.catalog.label_of(name)
        if label:
            await self.groups.write(group, policy, label, decision)
        for waiting in self._handovers.pop(name, ()):
            self.enqueue(waiting)

    def _forget(self, name: str) -> None:
        self._want(name, ())
        self.decisions.pop(name, None)
        self.unplaced.discard(name)
        self.claims.decide(name, {})
        self.returns.forget(name)
        for key in [key for key in self._since if key[0] == name]:
            del self._since[key]

    def _handed_over(self, name: str, current: Mapping[str, Mapping[int, Schedule]]) -> bool:
        """Return True if no object of a group waits for its first schedule in another group. Until then its copies
        stay, so that the other group takes them over with their volumes. No group waits for a waiting group."""
        for entry in (entry for parts in current.values() for part in parts.values() for entry in part.entries):
            placement, template = self.catalog.placements.get(entry.ref.key), self.catalog.templates.get(entry.ref.key)
            if placement is None or placement.group == name or template is None or template.problem \
                    or template.deleting or any(
                    placement.group in waiting for waiting in self._handovers.values()):
                continue
            stored = self.schedules.get(placement.group, {})
            decision = self.decisions.get(placement.group)
            if (decision is None or decision.targets or decision.wakes) and not any(
                    entry.ref.key == other.ref.key for parts in stored.values() for part in parts.values()
                    for other in part.entries):
                self._handovers.setdefault(placement.group, set()).add(name)
                return False
        return True

    def _remember(self, group: Group, policy: Policy, decision: Decision) -> None:
        """Book the resources of a decision, and note the changes for which the group waits: those that its rejections
        name, and new clusters if one may be better than the present ones."""
        self._want(group.key, decision.wakes)
        self.decisions[group.key] = decision
        (self.unplaced.discard if decision.placed or decision.targets or decision.wakes else self.unplaced.add)(
            group.key)
        if not decision.placed or policy.spread is not None or policy.ordered is not None:
            for rejection in decision.rejections:
                if rejection.wait_for == "settled":
                    self.returns.waiting.setdefault(rejection.cluster, set()).add(group.key)
                elif rejection.wait_for:
                    self.waiting.setdefault(f"{rejection.cluster}/{rejection.wait_for}", set()).add(group.key)
            for cause in ("labels", "ready"):
                self.waiting.setdefault(cause, set()).add(group.key)
        self.claims.decide(group.key, {
            cluster: [(item, shares[item.ref.key]) for item in group.items if item.ref.key in shares]
            for cluster, shares in (*decision.targets.items(), *decision.wakes.items())})

    def _want(self, group: str, clusters: Collection[str]) -> None:
        """Replace the clusters in standby for which a group waits."""
        previous = self.decisions.get(group)
        for cluster in previous.wakes if previous else ():
            self.wanted[cluster].discard(group)
        for cluster in clusters:
            self.wanted.setdefault(cluster, set()).add(group)

    def uses(self, cluster: str) -> bool:
        """Return True if a decision, even if not stored yet, places objects that consume resources in a cluster."""
        return any(
            consumes(template.item.ref, replicas) and not template.item.finished
            for decision in self.decisions.values() for key, replicas in decision.targets.get(cluster, {}).items()
            if (template := self.catalog.templates.get(key)) is not None)

    async def _leave(self, name: str, current: Mapping[str, Mapping[int, Schedule]]) -> None:
        """Remove the schedules of a group that is not selected any more. If its policy was deleted or is invalid, its
        objects stay where they run until users delete them."""
        stored = [part for parts in current.values() for part in parts.values()]
        if all(not part.policy or part.policy in self.catalog.policies for part in stored):
            await self.writer.remove(current)
            return
        self.catalog.frozen.update({entry.ref.key: name for part in stored for entry in part.entries})
        for cluster, parts in current.items():
            for part in parts.values():
                await self.writer.prune(cluster, part)

    async def _execute(self, group: Group, policy: Policy, decision: Decision,
                       current: Mapping[str, Mapping[int, Schedule]]) -> None:
        """Write the schedules of a decision: additions, then, once these are ready, removals."""
        leaving = {cluster: parts for cluster, parts in current.items() if cluster not in decision.targets}
        broken_first = any(item.break_first for item in group.items) or policy.failover == "Fenced" or any(
            part.failover == "Fenced" for parts in leaving.values() for part in parts.values())
        if not decision.targets:
            return
        if broken_first and leaving and any(grows(current.get(cluster, {}), shares)
                                            for cluster, shares in decision.targets.items()) and not await self._end(
                                                policy, leaving):
            return  # the new copies are created by a later call, when the leaving copies are gone
        shrinking = [cluster for cluster in decision.targets if shrinks(current.get(cluster, {}),
                                                                         decision.targets[cluster])]
        for cluster, shares in decision.targets.items():
            if cluster not in shrinking:
                await self.writer.write(group, policy, cluster, shares, current.get(cluster, {}))
        pending = [cluster for cluster in decision.targets if cluster not in shrinking and not all(
            part.ready for part in self.schedules.get(group.key, {}).get(cluster, {}).values())]
        if not pending or broken_first or not decision.placed:
            for cluster in shrinking:
                await self.writer.write(group, policy, cluster, decision.targets[cluster], current[cluster])
        now = time.monotonic()
        for cluster in decision.targets:
            if cluster in pending and cluster not in decision.wakes:
                self._since.setdefault((group.key, cluster), now)
            else:
                self._since.pop((group.key, cluster), None)
        if pending:
            for parts in leaving.values():
                await self.writer.retire(parts)
        else:
            await self.writer.remove(leaving)
        await self.writer.label(group, decision)

    def _emit(self, group: Group, policy: Policy, decision: Decision, settled: bool) -> None:
        """Emit the events of a decision. ``settled``: True if the decision changes nothing, as for most groups after a
        restart; its events were emitted when it was new."""
        for key in self.catalog.members.get(group.key, ()):
            invalid = self.catalog.templates[key]
            if problem := invalid.problem or self.catalog.placements[key].problem:
                self.recorder.emit(invalid.item.ref, invalid.uid, "InvalidObject", problem, "Warning")
        for item in group.items:
            placement, template = self.catalog.placements[item.ref.key], self.catalog.templates[item.ref.key]
            if placement.label and not settled:
                self.recorder.emit(item.ref, template.uid, "AddedToScheduleGroup", f"added to ScheduleGroup"
                                   f" {group_name(policy.name, placement.label)} which contains objects with"
                                   f" groupBy.labelKey {policy.group_by}={placement.label}")
            if policy.name and not settled:
                self.recorder.emit(item.ref, template.uid, "SchedulePolicyMatched",
                                   f"schedule policy {policy.name} will be used to determine target cluster")
            if placement.others:
                self.recorder.emit(item.ref, template.uid, "SchedulePolicyConflict", f"schedule policy {policy.name} is"
                                   f" used; also matching: {', '.join(placement.others)}", "Warning")
            for warning in decision.warnings:
                self.recorder.emit(item.ref, template.uid, "SchedulingWarning", warning, "Warning")
            if decision.wakes:
                self.recorder.emit(item.ref, template.uid, "WaitingForCluster", "waits until these clusters are woken"
                                   f" from standby: {', '.join(sorted(decision.wakes))}")
            elif not decision.placed:
                reasons = "; ".join(f"{r.cluster}: {r.message}" for r in decision.rejections) or "no cluster matches"
                self.recorder.emit(item.ref, template.uid, "FailedScheduling", reasons, "Warning")


def _settled(policy: Policy, decision: Decision, current: Mapping[str, Mapping[int, Schedule]]) -> bool:
    """Return True if the stored schedules of a group have the shares of a decision, and are of this policy."""
    return bool(current) and current.keys() == decision.targets.keys() and all(
        part.policy == policy.name for parts in current.values() for part in parts.values()) and not any(
        grows(current[cluster], shares) or shrinks(current[cluster], shares)
        for cluster, shares in decision.targets.items())
