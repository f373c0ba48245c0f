"""Application and deletion of copies in a workload cluster.

Objects that Nova did not create are never changed or deleted. Before the agent deletes an object, it reads the label of
the object from the API server. The request to delete contains the object's uid as a precondition.
"""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from nova.federator.api import objects
from nova.federator.api.names import ADOPT, AGENT, CREATED_FOR, MANAGED_BY, NAME_LABEL, TARGET, label_value
from nova.federator.api.types import Ref
from nova.federator.clusters.copies import Copies, KindMissing, Unapplied
from nova.federator.clusters.observe import (
    DIGEST,
    FENCE_AFTER,
    FENCED,
    NEVER_CHANGED,
    ORIGIN,
    Copy,
    contains,
    copy_of,
    managers_of,
    owner_of,
)
from nova.federator.kube.client import Api, ApiError, Object, Resource
from nova.federator.store.schedules import Entry, Observed, Schedule

LOG = logging.getLogger(__name__)
SCALE_MANAGER = "nova-agent-scale"  # field manager that owns the number of replicas of autoscaled objects
_OWN_MANAGERS = {AGENT, SCALE_MANAGER, "nova-agent-fence"}
_LONGEST_DELAY = 60.0  # longest time between two reverts of an object that another controller keeps changing, seconds
_TEXT = 1000  # characters of a message in a report; longer messages are cut
# Fields of metadata that an API server sets and that cannot be applied.
_SERVER_FIELDS = ("uid", "resourceVersion", "generation", "creationTimestamp", "managedFields", "selfLink",
                  "deletionTimestamp", "deletionGracePeriodSeconds", "ownerReferences")
# Kinds that clusters and controllers create by themselves: a namespace with no other objects counts as empty.
_BY_CLUSTER = {"Event", "Endpoints", "EndpointSlice", "PodMetrics", "ControllerRevision", "Lease"}


