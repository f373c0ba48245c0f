"""The controllers of a federation and their connections, for the scheduler, explanations and plans."""

import asyncio
import logging
from typing import Any

import msgspec

from nova.federator.api import objects
from nova.federator.api.names import POLICY_GROUP, VERSION, cluster_namespace
from nova.federator.api.types import Ref
from nova.federator.controllers.backpropagation import Backpropagation
from nova.federator.controllers.catalog import Catalog
from nova.federator.controllers.clusters import Clusters
from nova.federator.controllers.events import Recorder
from nova.federator.controllers.groups import ScheduleGroups
from nova.federator.controllers.placement import Placer
from nova.federator.controllers.statuses import Statuses
from nova.federator.kube.client import Api, Object
from nova.federator.kube.informer import Informer, key_of
from nova.federator.store import schedules
from nova.federator.store.schedules import Schedule

LOG = logging.getLogger(__name__)
# Versions of kinds that replace the ones of objects.KINDS on newer API servers.
_NEWER = {"CronJob": "v1", "PodDisruptionBudget": "v1", "HorizontalPodAutoscaler": "v2"}


class Federation:
    """The state of a control plane and the controllers that act on it. ``merging``: the client that writes statuses and
    the objects of backpropagation, if it differs from ``api``, which writes decisions."""

    def __init__(self, api: Api, merging: Api | None = None) -> None:
        self.api, merging = api, merging or api
        self.recorder = Recorder(api)
        self.clusters = Clusters(api, self._cluster_changed)
        self.catalog = Catalog(self._group_changed, self._policy_refused)
        self.groups = ScheduleGroups(api)
        self.placer = Placer(api, self.catalog, self.clusters, self.recorder, self.groups)
        self._custom: dict[str, tuple[objects.Kind, Informer[Any]]] = {}  # name of a CustomResourceDefinition
        self._running = False
        self._custom_tasks: dict[str, asyncio.Task[None]] = {}
        self.catalog.definition_changed = self._definition_changed
        self.statuses = Statuses(merging, self.catalog, self.clusters, self.placer.schedules)
        self.stored = Informer(api, schedules.SCHEDULES, schedules.decode_checked, self._schedule_changed)
        self.placer.writer.written = self._schedule_written
        self.backpropagation = Backpropagation(merging, self.catalog, self.clusters, self.stored.objects)

    def _group_changed(self, group: str) -> None:
        self.placer.enqueue(group)

    def _policy_refused(self, name: str, uid: str, problem: str) -> None:
        self.recorder.emit(Ref(POLICY_GROUP, VERSION, "SchedulePolicy", "", name), uid, "InvalidPolicy",
                           f"The policy is not used: {problem}", "Warning")

    def _cluster_changed(self, cluster: str, cause: str) -> None:
        for key, schedule in self.placer.unassigned.pop(cluster_namespace(cluster), {}).items():
            self._schedule_changed(key, schedule, None)  # the schedule was reported before its cluster
        self.placer.cluster_changed(cluster, cause)
        if cause == "ready":
            self.statuses.cluster_changed(cluster)

    def _schedule_changed(self, key: str, new: Schedule | None, old: Schedule | None) -> None:
        self.placer.schedule_changed(key, new, old)
        self.statuses.schedule_changed(key, new, old)
        self.backpropagation.schedule_changed(key)

    def _schedule_written(self, cluster: str, result: Object) -> None:
        """Take over a written schedule, unless the watch has reported this state or a later one. A list that lacks the
        schedule is then a deletion, even if the watch never reported it."""
        old = self.stored.objects.get(key := key_of(result))
        if self.stored.put(result):
            new = self.stored.objects[key]
            self.placer.schedules.put(cluster, new)
            self._schedule_changed(key, new, old)

    def _definition_changed(self, name: str, kind: objects.Kind | None) -> None:
        """Watch the objects of a custom resource, or drop them with their kind."""
        previous = self._custom.get(name)
        if previous is not None and previous[0] == kind:
            return
        if previous is not None:
            if task := self._custom_tasks.pop(name, None):
                task.cancel()
            previous[1].clear()
            del self._custom[name]
        if kind is not None:
            informer = self.catalog.informer(self.api, kind)
            self._custom[name] = kind, informer
            if self._running:
                self._custom_tasks[name] = asyncio.create_task(informer.run())

    async def run_custom(self) -> None:
        """Watch the objects of all custom resources until cancelled."""
        self._running = True
        for name, (_kind, informer) in self._custom.items():
            self._custom_tasks[name] = asyncio.create_task(informer.run())
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            for task in self._custom_tasks.values():
                task.cancel()

    async def informers(self) -> dict[str, Informer[Any]]:
        """Return the informers that keep the state current, by the name of their kind. Clusters come first, because
        schedules are counted per cluster. Raises ApiError."""
        kinds = []
        for kind in objects.KINDS:
            for version in dict.fromkeys((kind.version, _NEWER.get(kind.kind, kind.version))):
                candidate = msgspec.structs.replace(kind, version=version)
                if await self.api.resource(candidate.api_version, kind.kind):
                    kinds.append(candidate)
                    break
            else:
                LOG.info("Not placing objects of %s/%s: the federation control plane does not serve this kind",
                         kind.group, kind.kind)
        return {**self.clusters.informers, "schedulegroups": self.groups.objects,
                **self.catalog.informers(self.api, kinds), "schedules": self.stored}

    async def load(self) -> None:
        """Read the present state once. A cluster is reachable if its Cluster object is Ready, because there is no time
        to observe its Lease. Raises ApiError."""
        informers = await self.informers()
        for name in self.clusters.informers:
            await informers.pop(name).refresh()
        stored = informers.pop("schedules")
        await asyncio.gather(*(informer.refresh() for informer in informers.values()))
        await asyncio.gather(*(informer.refresh() for _kind, informer in self._custom.values()), return_exceptions=True)
        await stored.refresh()
        for name, obj in self.clusters.objects.objects.items():
            if not objects.holds(obj.get("status"), "Ready"):
                self.clusters.assume_silent(name)
