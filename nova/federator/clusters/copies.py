"""Copies of users' objects in a workload cluster: applied, observed, and removed again.

Objects that Nova did not create are never changed or deleted. Before something is deleted, its label is checked on the
server, and the deletion names its uid.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

from nova.federator.api import objects
from nova.federator.api.names import ADOPT, AGENT, CREATED_FOR, MANAGED_BY, NAME_LABEL, TARGET
from nova.federator.api.types import Ref
from nova.federator.kube.client import Api, ApiError, Object, Resource
from nova.federator.kube.informer import Informer
from nova.federator.store.schedules import Entry, Observed, Phase, Schedule

LOG = logging.getLogger(__name__)
DIGEST = "nova.elotl.co/digest"  # annotation of a copy: the manifest that was applied
ORIGIN = "nova.elotl.co/uid"  # annotation of a copy: the uid of the user's object
_GONE_TIMEOUT = 300.0  # seconds to wait for the end of a copy before the next try
_ONCE = {"Job", "Pod"}  # kinds that are not changed after their creation: a new uid makes a new object


class Unapplied(Exception):
    """An object cannot be applied. ``phase``, ``message``: for the status of its schedule."""

    def __init__(self, phase: Phase, message: str) -> None:
        super().__init__(message)
        self.phase, self.message = phase, message


class Copies:
    """The copies of one cluster. ``changed``: called with the name of a schedule when a copy of it changed."""

    def __init__(self, api: Api, cluster: str, changed: Callable[[str], None]) -> None:
        self.api, self.cluster, self.changed = api, cluster, changed
        self._informers: dict[tuple[str, str], Informer[Object]] = {}
        self._autoscalers: Informer[Object] | None = None
        self._tasks: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        """Run the watches of copies until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            self._autoscalers = Informer(self.api, "/apis/autoscaling/v1/horizontalpodautoscalers", lambda obj: obj)
            tasks.create_task(self._autoscalers.run())
            await asyncio.get_running_loop().create_future()

    def _noticed(self, _key: str, new: Object | None, old: Object | None) -> None:
        labels = ((new or old or {}).get("metadata") or {}).get("labels") or {}
        if name := labels.get(MANAGED_BY):
            self.changed(name)

    async def _informer(self, resource: Resource) -> Informer[Object]:
        """Return the cache of the copies of a kind; start its watch at the first use."""
        key = (resource.api_version, resource.kind)
        if key not in self._informers:
            assert self._tasks is not None
            informer = Informer(self.api, resource.path(), lambda obj: obj, self._noticed, labelSelector=MANAGED_BY)
            self._informers[key] = informer
            self._tasks.create_task(informer.run())
        informer = self._informers[key]
        await asyncio.wait_for(informer.synced.wait(), 30.0)
        return informer

    async def _resource(self, ref: Ref) -> Resource:
        resource = await self.api.resource(f"{ref.group}/{ref.version}" if ref.group else ref.version, ref.kind)
        if resource is None:
            raise Unapplied("Failed", f"The cluster does not have the kind {ref.kind} of {ref.group or 'core'}.")
        return resource

    async def _cached(self, ref: Ref) -> tuple[Resource, Object | None]:
        resource = await self._resource(ref)
        informer = await self._informer(resource)
        return resource, informer.objects.get(f"{ref.namespace}/{ref.name}" if ref.namespace else ref.name)

    async def apply(self, schedule: Schedule, entry: Entry, manifest: dict[str, Any]) -> Observed:
        """Make a copy equal to its manifest and return its state. Nothing is sent if it is equal already. Raises
        ApiError for failures that a repetition may heal."""
        ref = entry.ref
        try:
            resource, copy = await self._cached(ref)
            if copy is None or not _current(copy, entry, schedule):
                copy = await self._apply(schedule, entry, manifest, resource, copy)
            phase, message = phase_of(copy)
            return Observed(ref, phase, entry.digest, message, dict(copy.get("status") or {}))
        except Unapplied as error:
            return Observed(ref, error.phase, "", error.message)
        except ApiError as error:
            if error.status in (400, 403, 409, 422):
                return Observed(ref, "Conflict" if error.conflict else "Failed", "", error.message[:1000])
            raise

    async def _apply(self, schedule: Schedule, entry: Entry, manifest: dict[str, Any], resource: Resource,
                     copy: Object | None) -> Object:
        ref = entry.ref
        path = resource.path(ref.namespace, ref.name)
        if copy is None:
            copy = await self._existing(path)
            if copy is not None and not _owned(copy, schedule):
                self._check_foreign(copy, manifest)
        elif not _owned(copy, schedule):
            self._check_foreign(copy, manifest)
        if copy is not None and ref.kind in _ONCE:
            if _annotation(copy, ORIGIN) == entry.uid:
                return copy
            await self._delete(path, copy)
            await self._gone(path)
        if ref.namespace:
            await self._ensure_namespace(ref.namespace, schedule)
        body = self._body(schedule, entry, manifest)
        if self._autoscaled(ref) and isinstance(body.get("spec"), dict):
            body["spec"] = {key: value for key, value in body["spec"].items() if key != "replicas"}
        return await self.api.apply(path, body, AGENT, force=copy is not None)

    def _check_foreign(self, copy: Object, manifest: Mapping[str, Any]) -> None:
        """Raise Unapplied if an object belongs to somebody else and the user has not asked to take it over."""
        annotations = (manifest.get("metadata") or {}).get("annotations") or {}
        if annotations.get(ADOPT) == "true" or (copy["metadata"].get("labels") or {}).get(CREATED_FOR):
            return
        managers = sorted({str(entry.get("manager")) for entry in copy["metadata"].get("managedFields") or ()})
        raise Unapplied("Conflict", f"The cluster has an object of this name that Nova did not create (field managers:"
                        f" {', '.join(managers) or 'unknown'}). Set the annotation {ADOPT}=true to take it over.")

    def _body(self, schedule: Schedule, entry: Entry, manifest: dict[str, Any]) -> dict[str, Any]:
        metadata = dict(manifest.get("metadata") or {})
        metadata["labels"] = {**(metadata.get("labels") or {}), MANAGED_BY: schedule.name, TARGET: self.cluster[:63]}
        metadata["annotations"] = {**(metadata.get("annotations") or {}), DIGEST: entry.digest, ORIGIN: entry.uid}
        return {**manifest, "metadata": metadata}

    def _autoscaled(self, ref: Ref) -> bool:
        """Return True if a HorizontalPodAutoscaler of the cluster sets the replicas of the object."""
        autoscalers = self._autoscalers.objects.values() if self._autoscalers else ()
        return any((target := (scaler.get("spec") or {}).get("scaleTargetRef") or {}).get("kind") == ref.kind
                   and target.get("name") == ref.name and scaler["metadata"].get("namespace") == ref.namespace
                   for scaler in autoscalers)

    async def _existing(self, path: str) -> Object | None:
        try:
            return await self.api.get(path)
        except ApiError as error:
            if error.missing:
                return None
            raise

    async def _ensure_namespace(self, name: str, schedule: Schedule) -> None:
        if any(entry.ref.kind == "Namespace" and entry.ref.name == name for entry in schedule.entries):
            return
        path = f"/api/v1/namespaces/{name}"
        if await self._existing(path) is not None:
            return
        try:
            await self.api.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {
                "name": name, "labels": {CREATED_FOR: schedule.name, NAME_LABEL: name}}})
        except ApiError as error:
            if not error.conflict:
                raise

    async def remove(self, ref: Ref, schedule: str) -> bool:
        """Delete a copy if this schedule owns it. Return True once the copy does not exist any more."""
        try:
            resource = await self._resource(ref)
        except Unapplied:
            return True
        path = resource.path(ref.namespace, ref.name)
        copy = await self._existing(path)
        if copy is None or (copy["metadata"].get("labels") or {}).get(MANAGED_BY) != schedule:
            return True
        if "deletionTimestamp" not in copy["metadata"]:
            if ref.kind == "Namespace" and not ref.group:
                foreign, own = await self._content(ref.name)
                if own:
                    return False  # until these are removed, too
                if foreign:
                    LOG.warning("Namespace %s stays in the cluster: it has %s, which is not Nova's", ref.name, foreign)
                    await self._disown(path, copy)
                    return True
            await self._delete(path, copy)
        try:
            await self._gone(path, copy["metadata"]["uid"])
        except TimeoutError:
            return False
        return True

    async def remove_namespace(self, name: str) -> None:
        """Delete a namespace that an agent created, if no copy is left in it."""
        path = f"/api/v1/namespaces/{name}"
        copy = await self._existing(path)
        if copy is None or CREATED_FOR not in (copy["metadata"].get("labels") or {}):
            return
        if any(key.startswith(f"{name}/") for informer in self._informers.values() for key in informer.objects):
            return
        if await self._content(name) == ("", ""):
            await self._delete(path, copy)

    async def _content(self, namespace: str) -> tuple[str, str]:
        """Return an object in a namespace that Nova did not create and one that Nova did, or empty texts. Objects that
        clusters create by themselves do not count, nor do objects that belong to others."""
        foreign = own = ""
        for kind in objects.KINDS:
            if not kind.namespaced or await self.api.resource(
                    f"{kind.group}/{kind.version}" if kind.group else kind.version, kind.kind) is None:
                continue
            page = await self.api.list(kind.path(namespace))
            for item in page["items"]:
                obj = {"apiVersion": page.get("apiVersion"), "kind": kind.kind, **item}
                metadata = item["metadata"]
                if objects.internal(obj) or metadata.get("ownerReferences"):
                    continue
                if MANAGED_BY in (metadata.get("labels") or {}):
                    own = f"{kind.kind} {metadata['name']}"
                elif "deletionTimestamp" not in metadata:
                    foreign = f"{kind.kind} {metadata['name']}"
        return foreign, own

    async def _disown(self, path: str, copy: Object) -> None:
        await self.api.patch(path, {"metadata": {
            "labels": {MANAGED_BY: None, TARGET: None}, "annotations": {DIGEST: None, ORIGIN: None},
            "uid": copy["metadata"]["uid"]}})

    async def _delete(self, path: str, copy: Object) -> None:
        try:
            await self.api.delete(path, propagation="Foreground", uid=copy["metadata"]["uid"])
        except ApiError as error:
            if not error.missing:
                raise

    async def _gone(self, path: str, uid: str = "") -> None:
        """Wait until an object does not exist any more, or exists with another uid. Raises TimeoutError."""
        delay = 0.05
        async with asyncio.timeout(_GONE_TIMEOUT):
            while True:
                copy = await self._existing(path)
                if copy is None or (uid and copy["metadata"]["uid"] != uid):
                    return
                await asyncio.sleep(delay)
                delay = min(delay * 1.6, 2.0)