class Applier:
    """Applies and removes copies. ``released``: returns True if the schedule of a name does not list an object."""

    def __init__(self, api: Api, cluster: str, copies: Copies, released: Callable[[str, Ref], bool]) -> None:
        self.api, self.cluster, self.copies, self.released = api, cluster, copies, released
        self._reverts: dict[str, tuple[int, float]] = {}  # uid of a copy -> number and monotonic time of its reverts

    async def apply(self, schedule: Schedule, entry: Entry, manifest: dict[str, Any],
                    previous: Observed | None) -> Observed:
        """Make a copy equal to its manifest and return the state of the copy. Sends nothing if they are equal already.
        ``previous``: the last report on the object. Raises ApiError if the cluster is unreachable."""
        ref = entry.ref
        try:
            resource, copy = await self.copies.cached(ref, schedule.name)
            if (copy is None and previous is not None and previous.uid == entry.uid
                    and objects.finished(ref, previous.status)):
                return previous  # a Job or Pod that was deleted after its end must not run again
            copy = copy or self.copies.ended.get((ref.key, entry.uid))
            if copy is None or not self._current(copy, schedule, entry, manifest):
                copy = await self._apply(schedule, entry, manifest, resource)
        except Unapplied as error:
            return Observed(ref, error.phase, "", error.message[:_TEXT], uid=entry.uid)
        except ApiError as error:
            if error.status == 0:
                raise
            return Observed(ref, "Conflict" if error.conflict else "Failed", "", _text(error), uid=entry.uid)
        phase, message = copy.phase, copy.message
        if phase == "Applied" and ref.kind == "PersistentVolumeClaim" and self.copies.binds_late(copy):
            phase = "Ready"
        return Observed(ref, phase, entry.digest, message, copy.status, entry.uid)

    def _current(self, copy: Copy, schedule: Schedule, entry: Entry, manifest: Mapping[str, Any]) -> bool:
        """Return True if a copy has the manifest of the entry, and no client has changed fields that Nova applied."""
        if (copy.schedule, copy.origin, copy.deleting) != (schedule.name, entry.uid, False):
            return False
        if copy.ref.kind in NEVER_CHANGED:
            return copy.finished or copy.fence_after == fence_after(schedule)
        if copy.digest != entry.digest or copy.fence_after != fence_after(schedule):
            return False
        if copy.content and copy.uid not in self.copies.verified and contains(
                msgspec.json.decode(copy.content), self._body(schedule, entry, manifest, copy.ref)):
            self.copies.verified[copy.uid] = copy.owned
        spec = manifest.get("spec")
        replicas = spec.get("replicas") if isinstance(spec, dict) else None
        scaled = replicas is not None and self.copies.autoscaled(copy.ref)
        if self.copies.verified.get(copy.uid) == copy.owned and (
                scaled or replicas is None or copy.replicas == replicas) and not (scaled and copy.owns_replicas):
            return True
        return not self._may_revert(copy)

    def _may_revert(self, copy: Copy) -> bool:
        """Return True if a changed copy may be reverted now. Otherwise, process its schedule again later."""
        count, at = self._reverts.get(copy.uid, (0, -_LONGEST_DELAY))
        now, delay = time.monotonic(), min(0.1 * 2 ** min(count, 10), _LONGEST_DELAY)
        if now - at > 2 * _LONGEST_DELAY:
            count = 0
        elif now - at < delay:
            self.copies.changed_later(at + delay - now, copy.schedule)
            return False
        if len(self._reverts) > 10_000:
            self._reverts.clear()
        self._reverts[copy.uid] = count + 1, now
        LOG.info("%s was changed in the workload cluster: restored the fields that Nova owns", copy.ref.key)
        return True

    async def _apply(self, schedule: Schedule, entry: Entry, manifest: dict[str, Any], resource: Resource) -> Copy:
        ref = entry.ref
        path = resource.path(ref.namespace, ref.name)
        existing = await self.api.find(path)
        force = False
        if existing is not None:
            if owner_of(existing) != schedule.name:
                self._check_foreign(existing, manifest, ref)
                force = True
            elif "deletionTimestamp" in existing["metadata"]:
                raise Unapplied("Pending", "The previous object of this name is being deleted.")
            else:
                force = _annotation(existing, DIGEST) == entry.digest
            if ref.kind in NEVER_CHANGED:
                if _annotation(existing, ORIGIN) == entry.uid and owner_of(existing) == schedule.name:
                    seconds = fence_after(schedule)
                    return self.copies.put(resource, await self.api.patch(path, {"metadata": {
                        "uid": existing["metadata"]["uid"],
                        "annotations": {FENCE_AFTER: None if seconds is None else f"{seconds:g}"}}}))
                await self._delete(path, existing)
                raise Unapplied("Pending", "The previous object of this name is being deleted.")
        body = {**self._body(schedule, entry, manifest, ref), "apiVersion": resource.api_version}
        if existing is not None and self.copies.autoscaled(ref):
            await self._hand_over_replicas(path, existing, resource)
        return self.copies.put(resource, await self._send(schedule, path, body, existing, force, manifest))

    async def _send(self, schedule: Schedule, path: str, body: dict[str, Any], existing: Object | None, force: bool,
                    manifest: Mapping[str, Any]) -> Object:
        try:
            return await self.api.apply(path, body, AGENT, force=force)
        except ApiError as error:
            if error.missing and error.details.get("kind") == "namespaces":
                await self._create_namespace(str(body["metadata"]["namespace"]), schedule)
                return await self.api.apply(path, body, AGENT, force=force)
            if error.missing:
                await self.api.discover(str(body["apiVersion"]))
                raise Unapplied("Failed", f"The cluster does not have the kind {body['kind']} any more.") from None
            if not error.conflict or existing is None:
                raise
            managers = {str(cause.get("message")).partition('"')[2].partition('"')[0]
                        for cause in error.details.get("causes") or ()}
            copy = copy_of({"apiVersion": body["apiVersion"], "kind": body["kind"], **existing})
            lost = copy.uid in self.copies.verified and self.copies.verified[copy.uid] != copy.owned
            if not (managers <= _OWN_MANAGERS or lost or _adopted(manifest)):
                raise Unapplied("Conflict", f"Fields belong to other managers ({', '.join(sorted(managers))}):"
                                f" {_fields(error)}. Set the annotation {ADOPT}=true to take them over.") from None
            return await self.api.apply(path, body, AGENT, force=True)

    def _check_foreign(self, existing: Object, manifest: Mapping[str, Any], ref: Ref) -> None:
        """Raise Unapplied if an object does not belong to Nova and the user has not requested to take it over."""
        owner = owner_of(existing)
        if owner and not self.released(owner, ref):
            raise Unapplied("Conflict", f"The object belongs to another schedule of this cluster: {owner}.")
        if owner or _adopted(manifest) or (ref.kind == "Namespace" and _label(existing, CREATED_FOR)):
            return
        raise Unapplied("Conflict", f"The cluster has an object of this name that Nova did not create (field managers:"
                        f" {managers_of(existing)}). Set the annotation {ADOPT}=true to take it over.")

    async def _hand_over_replicas(self, path: str, existing: Object, resource: Resource) -> None:
        """Make SCALE_MANAGER an owner of the replicas: the server resets a field that its only owner gives up."""
        metadata, replicas = existing["metadata"], (existing.get("spec") or {}).get("replicas")
        if replicas is None or not copy_of({"kind": resource.kind, "apiVersion": resource.api_version,
                                            **existing}).owns_replicas:
            return
        body = {"apiVersion": resource.api_version, "kind": resource.kind, "spec": {"replicas": replicas},
                "metadata": {key: metadata[key] for key in ("name", "namespace") if key in metadata}}
        await self.api.apply(path, body, SCALE_MANAGER, force=True)

    def _body(self, schedule: Schedule, entry: Entry, manifest: Mapping[str, Any], ref: Ref) -> dict[str, Any]:
        """Return the manifest to apply, with Nova's labels and annotations, and without fields that servers set."""
        metadata = {key: value for key, value in (manifest.get("metadata") or {}).items() if key not in _SERVER_FIELDS}
        metadata["labels"] = {**(metadata.get("labels") or {}), MANAGED_BY: schedule.name,
                              TARGET: label_value(self.cluster)}
        metadata["annotations"] = {**(metadata.get("annotations") or {}), DIGEST: entry.digest, ORIGIN: entry.uid}
        if (seconds := fence_after(schedule)) is not None:
            metadata["annotations"][FENCE_AFTER] = f"{seconds:g}"
        body = {**manifest, "metadata": metadata}
        body.pop("status", None)
        if isinstance(body.get("spec"), dict) and self.copies.autoscaled(ref):
            body["spec"] = {key: value for key, value in body["spec"].items() if key != "replicas"}
        return body

    async def _create_namespace(self, name: str, schedule: Schedule) -> None:
        if any(entry.ref.kind == "Namespace" and entry.ref.name == name for entry in schedule.entries):
            raise Unapplied("Failed", f"The namespace {name} of this schedule does not exist yet.")
        if await self.api.ensure("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {
                "name": name, "labels": {CREATED_FOR: schedule.name, NAME_LABEL: name}}}):
            LOG.info("Created namespace %s for schedule %s", name, schedule.name)

    async def remove(self, ref: Ref, schedule: str) -> bool:
        """Delete a copy if the schedule of this name owns it. Return False while the copy is being deleted (the watch
        of copies reports its end), and True if the copy does not exist any more or belongs to another schedule."""
        try:
            resource, _copy = await self.copies.cached(ref, "")
        except KindMissing:
            return True
        path = resource.path(ref.namespace, ref.name)
        copy = await self.api.find(path)
        if copy is None or owner_of(copy) != schedule:
            return True
        if "deletionTimestamp" in copy["metadata"]:
            return False
        if ref.kind in ("Namespace", "CustomResourceDefinition"):
            foreign, own = await (self._content(ref.name) if ref.kind == "Namespace" else self._instances(copy))
            if own:
                return False  # the objects inside are deleted first
            if foreign:
                LOG.warning("Keeping %s %s in the cluster: it has objects that Nova did not create, for example %s",
                            ref.kind, ref.name, foreign)
                await self._disown(path, copy)
                return True
        await self._delete(path, copy)
        return False

    async def remove_namespace(self, name: str) -> None:
        """Delete a namespace that an agent created, if it is empty."""
        path = f"/api/v1/namespaces/{name}"
        namespace = await self.api.find(path)
        if namespace is None or not _label(namespace, CREATED_FOR) or "deletionTimestamp" in namespace["metadata"]:
            return
        foreign, own = await self._content(name)
        if foreign and not own:
            LOG.info("Not deleting namespace %s from the cluster: it contains %s", name, foreign)
        elif not own:
            await self._delete(path, namespace)
            LOG.info("Deleted namespace %s, which Nova had created: it is empty", name)

    async def _content(self, namespace: str) -> tuple[str, str]:
        """Return kind and name of two objects in a namespace: one that Nova did not create, and one that Nova created;
        empty texts if there is none. Ignores objects of _BY_CLUSTER, and objects whose owner is counted itself."""
        foreign = own = ""
        resources = await self._namespaced()
        kinds = {resource.kind for resource in resources}  # owners of these kinds are counted themselves
        for resource in resources:
            try:
                page = await self.api.list(resource.path(namespace))
            except ApiError as error:
                if error.status not in (403, 404, 405):
                    raise
                if error.status == 403:
                    foreign = foreign or f"perhaps objects of kind {resource.kind}, which the agent may not list"
                continue
            for item in page["items"]:
                obj = {"apiVersion": resource.api_version, "kind": resource.kind, **item}
                metadata = item["metadata"]
                if objects.internal(obj) or any(owner.get("kind") in kinds for owner in metadata.get(
                        "ownerReferences") or ()):
                    continue
                if owner_of(item):
                    own = f"{resource.kind} {metadata['name']}"
                elif "deletionTimestamp" not in metadata:
                    foreign = f"{resource.kind} {metadata['name']}"
        return foreign, own

    async def _instances(self, definition: Object) -> tuple[str, str]:
        """Return kind and name of two objects of a custom resource, as :meth:`_content` does for a namespace."""
        spec = definition["spec"]
        version = next((entry["name"] for entry in spec["versions"] if entry.get("served")), "")
        try:
            page = await self.api.list(f"/apis/{spec['group']}/{version}/{spec['names']['plural']}")
        except ApiError as error:
            if not error.missing:
                raise
            return "", ""
        names = {bool(owner_of(item)): f"{spec['names']['kind']} {item['metadata']['name']}" for item in page["items"]}
        return names.get(False, ""), names.get(True, "")

    async def _namespaced(self) -> list[Resource]:
        """Return the namespaced kinds that the cluster can list, without those of _BY_CLUSTER."""
        groups = await self.api.get("/apis")
        versions = ["v1", *(str(group["preferredVersion"]["groupVersion"]) for group in groups.get("groups") or ())]
        return [resource for version in versions for resource in (await self.api.discover(version)).values()
                if resource.namespaced and "list" in resource.verbs and resource.kind not in _BY_CLUSTER]

    async def _disown(self, path: str, copy: Object) -> None:
        await self.api.patch(path, {"metadata": {
            "labels": {MANAGED_BY: None, TARGET: None},
            "annotations": {DIGEST: None, ORIGIN: None, FENCE_AFTER: None, FENCED: None},
            "uid": copy["metadata"]["uid"]}})

    async def _delete(self, path: str, copy: Object) -> None:
        await self.api.remove(path, "Foreground", copy["metadata"]["uid"])


def fence_after(schedule: Schedule) -> float | None:
    """Return the seconds without a heartbeat after which the workloads of a schedule stop, or None for never."""
    return float(schedule.fence_after) if schedule.failover == "Fenced" else None


def _annotation(obj: Object, name: str) -> str:
    return str((obj["metadata"].get("annotations") or {}).get(name, ""))


def _label(obj: Object, name: str) -> str:
    return str((obj["metadata"].get("labels") or {}).get(name, ""))


def _adopted(manifest: Mapping[str, Any]) -> bool:
    return ((manifest.get("metadata") or {}).get("annotations") or {}).get(ADOPT) == "true"


def _fields(error: ApiError) -> str:
    return ", ".join(str(cause.get("field")) for cause in error.details.get("causes") or () if cause.get("field"))


def _text(error: ApiError) -> str:
    """Return the message of a refused request, with the fields that the server names."""
    fields = _fields(error)
    return f"{f'{fields}: ' if fields and error.status == 422 else ''}{error.message}"[:_TEXT]
