"""The agent of a workload cluster: carries out the schedules of its namespace and reports on them."""

import asyncio
import logging
import time
from collections.abc import Iterable

from nova.common.errors import Invalid
from nova.federator.api.names import FINALIZER, cluster_namespace
from nova.federator.api.types import Ref
from nova.federator.clusters.copies import Copies
from nova.federator.kube.client import Api, ApiError
from nova.federator.kube.informer import Informer
from nova.federator.store import schedules
from nova.federator.store.schedules import Observed, Report, Schedule

LOG = logging.getLogger(__name__)
_WORKERS = 16
_LONGEST_DELAY = 60.0  # seconds between two tries of a schedule
_INTERVAL = 1.0  # seconds between two reports on a schedule


class Agent:
    """Reconciles schedules: each name is queued once, however often it changed."""

    def __init__(self, nova: Api, member: Api, cluster: str, epoch: int = 0) -> None:
        self.nova, self.member, self.cluster, self.epoch = nova, member, cluster, epoch
        self.namespace = cluster_namespace(cluster)
        self.copies = Copies(member, cluster, self.enqueue)
        self.informer = Informer(nova, schedules.path_of(self.namespace), schedules.decode, self._changed)
        self.applied: dict[str, int] = {}  # schedule -> generation that was applied
        self._reported: dict[str, tuple[Report, float]] = {}  # schedule -> last report and when it was written
        self._queue: asyncio.Queue[str] = asyncio.Queue()
        self._queued: set[str] = set()
        self._active: set[str] = set()
        self._again: set[str] = set()
        self._failures: dict[str, int] = {}

    def _changed(self, _key: str, new: Schedule | None, old: Schedule | None) -> None:
        current = new or old
        if current is None:
            return
        if new is None:
            self.applied.pop(current.name, None)
            self._reported.pop(current.name, None)
        elif old is None or new.generation != old.generation or new.deleting != old.deleting:
            self.enqueue(current.name)

    def enqueue(self, name: str) -> None:
        if name in self._active:
            self._again.add(name)
        elif name not in self._queued:
            self._queued.add(name)
            self._queue.put_nowait(name)

    async def run(self) -> None:
        """Carry out schedules until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.copies.run())
            tasks.create_task(self.informer.run())
            for _number in range(_WORKERS):
                tasks.create_task(self._work())

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            name = await self._queue.get()
            self._queued.discard(name)
            self._active.add(name)
            try:
                if (schedule := self.informer.objects.get(f"{self.namespace}/{name}")) is not None:
                    await self._reconcile(schedule)
                self._failures.pop(name, None)
            except (ApiError, TimeoutError) as error:
                failures = self._failures[name] = self._failures.get(name, 0) + 1
                delay = min(0.25 * 2 ** failures, _LONGEST_DELAY)
                LOG.warning("Schedule %s failed %d times and is tried again in %.1f s: %s",
                            name, failures, delay, error)
                loop.call_later(delay, self.enqueue, name)
            except Exception:  # a schedule that cannot be processed must not stop the others
                LOG.exception("Schedule %s cannot be processed; it is tried again when it changes", name)
            finally:
                self._active.discard(name)
                if name in self._again:
                    self._again.discard(name)
                    self.enqueue(name)

    async def _reconcile(self, schedule: Schedule) -> None:
        if schedule.deleting:
            await self._finish(schedule)
            return
        try:
            manifests = schedule.manifests()
            if len(manifests) != len(schedule.entries):
                raise Invalid(f"{len(manifests)} manifests for {len(schedule.entries)} objects")
        except Invalid as error:
            await self._report(schedule, [Observed(entry.ref, "Failed", "", error.message)
                                          for entry in schedule.entries])
            return
        observed = [await self.copies.apply(schedule, entry, manifest)
                    for entry, manifest in zip(schedule.entries, manifests, strict=True)]
        listed = {entry.ref.key for entry in schedule.entries}
        previous, _at = self._reported.get(schedule.name, (schedule.report, 0.0))
        surplus = [old.ref for old in previous.objects if old.ref.key not in listed]
        if surplus:
            await self._remove(schedule, surplus)
        self.applied[schedule.name] = schedule.generation
        await self._report(schedule, observed)
        if any(entry.phase == "Failed" for entry in observed):  # a kind or a namespace may appear later
            raise ApiError("; ".join(entry.message for entry in observed if entry.phase == "Failed")[:500])

    async def _finish(self, schedule: Schedule) -> None:
        """Delete the copies of a deleted schedule, then let the schedule go."""
        refs = [entry.ref for entry in schedule.entries]
        refs += [old.ref for old in schedule.report.objects if old.ref.key not in {ref.key for ref in refs}]
        if FINALIZER not in schedule.finalizers:
            return
        await self._remove(schedule, refs)
        rest = [entry for entry in schedule.finalizers if entry != FINALIZER]
        try:
            await self.nova.patch(schedule.path, {"metadata": {"finalizers": rest or None, "uid": schedule.uid}})
        except ApiError as error:
            if not error.missing:
                raise

    async def _remove(self, schedule: Schedule, refs: Iterable[Ref]) -> None:
        """Delete copies, the last applied first. The schedule is read again before, because nothing is deleted on stale
        knowledge. Raises ApiError if a copy still exists."""
        try:
            fresh = schedules.decode(await self.nova.get(schedule.path))
        except ApiError as error:
            if error.missing:
                return
            raise
        listed = set() if fresh.deleting else {entry.ref.key for entry in fresh.entries}
        doomed = [ref for ref in reversed(list(refs)) if ref.key not in listed]
        remaining = [ref.key for ref in doomed if not await self.copies.remove(ref, schedule.name)]
        if remaining:
            raise ApiError(f"still being deleted: {', '.join(remaining)[:500]}")
        for namespace in {ref.namespace for ref in doomed if ref.namespace}:
            await self.copies.remove_namespace(namespace)

    async def _report(self, schedule: Schedule, observed: list[Observed]) -> None:
        """Write the status of a schedule if it changed, at most once per interval."""
        report = Report(schedule.generation, self.epoch, tuple(observed))
        previous, at = self._reported.get(schedule.name, (schedule.report, 0.0))
        if report == previous:
            return
        wait = at + _INTERVAL - time.monotonic()
        if wait > 0 and report.generation == previous.generation:
            asyncio.get_running_loop().call_later(wait, self.enqueue, schedule.name)
            return
        path = schedules.path_of(self.namespace, schedule.name, "status")
        try:
            await self.nova.patch(path, {"status": schedules.render_report(report)})
        except ApiError as error:
            if not error.missing:
                raise
        self._reported[schedule.name] = report, time.monotonic()
