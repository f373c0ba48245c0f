"""Copies of users' objects in a workload cluster: watches of the kinds in use, and an index by schedule."""

import asyncio
import collections
import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from nova.federator.api import objects
from nova.federator.api.names import MANAGED_BY
from nova.federator.api.types import Ref, api_version
from nova.federator.clusters.observe import Copy, content_of, copy_of
from nova.federator.kube.client import Api, ApiError, Object, Resource
from nova.federator.kube.informer import Informer, key_of
from nova.federator.store.schedules import Phase

LOG = logging.getLogger(__name__)
_SYNC_TIMEOUT = 30.0  # timeout of the first list of a kind, in seconds
_ENDED = 10_000  # number of removed Jobs and Pods whose final state is stored; the oldest ones are dropped
_FORBIDDEN_RETRY = 30.0  # seconds after which kinds that the agent may not list are tried again
_RETRY = 2.0  # seconds after which the search for the copies of an earlier agent is repeated
_DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


class Unapplied(Exception):
    """An object cannot be applied. ``phase``, ``message``: for the status of its schedule."""

    def __init__(self, phase: Phase, message: str) -> None:
        super().__init__(message)
        self.phase, self.message = phase, message


class KindMissing(Unapplied):
    """The cluster does not have the kind of an object."""


class Definition(msgspec.Struct, frozen=True):
    """A custom resource definition of the cluster: its group, kind and served versions."""

    group: str
    kind: str
    versions: tuple[str, ...]
    established: bool


