"""The scheduler process: follows the control plane, places groups and merges statuses."""

import asyncio
import logging
import os
import socket
from collections.abc import Coroutine
from typing import Any

import msgspec

from nova.federator.api import objects
from nova.federator.api.names import NAMESPACE
from nova.federator.controllers.catalog import Catalog
from nova.federator.controllers.clusters import Clusters
from nova.federator.controllers.events import Recorder
from nova.federator.controllers.groups import ScheduleGroups
from nova.federator.controllers.joining import Joining
from nova.federator.controllers.placement import Placer
from nova.federator.controllers.signing import Authority
from nova.federator.controllers.statuses import Statuses
from nova.federator.kube.client import Api, ApiError
from nova.federator.kube.informer import Informer, wait_synced
from nova.federator.service.leader import Leader
from nova.federator.store import schedules
from nova.federator.store.schedules import Schedule

LOG = logging.getLogger(__name__)
_SYNC_TIMEOUT = 120.0  # seconds for the first lists
# Versions of kinds that replace the ones of objects.KINDS on newer API servers.
_NEWER = {"CronJob": "v1", "PodDisruptionBudget": "v1", "HorizontalPodAutoscaler": "v2"}


class Scheduler:
    """All control loops of one scheduler process. ``authority``: None if this process signs no certificates."""

    def __init__(self, api: Api, authority: Authority | None, identity: str = "") -> None:
        self.api = api
        self.identity = identity or f"{socket.gethostname()}-{os.getpid()}"
        self.recorder = Recorder(api)
        self.clusters = Clusters(api, self._cluster_changed)
        self.catalog = Catalog(self._group_changed)
        self.groups = ScheduleGroups(api)
        self.placer = Placer(api, self.catalog, self.clusters, self.recorder, self.groups)
        self.statuses = Statuses(api, self.catalog, self.clusters, self.placer.schedules)
        self.joining = Joining(api, authority) if authority else None
        self.leading = asyncio.Event()
        self._tasks: asyncio.TaskGroup | None = None

    def _group_changed(self, group: str) -> None:
        self.placer.enqueue(group)

    def _cluster_changed(self, cluster: str, cause: str) -> None:
        self.placer.cluster_changed(cluster, cause)
        if cause == "ready":
            self.statuses.cluster_changed(cluster)

    def _schedule_changed(self, key: str, new: Schedule | None, old: Schedule | None) -> None:
        self.placer.schedule_changed(key, new, old)
        self.statuses.schedule_changed(key, new, old)

    async def run(self) -> None:
        """Follow the control plane, and decide while this process leads. Ends with Lost when another one leads."""
        leader = Leader(self.api, NAMESPACE, "nova-scheduler", self.identity)
        await self._ensure_namespace()
        informers = await self._informers()
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                for informer in informers.values():
                    tasks.create_task(informer.run())
                await wait_synced(informers, _SYNC_TIMEOUT)
                await leader.acquire()
                self.leading.set()
                loops: list[Coroutine[Any, Any, None]] = [
                    leader.keep(), self.clusters.run(), self.placer.run(), self.statuses.run(), self.recorder.run()]
                if self.joining:
                    loops += [self.joining.requests.run(), self.joining.run()]
                for loop in loops:
                    tasks.create_task(loop)
        finally:
            await asyncio.shield(leader.release())

    async def _informers(self) -> dict[str, Informer[Any]]:
        kinds = []
        for kind in objects.KINDS:
            for version in dict.fromkeys((kind.version, _NEWER.get(kind.kind, kind.version))):
                api_version = f"{kind.group}/{version}" if kind.group else version
                if await self.api.resource(api_version, kind.kind):
                    kinds.append(msgspec.structs.replace(kind, version=version))
                    break
            else:
                LOG.info("The control plane does not serve %s %s; such objects are not placed", kind.group, kind.kind)
        stored = Informer(self.api, schedules.SCHEDULES, schedules.decode, self._schedule_changed)
        return {**self.clusters.informers, "schedulegroups": self.groups.objects, "schedules": stored,
                **self.catalog.informers(self.api, kinds)}

    async def _ensure_namespace(self) -> None:
        try:
            await self.api.create("/api/v1/namespaces", {
                "apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise
