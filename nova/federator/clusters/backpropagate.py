"""Backpropagation in a workload cluster: reports ReplicaSets and Pods of copies with the annotation BACKPROPAGATE."""

import asyncio
import functools
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from nova.federator.api import objects
from nova.federator.api.names import AGENT, cluster_namespace
from nova.federator.clusters.copies import Copies
from nova.federator.clusters.observe import Copy
from nova.federator.kube.client import Api, ApiError, Object
from nova.federator.kube.informer import Informer
from nova.federator.store import backpropagations, schedules
from nova.federator.store.schedules import Schedule

LOG = logging.getLogger(__name__)
_INTERVAL = 1.0  # seconds between two writes of a report
_RETRY = 10.0  # seconds after which failed writes are repeated
_PATHS = ("/apis/apps/v1", "replicasets"), ("/api/v1", "pods")
_PREFIXES = ("nova.elotl.co/", "kubectl.kubernetes.io/last-applied-configuration")  # omitted labels, annotations
# Fields of pods that the control plane would refuse or interpret: it has no nodes and none of these classes.
_POD_FIELDS = ("nodeName", "priority", "priorityClassName", "preemptionPolicy", "overhead", "runtimeClassName",
               "ephemeralContainers", "serviceAccount")


class _Part(msgspec.Struct, frozen=True):
    """A ReplicaSet or Pod with a controller. ``body``: JSON of a backpropagations.Owned without ``parent``."""

    uid: str
    owner: str
    position: tuple[str, str, str]
    body: bytes


class Backpropagator:
    """Reports the ReplicaSets and Pods of copies. ``schedule``: returns a schedule by name. ``held``: returns True
    while this process is the agent of the cluster. Only namespaces with such copies are watched."""

    def __init__(self, nova: Api, member: Api, cluster: str, copies: Copies,
                 schedule: Callable[[str], Schedule | None], held: Callable[[], bool]) -> None:
        self.nova, self.member, self.copies, self.schedule, self.held = nova, member, copies, schedule, held
        self.namespace = cluster_namespace(cluster)
        self._watches: dict[str, tuple[list[Informer[_Part]], list[asyncio.Task[None]]]] = {}  # by namespace
        self._dirty: set[str] = set()  # namespaces with changes
        self._states: dict[str, tuple[str, str, str]] = {}  # name of a report -> uids of copy, origin and schedule
        self._written: dict[str, str] = {}  # name of a report -> digest of its last written content

    async def run(self) -> None:
        """Write reports until cancelled."""
        await self.copies.ready.wait()
        listed = False
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._follow(tasks)
                delay = _INTERVAL
                try:
                    if self.held():
                        if not listed:
                            page = await self.nova.list(backpropagations.path_of(self.namespace))
                            self._written |= dict.fromkeys((item["metadata"]["name"] for item in page["items"]), "")
                            listed = True
                        await self._publish()
                except ApiError as error:
                    delay = _RETRY
                    LOG.log(logging.WARNING if self.copies.shown else logging.DEBUG,
                            "Cannot report ReplicaSets and Pods, retrying in %.0f s: %s", delay, error)
                await asyncio.sleep(delay)

    def _follow(self, tasks: asyncio.TaskGroup) -> None:
        """Start and stop watches, so that the namespaces of shown copies are watched."""
        wanted = {copy.ref.namespace for copy in self.copies.shown.values() if copy.ref.namespace}
        for namespace in wanted - self._watches.keys():
            informers = [Informer(self.member, f"{prefix}/namespaces/{namespace}/{plural}", _part_of,
                                  functools.partial(self._changed, namespace))
                         for prefix, plural in _PATHS]
            self._watches[namespace] = informers, [tasks.create_task(informer.run()) for informer in informers]
            self._dirty.add(namespace)
        for namespace in self._watches.keys() - wanted:
            for task in self._watches.pop(namespace)[1]:
                task.cancel()

    def _changed(self, namespace: str, _key: str, new: _Part | None, old: _Part | None) -> None:
        if new != old:  # a change of the status alone does not count
            self._dirty.add(namespace)

    async def _publish(self) -> None:
        """Write the reports that changed, and delete reports on copies that are not shown any more."""
        dirty, self._dirty = self._dirty, set()
        shown = {backpropagations.name_of(copy.ref): copy for copy in self.copies.shown.values()}
        children: dict[str, dict[str, list[_Part]]] = {}
        try:
            for name in self._written.keys() - shown.keys():
                await self.nova.remove(backpropagations.path_of(self.namespace, name))
                del self._written[name]
                self._states.pop(name, None)
            for name, copy in shown.items():
                informers = self._watches.get(copy.ref.namespace, ([], []))[0]
                schedule = self.schedule(copy.schedule)
                if not informers or schedule is None or not all(informer.synced.is_set() for informer in informers):
                    dirty.add(copy.ref.namespace)
                    self._dirty.add(copy.ref.namespace)
                    continue
                state = copy.uid, copy.origin, schedule.uid
                if copy.ref.namespace not in dirty and self._states.get(name) == state:
                    continue
                if copy.ref.namespace not in children:
                    children[copy.ref.namespace] = _by_owner(informers)
                await self._write(name, copy, schedule, children[copy.ref.namespace])
                self._states[name] = state
        except ApiError:
            self._dirty |= dirty
            raise

    async def _write(self, name: str, copy: Copy, schedule: Schedule, children: Mapping[str, list[_Part]]) -> None:
        owned: list[dict[str, Any]] = []
        for part in children.get(copy.uid, ()):
            owned.append(msgspec.json.decode(part.body))
            owned += [{**msgspec.json.decode(pod.body), "parent": part.uid} for pod in children.get(part.uid, ())]
        owned.sort(key=lambda entry: str(entry["kind"]), reverse=True)  # ReplicaSets first
        content, omitted = backpropagations.pack(owned)
        body = backpropagations.render(self.namespace, copy.ref, copy.origin, schedule.name, schedule.uid, content,
                                       omitted)
        digest = schedules.digest_of(body)
        if self._written.get(name) != digest:
            await self.nova.apply(backpropagations.path_of(self.namespace, name), body, AGENT, force=True)
            self._written[name] = digest


