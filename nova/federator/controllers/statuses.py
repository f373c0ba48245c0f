"""Statuses of users' objects, merged from the reports on their copies."""

import asyncio
import logging
import time
from collections.abc import Mapping

from nova.federator.api import times
from nova.federator.api.keyed_queue import YieldingQueue
from nova.federator.api.types import Ref
from nova.federator.controllers.catalog import Catalog
from nova.federator.controllers.clusters import Clusters
from nova.federator.controllers.schedule_writer import Stored
from nova.federator.kube.client import Api, ApiError
from nova.federator.scheduling.merge_status import COLLISIONS, Copy, merge
from nova.federator.store import schedules
from nova.federator.store.schedules import Observed, Schedule

LOG = logging.getLogger(__name__)
_INTERVAL = 1.0  # shortest time between two writes of the status of an object, in seconds
_WORKERS = 8
_RETRY = 2.0  # seconds after which a failed write is repeated
# Kinds whose API has no status.
_NONE = {"ConfigMap", "Secret", "ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding",
         "NetworkPolicy", "IngressClass", "Namespace", "CustomResourceDefinition"}


class Statuses:
    """Writes the status of each object at most once per second, and only if it changed."""

    def __init__(self, api: Api, catalog: Catalog, clusters: Clusters, stored: Stored) -> None:
        self.api, self.catalog, self.clusters, self.stored = api, catalog, clusters, stored
        self.writes = 0  # for metrics
        self._queue: YieldingQueue[tuple[str, Ref]] = YieldingQueue()
        self._queued: set[str] = set()
        self._written: dict[str, tuple[str, float]] = {}  # key -> digest of the status and when it was written

    @property
    def queue_length(self) -> int:
        return len(self._queued)

    def schedule_changed(self, _key: str, new: Schedule | None, old: Schedule | None) -> None:
        """Queue the objects of a Schedule whose report by the agent changed; handler of the informer of Schedules."""
        current = new or old
        if current is None or (new is not None and old is not None and new.report == old.report
                               and new.deleting == old.deleting):
            return
        before = {observed.ref.key: observed for observed in old.report.objects} if old else {}
        for observed in current.report.objects:
            if new is None or before.get(observed.ref.key) != observed:
                self.enqueue(current.group, observed.ref)

    def cluster_changed(self, name: str) -> None:
        """Queue all objects of a cluster, because it became reachable or unreachable."""
        for group, parts in self.stored.clusters.get(name, {}).items():
            self._enqueue_all(group, parts)

    def _enqueue_all(self, group: str, parts: Mapping[int, Schedule]) -> None:
        for part in parts.values():
            for observed in part.report.objects:
                self.enqueue(group, observed.ref)

    def enqueue(self, group: str, ref: Ref) -> None:
        if ref.kind not in _NONE and ref.key not in self._queued:
            self._queued.add(ref.key)
            self._queue.put_nowait((group, ref))

    async def run(self) -> None:
        """Write statuses until cancelled. Begins with all objects, because another scheduler may have written their
        statuses until now, also after an earlier call in this process."""
        self._written.clear()
        for group, placed in self.stored.items():
            for parts in placed.values():
                self._enqueue_all(group, parts)
        async with asyncio.TaskGroup() as tasks:
            for _number in range(_WORKERS):
                tasks.create_task(self._work())

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            group, ref = await self._queue.get()
            self._queued.discard(ref.key)
            template = self.catalog.templates.get(ref.key)
            if template is None or not self.catalog.belongs(ref, group):
                self._written.pop(ref.key, None)
                continue
            digest, at = self._written.get(ref.key, (template.status, 0.0))
            wait = at + _INTERVAL - time.monotonic()
            if wait > 0:
                self._queued.add(ref.key)
                loop.call_later(wait, self._queue.put_nowait, (group, ref))
                continue
            status = merge(ref, template.generation, self._copies(group, ref), times.now())
            merged = schedules.digest_of(status)
            if merged == digest or not status:
                continue
            kind = self.catalog.kind(ref)
            removed = dict.fromkeys(field for field in template.status_fields
                                    if field not in status and field != COLLISIONS)
            try:
                await self.api.patch(kind.path(ref.namespace, ref.name, "status"), {"status": {**removed, **status}})
                self._written[ref.key] = merged, time.monotonic()
                self.writes += 1
            except ApiError as error:
                if error.missing:
                    continue
                if error.status in (400, 422):  # the status that an agent reports is invalid
                    LOG.warning("Not updating the status of %s: the API server refused it: %s", ref.key, error)
                    continue
                LOG.warning("Cannot write the status of %s, retrying: %s", ref.key, error)
                loop.call_later(_RETRY, self.enqueue, group, ref)

    def _copies(self, group: str, ref: Ref) -> list[Copy]:
        copies = []
        moving = any(part.retiring for parts in self.stored.get(group, {}).values() for part in parts.values())
        for cluster, parts in self.stored.get(group, {}).items():
            stale = not self.clusters.reachable(cluster)
            for part in parts.values():
                if part.retiring and len(self.stored[group]) > 1 and stale:
                    continue
                reports = {observed.ref.key: observed for observed in part.report.objects}
                for entry in part.entries:
                    if entry.ref.key == ref.key:
                        observed = reports.get(ref.key) or Observed(ref)
                        if moving and not observed.status:
                            continue  # omit this copy: the copy in the old cluster is in use until this one is ready
                        copies.append(Copy(cluster, observed.status, stale or observed.phase == "Fenced",
                                           observed.digest == entry.digest))
        return copies