def _annotation(copy: Object, name: str) -> str:
    return str((copy["metadata"].get("annotations") or {}).get(name, ""))


def _owned(copy: Object, schedule: Schedule) -> bool:
    return (copy["metadata"].get("labels") or {}).get(MANAGED_BY) == schedule.name


def _current(copy: Object, entry: Entry, schedule: Schedule) -> bool:
    """Return True if a copy has the manifest of the entry, and nobody changed fields that Nova set since."""
    return (_owned(copy, schedule) and _annotation(copy, DIGEST) == entry.digest
            and _annotation(copy, ORIGIN) == entry.uid and "deletionTimestamp" not in copy["metadata"])


def phase_of(copy: Object) -> tuple[Phase, str]:
    """Return the phase of a copy and a message that explains a phase other than Ready."""
    status, spec = copy.get("status") or {}, copy.get("spec") or {}
    current = int(status.get("observedGeneration") or 0) >= int(copy["metadata"].get("generation") or 0)
    match copy.get("kind"):
        case "Deployment" | "ReplicaSet" | "StatefulSet":
            wanted = spec.get("replicas", 1)
            ready = status.get("availableReplicas" if copy["kind"] != "StatefulSet" else "readyReplicas") or 0
            updated = status.get("updatedReplicas", wanted if copy["kind"] == "ReplicaSet" else 0) or 0
            if current and ready >= wanted and (updated >= wanted or copy["kind"] == "StatefulSet"):
                return "Ready", ""
            return "Applied", f"{ready} of {wanted} replicas are available"
        case "DaemonSet":
            wanted, ready = status.get("desiredNumberScheduled") or 0, status.get("numberReady") or 0
            return ("Ready", "") if current and ready >= wanted else ("Applied", f"{ready} of {wanted} pods are ready")
        case "Pod":
            conditions = {entry.get("type"): entry.get("status") for entry in status.get("conditions") or ()}
            if status.get("phase") == "Succeeded" or conditions.get("Ready") == "True":
                return "Ready", ""
            return ("Failed" if status.get("phase") == "Failed" else "Applied"), f"the pod is {status.get('phase')}"
        case "Job":
            conditions = {entry.get("type"): entry.get("status") for entry in status.get("conditions") or ()}
            if conditions.get("Failed") == "True":
                return "Failed", "the job failed"
            return "Ready", ""  # running or complete
        case "PersistentVolumeClaim" if status.get("phase") == "Lost":
            return "Failed", "the volume of the claim is lost"
    return "Ready", ""