class Copies:
    """The copies of one cluster. ``changed``: called with the name of a schedule when one of its copies has changed.

    ``ready``: set once the copies of an earlier agent are in the index. Kinds without copies are not watched.
    ``shown``: by key, the copies whose ReplicaSets and Pods are shown in the control plane.
    ``ended``: the final state of Jobs and Pods that were removed from the cluster after their end, by key and origin.
    """

    def __init__(self, api: Api, changed: Callable[[str], None]) -> None:
        self.api, self.changed = api, changed
        self.kinds_changed: Callable[[], None] = lambda: None  # called when a definition of a kind changed
        self.ready = asyncio.Event()
        self.verified: dict[str, str] = {}  # uid of a copy -> digest of the fields owned after the last apply
        self.autoscalers = Informer(api, "/apis/autoscaling/v1/horizontalpodautoscalers", _target, self._scaled)
        self.definitions = Informer(api, _DEFINITIONS, _definition, self._defined)
        self._classes = Informer(api, "/apis/storage.k8s.io/v1/storageclasses", lambda obj: obj)
        self.shown: dict[str, Copy] = {}
        self._by_schedule: dict[str, dict[str, Copy]] = {}  # schedule -> key of Ref -> copy
        self._informers: dict[tuple[str, str], tuple[Informer[Copy], asyncio.Task[None]]] = {}
        self._waiting: dict[tuple[str, str], set[str]] = {}  # group, kind that the cluster lacks -> waiting schedules
        self.ended: collections.OrderedDict[tuple[str, str], Copy] = collections.OrderedDict()
        self._served: dict[tuple[str, str, str], Resource] = {}  # group, version, kind of manifests
        self._stale: set[str] = set()  # groups whose definitions changed since their discovery
        self._tasks: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        """Run the watches of copies until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            for informer in (self.autoscalers, self.definitions):
                tasks.create_task(informer.run())
            informers: list[Informer[Any]] = [self.autoscalers, self.definitions]
            refs: list[Ref] | None = None
            while refs is None or refs:
                try:
                    if refs is None:
                        for informer in informers:
                            await self._synced(informer)
                        refs = self._kinds()
                    refs = await self._scan(refs)
                    self.ready.set()
                    await asyncio.sleep(_FORBIDDEN_RETRY)
                except (ApiError, Unapplied) as error:
                    LOG.warning("Cannot list Nova's objects in the cluster, retrying in %.0f s: %s", _RETRY, error)
                    await asyncio.sleep(_RETRY)

    def _kinds(self) -> list[Ref]:
        """Return a reference without a name for each kind that may have copies."""
        refs = [Ref(kind.group, kind.version, kind.kind, "", "") for kind in objects.KINDS]
        return refs + [Ref(definition.group, definition.versions[0], definition.kind, "", "")
                       for definition in self.definitions.objects.values() if definition.versions]

    async def _scan(self, refs: list[Ref]) -> list[Ref]:
        """Watch the kinds of which an earlier agent left copies. Return those that the agent may not list."""
        forbidden = []
        for ref in refs:
            try:
                resource = await self.resource(ref)
                page = await self.api.get(resource.path(), labelSelector=MANAGED_BY, limit="1")
                if page.get("items"):
                    await self._informer(resource)
            except Unapplied:
                continue
            except ApiError as error:
                if error.status not in (403, 404, 405):
                    raise
                LOG.debug("Cannot list Nova's objects of kind %s: %s", ref.kind, error)
                if error.status == 403:
                    forbidden.append(ref)
        return forbidden

    def of(self, schedule: str) -> Mapping[str, Copy]:
        """Return the copies of a schedule, by the key of their Ref."""
        return self._by_schedule.get(schedule, {})

    def schedules(self, target: str) -> list[str]:
        """Return the schedules with copies that the agent of cluster ``target`` (its name as a label value) applied."""
        return [name for name, copies in self._by_schedule.items() if any(
            copy.target == target for copy in copies.values())]

    def __iter__(self) -> Iterator[Copy]:
        return iter([copy for copies in self._by_schedule.values() for copy in copies.values()])

    async def resource(self, ref: Ref, schedule: str = "") -> Resource:
        """Return the resource of an object, in another version of its group if the cluster does not serve the given
        one. Raises Unapplied if the cluster lacks the kind; ``schedule`` is processed again when the kind appears."""
        if ref.group in self._stale:
            self._stale.discard(ref.group)
            self._served = {key: resource for key, resource in self._served.items() if key[0] != ref.group}
            await self.api.discover(api_version(ref.group, ref.version))
        key = (ref.group, ref.version, ref.kind)
        if key in self._served:
            return self._served[key]
        versions = [ref.version]
        if ref.group:
            try:
                group = await self.api.get(f"/apis/{ref.group}")
                versions += [str(entry["version"]) for entry in group.get("versions") or ()]
            except ApiError as error:
                if not error.missing:
                    raise
        for version in versions:
            if resource := await self.api.resource(api_version(ref.group, version), ref.kind):
                self._served[key] = resource
                return resource
        raise self._missing(ref.group, ref.kind, schedule)

    def _missing(self, group: str, kind: str, schedule: str) -> KindMissing:
        """Return the error for a kind that the cluster lacks, and record that the schedule waits for the kind."""
        self._stale.add(group)
        if schedule:
            self._waiting.setdefault((group, kind), set()).add(schedule)
        return KindMissing("Failed", f"The cluster does not have the kind {kind} of {group or 'core'}.")

    async def cached(self, ref: Ref, schedule: str) -> tuple[Resource, Copy | None]:
        """Return the resource of an object, and its copy or None. Raises Unapplied, ApiError."""
        resource = await self.resource(ref, schedule)
        informer = await self._informer(resource, schedule)
        return resource, informer.objects.get(f"{ref.namespace}/{ref.name}" if resource.namespaced else ref.name)

    def put(self, resource: Resource, obj: Object, applied: bool = True) -> Copy:
        """Store the result of a write, unless the watch has reported a later state already. Return the written copy.
        ``applied``: False if the write was no apply, so that Nova may have lost the ownership of fields."""
        obj = {"apiVersion": resource.api_version, "kind": resource.kind, **obj}
        copy = copy_of(obj)
        if applied:
            self.verified[copy.uid] = copy.owned
        informer, _task = self._informers[resource.api_version, resource.kind]
        previous = informer.objects.get(key_of(obj))
        if informer.put(obj):
            self._index(copy, previous)
            if previous is not None and previous.schedule not in ("", copy.schedule):
                self.changed(previous.schedule)
        return copy

    def changed_later(self, delay: float, schedule: str) -> None:
        asyncio.get_running_loop().call_later(delay, self.changed, schedule)

    def autoscaled(self, ref: Ref) -> bool:
        """Return True if a HorizontalPodAutoscaler of the cluster sets the replicas of the object."""
        target = (ref.kind, ref.namespace, ref.name)
        return any(scaled == target for scaled in self.autoscalers.objects.values())

    def binds_late(self, copy: Copy) -> bool:
        """Return True for a claim whose volume is bound only when its first pod is scheduled."""
        storage_class = self._classes.objects.get(copy.storage_class) or {}
        return storage_class.get("volumeBindingMode") == "WaitForFirstConsumer"

    async def _informer(self, resource: Resource, schedule: str = "") -> Informer[Copy]:
        """Return the cache of the copies of a kind; start its watch at the first use."""
        key = (resource.api_version, resource.kind)
        if key not in self._informers:
            assert self._tasks is not None
            informer: Informer[Copy] = Informer(
                self.api, resource.path(), self._decode, self._noticed, labelSelector=MANAGED_BY)
            self._informers[key] = informer, self._tasks.create_task(self._follow(informer))
            if resource.kind == "PersistentVolumeClaim":
                self._tasks.create_task(self._classes.run())
        informer, task = self._informers[key]
        try:
            await self._synced(informer)
        except ApiError as error:
            if not error.missing:
                raise
            if self._informers.pop(key, None):
                task.cancel()
            raise self._missing(resource.group, resource.kind, schedule) from None
        return informer

    async def _synced(self, informer: Informer[Any]) -> None:
        """Wait for the first list. Raises Unapplied if the agent may not list, ApiError after _SYNC_TIMEOUT."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_SYNC_TIMEOUT):
                while not informer.synced.is_set():
                    if informer.error is not None and informer.error.missing:
                        raise informer.error
                    if informer.error is not None and informer.error.status in (401, 403, 405):
                        raise Unapplied("Failed", f"The agent cannot watch {informer.path}: {informer.error}")
                    await asyncio.sleep(0.02)
                return
        raise ApiError(f"The cluster did not list {informer.path} within {_SYNC_TIMEOUT:.0f} s.")

    async def _follow(self, informer: Informer[Copy]) -> None:
        """Run a watch until cancelled; return without an error if its kind was removed."""
        try:
            await informer.run()
        except asyncio.CancelledError:
            if any(current is informer for current, _task in self._informers.values()):
                raise

    def _decode(self, obj: Object) -> Copy:
        copy = copy_of(obj)
        return copy if copy.uid in self.verified else msgspec.structs.replace(copy, content=content_of(obj))

    def _noticed(self, _key: str, new: Copy | None, old: Copy | None) -> None:
        self._index(new, old)
        if new is None and old is not None:
            self.verified.pop(old.uid, None)
            if old.finished:
                self.ended[old.ref.key, old.origin] = old
                while len(self.ended) > _ENDED:
                    self.ended.popitem(last=False)
        if new != old:
            for name in {copy.schedule for copy in (old, new) if copy is not None and copy.schedule}:
                self.changed(name)

    def _index(self, new: Copy | None, old: Copy | None) -> None:
        if old is not None and (new is None or new.schedule != old.schedule):
            copies = self._by_schedule.get(old.schedule, {})
            copies.pop(old.ref.key, None)
            if not copies:
                self._by_schedule.pop(old.schedule, None)
        if old is not None and old.shown:
            self.shown.pop(old.ref.key, None)
        if new is not None and new.schedule and new.shown and not new.deleting:
            self.shown[new.ref.key] = new
        if new is not None and new.schedule:
            self._by_schedule.setdefault(new.schedule, {})[new.ref.key] = new

    def _scaled(self, _key: str, new: tuple[str, str, str] | None, old: tuple[str, str, str] | None) -> None:
        """Process the schedules whose replicas an autoscaler began or ceased to set."""
        if new == old:
            return
        for copy in self:
            if (copy.ref.kind, copy.ref.namespace, copy.ref.name) in (new, old):
                self.changed(copy.schedule)

    def _defined(self, _key: str, new: Definition | None, old: Definition | None) -> None:
        """Process the schedules that waited for a new kind. Handle the copies of a removed kind as deleted."""
        if new != old:
            self.kinds_changed()
        for definition in (new, old):
            if definition is not None:
                self._stale.add(definition.group)
        if new is not None and new.established:
            for name in self._waiting.pop((new.group, new.kind), ()):
                self.changed(name)
        if new is None and old is not None:
            for version in old.versions:
                informer, task = self._informers.pop((f"{old.group}/{version}", old.kind), (None, None))
                if informer is not None and task is not None:
                    task.cancel()
                    for key, copy in list(informer.objects.items()):
                        self._noticed(key, None, copy)


def _target(obj: Object) -> tuple[str, str, str]:
    target: Any = (obj.get("spec") or {}).get("scaleTargetRef") or {}
    return str(target.get("kind")), str(obj["metadata"].get("namespace")), str(target.get("name"))


def _definition(obj: Object) -> Definition:
    spec = obj["spec"]
    versions = tuple(str(entry["name"]) for entry in spec.get("versions") or () if entry.get("served"))
    return Definition(str(spec["group"]), str(spec["names"]["kind"]), versions,
                      objects.holds(obj.get("status"), "Established"))