def _by_owner(informers: Iterable[Informer[_Part]]) -> dict[str, list[_Part]]:
    """Return the ReplicaSets and Pods in caches by the uid of their controller, sorted by ``position``."""
    result: dict[str, list[_Part]] = {}
    for informer in informers:
        for part in sorted(informer.objects.values(), key=lambda part: part.position):
            result.setdefault(part.owner, []).append(part)
    return result


def _part_of(obj: Object) -> _Part | None:
    """Return the reported part of a ReplicaSet or Pod; None if it has no controller or is being deleted."""
    metadata = obj["metadata"]
    owner = next((entry for entry in metadata.get("ownerReferences") or () if entry.get("controller")), None)
    if owner is None or "deletionTimestamp" in metadata:
        return None
    kind = objects.ref_of(obj).kind
    spec = {key: value for key, value in (obj.get("spec") or {}).items() if kind != "Pod" or key not in _POD_FIELDS}
    shown = {field: {key: value for key, value in (metadata.get(field) or {}).items() if not key.startswith(_PREFIXES)}
             for field in ("labels", "annotations")}
    body = {"kind": kind, "uid": metadata["uid"], "name": metadata["name"], "spec": spec,
            "node": (obj.get("spec") or {}).get("nodeName") or "" if kind == "Pod" else "", **shown}
    return _Part(str(metadata["uid"]), str(owner.get("uid")),
                 (kind, str(metadata.get("creationTimestamp")), str(metadata["name"])),
                 msgspec.json.encode(body, order="sorted"))
