"""The agent of a workload cluster: carries out the schedules of its namespace and reports on them."""

import asyncio
import collections
import contextlib
import itertools
import logging
import time
from collections.abc import Iterable, Sequence, Set
from typing import Any

from nova.common.errors import Invalid
from nova.federator.api import objects, tracing
from nova.federator.api.keyed_queue import KeyedQueue
from nova.federator.api.names import FINALIZER, cluster_namespace, label_value
from nova.federator.api.types import Ref
from nova.federator.clusters.apply import Applier, fence_after
from nova.federator.clusters.copies import Copies, Unapplied
from nova.federator.clusters.fence import Fence
from nova.federator.clusters.lease import Heartbeat, now
from nova.federator.clusters.observe import workload
from nova.federator.kube.client import Api, ApiError
from nova.federator.kube.informer import Informer
from nova.federator.store import schedules
from nova.federator.store.schedules import Entry, Observed, Report, Schedule

LOG = logging.getLogger(__name__)
_WORKERS = 16  # schedules that are processed at the same time
_AT_ONCE = 8  # objects of a schedule that are applied at the same time
_LONGEST_DELAY = 60.0  # longest delay before a failed schedule is tried again, in seconds
_INTERVAL = 1.0  # shortest time between two reports on a schedule, in seconds
_MOST_RETRIED = 100  # failed schedules; if there are more, a change of another schedule does not retry them
_STUCK = 5  # failed tries of a deletion after which the status of the schedule lists the remaining copies
_CACHED_BYTES = 8 << 20  # bytes of packed manifests whose unpacked form is cached; the oldest ones are dropped


class Agent:
    """Reconciles the schedules of a cluster. A schedule is queued once, even if it has changed several times.

    ``run_locally`` watches and fences the copies, and needs no control plane. ``run`` carries out schedules.
    """

    def __init__(self, nova: Api, member: Api, cluster: str, heartbeat: Heartbeat) -> None:
        self.nova, self.member, self.cluster, self.heartbeat = nova, member, cluster, heartbeat
        self.namespace = cluster_namespace(cluster)
        self.copies = Copies(member, self._copy_changed)
        self.applier = Applier(member, cluster, self.copies, self._released)
        self.fence = Fence(member, self.copies, heartbeat, self.enqueue)
        self.informer = Informer(nova, schedules.path_of(self.namespace), schedules.decode, self._changed)
        self.applied: dict[str, int] = {}  # schedule -> generation that was applied
        self.reports = self.failures = 0  # written statuses and failed tries, for metrics
        self._reported: dict[str, tuple[Report, float]] = {}  # schedule -> last report and when it was written
        self._began: dict[str, float] = {}  # schedule -> time at which its present generation was first applied
        self._confirmed: dict[str, float] = {}  # schedule -> time of its last read from the API server
        self._listed: dict[str, set[str]] = {}  # key of an object -> schedules that list it and are not deleted
        self._queue = KeyedQueue()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._failures: dict[str, tuple[int, float]] = {}  # schedule -> number of failed tries, time of the next try
        self._manifests: collections.OrderedDict[tuple[str, int], tuple[int, list[dict[str, Any]]]]
        self._manifests = collections.OrderedDict()
        self._cached_bytes = 0  # size of the packed form of _manifests

    @property
    def pending(self) -> int:
        """Return the number of schedules that wait for a worker."""
        return len(self._queue)

    def _changed(self, _key: str, new: Schedule | None, old: Schedule | None) -> None:
        current = new or old
        if current is None:
            return
        if old is None or new is None or (old.generation, old.deleting) != (new.generation, new.deleting):
            for entry in old.entries if old is not None else ():
                self._listed.get(entry.ref.key, set()).discard(current.name)
                if not self._listed.get(entry.ref.key):
                    self._listed.pop(entry.ref.key, None)
            for entry in new.entries if new is not None and not new.deleting else ():
                self._listed.setdefault(entry.ref.key, set()).add(current.name)
        if new is None:
            for state in (self.applied, self._began, self._reported, self._confirmed, self._failures):
                state.pop(current.name, None)
            if timer := self._timers.pop(current.name, None):
                timer.cancel()
        elif old is None or new.generation != old.generation or new.deleting != old.deleting or new.uid != old.uid:
            if old is not None and new.uid != old.uid:
                self._reported.pop(new.name, None)
            self._failures.pop(new.name, None)
            self.enqueue(current.name)
            if old is not None and len(self._failures) <= _MOST_RETRIED:
                self._retry_failed()  # another schedule may have waited for an object of this schedule

    def _copy_changed(self, name: str) -> None:
        """Queue a schedule whose copies changed: at most once per _INTERVAL, unless the schedule is being deleted."""
        schedule = self.informer.objects.get(f"{self.namespace}/{name}")
        if schedule is None:
            return
        report, at = self._reported.get(name, (schedule.report, 0.0))
        if report.generation != schedule.generation:  # no delay of this first report if all are ready
            settled = all(copy.phase == "Ready" for copy in self.copies.of(name).values())
            at = 0.0 if settled else self._began.get(name, 0.0)
        wait = at + _INTERVAL - time.monotonic()
        if wait > 0 and not schedule.deleting:
            self._later(name, wait)
        else:
            self.enqueue(name)

    def _later(self, name: str, delay: float) -> None:
        """Queue a schedule after a delay, unless it is queued sooner."""
        loop = asyncio.get_running_loop()
        if (timer := self._timers.get(name)) is not None:
            if timer.when() <= loop.time() + delay and not timer.cancelled():
                return
            timer.cancel()
        self._timers[name] = loop.call_later(delay, self.enqueue, name)

    def applied_with_pods(self) -> dict[str, int]:
        """Return the applied generations of schedules that run pods, for the report on the cluster."""
        stored = self.informer.objects
        return {name: generation for name, generation in self.applied.items()
                if (schedule := stored.get(f"{self.namespace}/{name}")) is not None and schedule.runs_pods}

    def unscheduled(self) -> Set[str]:
        """Return the names of schedules that do not exist, but have copies here."""
        if not (self.informer.synced.is_set() and self.copies.ready.is_set()):
            return frozenset()
        return {name for name in self.copies.schedules(label_value(self.cluster))
                if f"{self.namespace}/{name}" not in self.informer.objects}

    def enqueue(self, name: str) -> None:
        if timer := self._timers.pop(name, None):
            timer.cancel()
        self._queue.put(name)

    async def run_locally(self) -> None:
        """Watch the copies in the cluster, and stop each fenced copy at its fence time, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.copies.run())
            tasks.create_task(self.fence.run())

    async def run(self) -> None:
        """Carry out schedules until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.informer.run())
            await self.copies.ready.wait()
            await self.informer.synced.wait()
            tasks.create_task(self._resume())
            for _number in range(_WORKERS):
                tasks.create_task(self._work())

    async def _resume(self) -> None:
        """Reconnect, and retry failed schedules, after each interruption of the heartbeat. Otherwise, the agent would
        notice broken connections too late."""
        resumed = self.heartbeat.resumed
        while True:
            await asyncio.sleep(0.5)
            if self.heartbeat.resumed != resumed:
                resumed = self.heartbeat.resumed
                LOG.info("Cluster %s: the federation control plane is reachable again", self.cluster)
                await self.nova.use(self.nova.config)
                self.informer.retry()
                self._retry_failed()

    def _retry_failed(self) -> None:
        for name in list(self._failures):
            del self._failures[name]
            self.enqueue(name)

    async def _work(self) -> None:
        while True:
            again, name = False, await self._queue.get()
            try:
                problem = ""
                if (schedule := self.informer.objects.get(f"{self.namespace}/{name}")) is not None:
                    problem = await self._reconcile(schedule)
            except (ApiError, Unapplied, TimeoutError) as error:
                problem = str(error) or "timed out"
            except Exception:  # a schedule that cannot be processed must not stop the processing of other schedules
                LOG.exception("Unexpected error in schedule %s, retrying", name)
                problem = "internal error"
            finally:
                again = self._queue.done(name)
            if not problem:
                self._failures.pop(name, None)
            else:
                self._retry(name, problem)
            if again:
                current = self.informer.objects.get(f"{self.namespace}/{name}")
                if current is not None and self.applied.get(name) != current.generation:
                    self.enqueue(name)
                else:
                    self._copy_changed(name)

    def _retry(self, name: str, problem: str) -> None:
        """Queue a failed schedule again after a growing delay. Changes of its copies can cause further tries before the
        delay has passed; failures of these tries are not counted."""
        current = time.monotonic()
        failures, due = self._failures.get(name, (0, 0.0))
        if due <= current:
            self.failures += 1
            failures += 1
            due = current + min(0.25 * 2 ** min(failures, 10), _LONGEST_DELAY)
            self._failures[name] = failures, due
            LOG.log(logging.WARNING if failures in (4, 10) else logging.DEBUG,
                    "Applying schedule %s failed %d times, retrying in %.1f s: %s",
                    name, failures, due - current, problem)
        self._later(name, due - current)

    async def _reconcile(self, schedule: Schedule) -> str:
        """Carry out a schedule. Return the reason for another try, or an empty text."""
        if schedule.deleting:
            return await self._finish(schedule)
        previous = {observed.ref.key: observed for observed in self._last_report(schedule).objects}
        limit = fence_after(schedule)
        if self.fence.closed(limit):
            await self._report(schedule, [
                Observed(entry.ref, "Fenced", "", f"The control plane was not reached for {limit:g} s.", uid=entry.uid)
                if workload(entry.ref) else previous.get(entry.ref.key, Observed(entry.ref))
                for entry in schedule.entries])
            return "its workloads are fenced"
        if limit is not None and self.heartbeat.silence() > limit / 2:
            self.heartbeat.early.set()  # renew now: the interval of renewals is shortened only once the copies exist
            return "waiting for a renewal of the agent's Lease"
        try:
            manifests = self._unpack(schedule)
        except Invalid as error:
            await self._report(schedule, [Observed(entry.ref, "Failed", "", error.message, uid=entry.uid)
                                          for entry in schedule.entries])
            return ""
        if limit is not None or any(copy.fenced for copy in self.copies.of(schedule.name).values()):
            if not await self._confirm(schedule):
                return "the schedule changed meanwhile"
            await self._release(schedule, manifests)
        applied = self.applied.get(schedule.name) == schedule.generation
        with tracing.span("apply", schedule.trace, group=schedule.group, cluster=self.cluster) if not applied \
                else contextlib.nullcontext():
            observed = await self._apply(schedule, manifests, previous)
        surplus = await self._prune(schedule, previous.values())
        if not applied:
            self.applied[schedule.name], self._began[schedule.name] = schedule.generation, time.monotonic()
        await self._report(schedule, observed + surplus)
        problems = [entry for entry in observed if entry.phase in ("Failed", "Conflict", "Pending")
                    and not objects.finished(entry.ref, entry.status)]
        return "; ".join(f"{entry.ref.key}: {entry.message}" for entry in problems + surplus)[:500]

    def _unpack(self, schedule: Schedule) -> list[dict[str, Any]]:
        """Return the manifests of a schedule; those of recently processed schedules are cached. Raises Invalid."""
        key = (schedule.uid, schedule.generation)
        if key in self._manifests:
            self._manifests.move_to_end(key)
            return self._manifests[key][1]
        manifests = schedule.manifests()
        if len(manifests) != len(schedule.entries):
            raise Invalid(f"spec.manifests: {len(manifests)} manifests for {len(schedule.entries)} objects.")
        for entry, manifest in zip(schedule.entries, manifests, strict=True):
            if (problem := _mismatch(entry, manifest)):
                raise Invalid(f"spec.manifests: {problem}.")
        self._manifests[key] = len(schedule.packed), manifests
        self._cached_bytes += len(schedule.packed)
        while self._cached_bytes > _CACHED_BYTES:
            self._cached_bytes -= self._manifests.popitem(last=False)[1][0]
        return manifests

    async def _confirm(self, schedule: Schedule) -> bool:
        """Read a schedule again if the heartbeat was interrupted since the last read. Return False if the schedule has
        changed. Raises ApiError, also while this agent does not hold the Lease."""
        if not self.heartbeat.held:
            raise ApiError("waiting for the agent's Lease before fenced workloads may run")
        if self._confirmed.get(schedule.name, 0.0) > self.heartbeat.resumed:
            return True
        started = now()
        fresh = await self._read(schedule)
        if fresh is None or fresh.deleting or fresh.generation != schedule.generation:
            return False
        self._confirmed[schedule.name] = started
        return True

    async def _read(self, schedule: Schedule) -> Schedule | None:
        """Return a schedule as the API server has it, or None if it does not exist any more."""
        obj = await self.nova.find(schedule.path)
        fresh = None if obj is None else schedules.decode(obj)
        return fresh if fresh is not None and fresh.uid == schedule.uid else None

    async def _release(self, schedule: Schedule, manifests: Sequence[dict[str, Any]]) -> None:
        """Restart the fenced copies of a confirmed schedule."""
        copies = self.copies.of(schedule.name)
        for entry, manifest in zip(schedule.entries, manifests, strict=True):
            copy = copies.get(entry.ref.key)
            if copy is not None and copy.fenced:
                spec = manifest.get("spec")
                replicas = spec.get("replicas") if isinstance(spec, dict) else None
                await self.fence.restore(copy, None if self.copies.autoscaled(entry.ref) else replicas)

    async def _apply(self, schedule: Schedule, manifests: Sequence[dict[str, Any]],
                     previous: dict[str, Observed]) -> list[Observed]:
        """Apply the objects of a schedule in their apply_order; objects with the same order concurrently."""
        observed: list[Observed] = []
        limit = asyncio.Semaphore(_AT_ONCE)

        async def apply(entry: Entry, manifest: dict[str, Any]) -> Observed:
            async with limit:
                return await self.applier.apply(schedule, entry, manifest, previous.get(entry.ref.key))

        for _order, tier in itertools.groupby(zip(schedule.entries, manifests, strict=True),
                                              key=lambda pair: objects.apply_order(pair[0].ref)):
            observed += await asyncio.gather(*(apply(entry, manifest) for entry, manifest in tier))
        return observed

    def _released(self, name: str, ref: Ref) -> bool:
        """Return True if the schedule of this name does not list the object, so that another schedule may own it."""
        schedule = self.informer.objects.get(f"{self.namespace}/{name}")
        return schedule is None or schedule.deleting or all(entry.ref.key != ref.key for entry in schedule.entries)

    async def _prune(self, schedule: Schedule, previous: Iterable[Observed]) -> list[Observed]:
        """Delete copies that the schedule does not list any more. Return reports on the copies that still exist."""
        listed = {entry.ref.key for entry in schedule.entries}
        surplus = {observed.ref.key: observed.ref for observed in previous}
        surplus |= {key: copy.ref for key, copy in self.copies.of(schedule.name).items()}
        surplus = {key: ref for key, ref in surplus.items() if key not in listed}
        if not surplus:
            return []
        fresh = await self._read(schedule)  # a cached schedule may be outdated: nothing is deleted because of it
        if fresh is None or fresh.generation != schedule.generation:
            raise ApiError("the schedule changed meanwhile")
        remaining = await self._remove(schedule.name, surplus.values())
        return [Observed(ref, "Applied", "", "The copy is being deleted.") for ref in remaining]

    async def _remove(self, name: str, refs: Iterable[Ref]) -> list[Ref]:
        """Delete copies in reverse apply_order. Wait for the end of copies before those with a lower order are deleted.
        Keep copies that another schedule lists. Return the copies that still exist."""
        waiting = sorted(refs, key=objects.apply_order, reverse=True)
        namespaces = {ref.namespace for ref in waiting if ref.namespace}
        while waiting:
            order = objects.apply_order(waiting[0])
            tier = [ref for ref in waiting if objects.apply_order(ref) == order]
            remaining = []
            for ref in tier:
                if heirs := self._listed.get(ref.key, set()) - {name}:
                    if ref.key in self.copies.of(name):
                        remaining.append(ref)
                        for heir in heirs:
                            self.enqueue(heir)
                elif not await self.applier.remove(ref, name):
                    remaining.append(ref)
            waiting = waiting[len(tier):]
            if remaining:
                return remaining + waiting
        for namespace in namespaces:
            await self.applier.remove_namespace(namespace)
        return []

    async def _finish(self, schedule: Schedule) -> str:
        """Delete the copies of a deleted schedule, then remove its finalizer."""
        if FINALIZER not in schedule.finalizers:
            return ""
        fresh = await self._read(schedule)
        if fresh is None or not fresh.deleting:
            return ""
        refs = {entry.ref.key: entry.ref for entry in fresh.entries}
        refs |= {observed.ref.key: observed.ref for observed in fresh.report.objects}
        refs |= {key: copy.ref for key, copy in self.copies.of(schedule.name).items()}
        remaining = await self._remove(schedule.name, refs.values())
        if remaining:
            problem = f"copies are still being deleted: {', '.join(ref.key for ref in remaining)}"[:500]
            if self._failures.get(schedule.name, (0, 0.0))[0] >= _STUCK:
                await self._report(fresh, [Observed(ref, "Applied", "", "The copy is being deleted.")
                                           for ref in remaining])
            return problem
        rest = [entry for entry in fresh.finalizers if entry != FINALIZER]
        try:
            await self.nova.patch(fresh.path, {"metadata": {
                "finalizers": rest or None, "uid": fresh.uid, "resourceVersion": fresh.version}})
        except ApiError as error:
            if not error.missing:
                raise
        return ""

    def _last_report(self, schedule: Schedule) -> Report:
        return self._reported.get(schedule.name, (schedule.report, 0.0))[0]

    async def _report(self, schedule: Schedule, observed: list[Observed]) -> None:
        """Write the status of a schedule if it changed, at most once per _INTERVAL. The first report on a generation
        is delayed by _INTERVAL if copies are applied, but not ready yet."""
        report = Report(schedule.generation, self.heartbeat.epoch, tuple(observed))
        previous, at = self._reported.get(schedule.name, (schedule.report, 0.0))
        if (report.generation, report.objects) == (previous.generation, previous.objects):
            return
        if report.generation != previous.generation:
            phases = {entry.phase for entry in observed}
            at = self._began.get(schedule.name, 0.0) if "Applied" in phases and phases <= {"Applied", "Ready"} else 0.0
        wait = at + _INTERVAL - time.monotonic()
        if wait > 0:
            self._later(schedule.name, wait)
            return
        try:  # a replacement costs the API server half as much as a patch
            await self.nova.replace(schedules.path_of(self.namespace, schedule.name, "status"),
                                    schedules.render_status(schedule, report))
            self.reports += 1
        except ApiError as error:
            if not error.missing:
                raise
        self._reported[schedule.name] = report, time.monotonic()


def _mismatch(entry: Entry, manifest: dict[str, Any]) -> str:
    """Return why a manifest does not belong to its entry of the schedule, or an empty text."""
    try:
        ref = objects.ref_of(manifest)
    except (KeyError, TypeError, AttributeError):
        return f"the manifest of {entry.ref.key} has no metadata.name"
    return "" if ref.key == entry.ref.key else f"the manifest of {entry.ref.key} describes {ref.key}"
