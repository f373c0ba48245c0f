"""Backpropagation in the control plane: shows the ReplicaSets and Pods that objects own in clusters, without status.

A shown object belongs to the user's object, so the garbage collector of the control plane deletes both together. The
label BACKPROPAGATED keeps it from being placed. Annotations identify the original.
"""

import asyncio
import hashlib
import logging
from collections.abc import Mapping
from typing import Any

import msgspec

from nova.common.errors import Invalid
from nova.federator.api.keyed_queue import KeyedQueue
from nova.federator.api.names import BACKPROPAGATE, BACKPROPAGATED, BACKPROPAGATED_ORIGIN
from nova.federator.api.objects import Kind
from nova.federator.api.types import Ref
from nova.federator.controllers.catalog import Catalog, Template
from nova.federator.controllers.clusters import Clusters
from nova.federator.controllers.events import Recorder
from nova.federator.kube.client import Api, ApiError, Object
from nova.federator.kube.informer import Informer, key_of, start_optional
from nova.federator.store import backpropagations
from nova.federator.store.backpropagations import Owned, Published
from nova.federator.store.schedules import Schedule, digest_of

LOG = logging.getLogger(__name__)
KINDS = {"ReplicaSet": Kind("apps", "v1", "ReplicaSet", "replicasets", True),
         "Pod": Kind("", "v1", "Pod", "pods", True)}
# Annotations of shown objects: key of the user's object, uid of the original, digest of the content, node of a Pod.
_OBJECT, _UID, _DIGEST, _NODE = (f"{BACKPROPAGATED}.{name}" for name in ("object", "uid", "digest", "node"))
_WORKERS = 4
_INTERVAL = 1.0  # seconds between two comparisons of an object, however often an agent reports
_RETRY = 5.0  # seconds after which a failed write is repeated
_REFUSED = (400, 403, 413, 422)  # statuses of objects that the control plane does not accept
_DELETED = 1.0  # seconds before a deleted object is created again: the deletion of its owner may be reported later
_NAME = 245  # characters of a name to which a suffix is added


class _Shown(msgspec.Struct, frozen=True):
    """An object that backpropagation has created. ``uid``: its own uid; ``source``: uid of the original."""

    kind: str
    namespace: str
    name: str
    uid: str
    cluster: str
    source: str
    object: str
    digest: str
    deleting: bool

    @property
    def path(self) -> str:
        return KINDS[self.kind].path(self.namespace, self.name)


class Backpropagation:
    """Keeps shown objects equal to the reports of agents. ``schedules``: by namespace/name. A report is used only if a
    schedule of its cluster lists the object, and the object has the annotation BACKPROPAGATE."""

    def __init__(self, api: Api, catalog: Catalog, clusters: Clusters, schedules: Mapping[str, Schedule]) -> None:
        self.api, self.catalog, self.clusters, self.schedules = api, catalog, clusters, schedules
        self.recorder = Recorder(api)
        self.reports = Informer(api, backpropagations.BACKPROPAGATIONS, backpropagations.decode, self._reported)
        self.shown = {kind: Informer(api, KINDS[kind].path(), _shown_of, self._changed, labelSelector=BACKPROPAGATED)
                      for kind in KINDS}
        self._reports_on: dict[str, dict[str, Published]] = {}  # key of an object -> namespace of a cluster -> report
        self._scheduled: dict[str, set[str]] = {}  # namespace/name of a schedule -> keys of objects with reports
        self._shown_of: dict[str, dict[tuple[str, str], _Shown]] = {}  # key of an object -> (cluster, source) -> shown
        self._queue = KeyedQueue()

    def schedule_changed(self, schedule: str) -> None:
        """Queue the objects of a schedule, by namespace/name, on which its cluster reports."""
        for key in self._scheduled.get(schedule, ()):
            self._queue.put(key)

    async def run(self) -> None:
        """Show objects until cancelled. Waits until the custom resource is installed. Begins with all reports,
        because another scheduler has processed them until now."""
        for key in self._reports_on:
            self._queue.put(key)
        async with asyncio.TaskGroup() as tasks:
            await start_optional(self.api, backpropagations.API_VERSION, ("Backpropagation",),
                                 (self.reports, *self.shown.values()), tasks)
            for _number in range(_WORKERS):
                tasks.create_task(self._work())

    def _reported(self, _key: str, new: Published | None, old: Published | None) -> None:
        for report in (old, new):
            if report is None:
                continue
            key, schedule = report.ref.key, f"{report.cluster_namespace}/{report.schedule}"
            reports, keys = self._reports_on.setdefault(key, {}), self._scheduled.setdefault(schedule, set())
            if report is new:
                reports[report.cluster_namespace] = report
                keys.add(key)
            else:
                reports.pop(report.cluster_namespace, None)
                keys.discard(key)
            if not reports:
                del self._reports_on[key]
            if not keys:
                del self._scheduled[schedule]
            self._queue.put(key)

    def _changed(self, _key: str, new: _Shown | None, old: _Shown | None) -> None:
        self._index(new, old)
        if new is not None:
            self._queue.put(new.object)
        elif old is not None:
            asyncio.get_running_loop().call_later(_DELETED, self._queue.put, old.object)

    def _index(self, new: _Shown | None, old: _Shown | None) -> None:
        for shown in (old, new):
            if shown is not None:
                parts = self._shown_of.setdefault(shown.object, {})
                if shown is new:
                    parts[shown.cluster, shown.source] = shown
                else:
                    parts.pop((shown.cluster, shown.source), None)
                if not parts:
                    del self._shown_of[shown.object]

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            key = await self._queue.get()
            delay = 0.0
            try:
                delay = await self._reconcile(key)
            except ApiError as error:
                delay = _RETRY
                LOG.debug("Cannot copy the ReplicaSets and Pods of %s, retrying: %s", key, error)
            except Exception:  # a malformed report must not stop the processing of other reports
                LOG.exception("Unexpected error, not copying ReplicaSets and Pods of %s until their next change", key)
            finally:
                again = self._queue.done(key)
            if again or delay:
                loop.call_later(max(delay, _INTERVAL), self._queue.put, key)

    async def _reconcile(self, key: str) -> float:
        """Make the shown objects of a user's object equal to the reports. Return the delay of a repetition, or 0."""
        template = self.catalog.templates.get(key)
        reports = {namespace: report for namespace, report in sorted(self._reports_on.get(key, {}).items())
                   if self._listed(report)}
        if template is None and reports:
            return _RETRY  # the object is unknown: not loaded yet, or deleted
        surplus = dict(self._shown_of.get(key, {}))
        failure: ApiError | None = None
        if template is not None and not template.deleting and _opted_in(template):
            for namespace, report in reports.items():
                if report.uid == template.uid and (cluster := self.clusters.name_of(namespace)) is not None:
                    try:
                        await self._show_all(template, cluster, report, surplus)
                    except ApiError as error:  # a failure must not affect the objects of other clusters
                        failure = error
                        surplus = {part: shown for part, shown in surplus.items() if part[0] != cluster}
                    except RecursionError:
                        LOG.warning("Cluster %s: ignoring the Backpropagation of %s: nested too deeply", cluster, key)
        for shown in surplus.values():
            await self._remove(shown)
        if failure:
            raise failure
        return 0.0

    def _listed(self, report: Published) -> bool:
        """Return True if the schedule of a report lists its object, and the object belongs to the schedule's group: an
        agent can change the list of objects, but not the group."""
        schedule = self.schedules.get(f"{report.cluster_namespace}/{report.schedule}")
        return schedule is not None and not schedule.deleting and any(
            entry.ref.key == report.ref.key for entry in schedule.entries) and self.catalog.belongs(
                report.ref, schedule.group)

    async def _show_all(self, template: Template, cluster: str, report: Published,
                        surplus: dict[tuple[str, str], _Shown]) -> None:
        """Show the ReplicaSets and Pods of an object in a cluster, and remove them from ``surplus``."""
        ref = template.item.ref
        top = {"apiVersion": ref.api_version, "kind": ref.kind, "name": ref.name, "uid": template.uid}
        try:
            parts = report.owned()
        except Invalid as error:
            LOG.warning("Cluster %s: ignoring the Backpropagation of %s: %s", cluster, ref.key, error.message)
            return
        owners: dict[str, dict[str, Any]] = {}
        refusals: list[str] = []
        for part in parts:
            present = surplus.pop((cluster, part.uid), None)
            try:
                shown = await self._show(ref, cluster, part, owners.get(part.parent, top), present)
            except ApiError as error:
                if error.status not in _REFUSED:
                    raise
                refusals.append(f"{part.kind} {part.name}: {error}")
                continue
            if shown is not None and part.kind == "ReplicaSet":
                owners[part.uid] = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": shown.name, "uid": shown.uid}
        if refusals:
            self.recorder.emit(ref, template.uid, "BackpropagationRefused", f"{len(refusals)} ReplicaSets and Pods of "
                               f"cluster {cluster} are not shown: {refusals[0]}", "Warning")
        if report.omitted:
            self.recorder.emit(ref, template.uid, "BackpropagationCut", f"Cluster {cluster} has {report.omitted} more "
                               f"ReplicaSets and Pods of this object, which are not shown", "Warning")

    async def _show(self, ref: Ref, cluster: str, part: Owned, owner: Mapping[str, Any],
                    present: _Shown | None) -> _Shown | None:
        """Create or change a shown object and return it. If it cannot be changed, delete it and return None; it is
        created again later. Raises ApiError."""
        body = _render(ref, cluster, part, owner)
        digest = digest_of(body)
        body["metadata"]["annotations"][_DIGEST] = digest
        if present is not None:
            if present.digest == digest or present.deleting:
                return present
            body["metadata"]["name"] = present.name
            try:
                return self._stored(await self.api.replace(present.path, body))
            except ApiError as error:
                if error.status != 422:
                    raise
            await self._remove(present)
            return None
        suffix = hashlib.sha256(f"{cluster}/{part.uid}".encode()).hexdigest()[:6]
        kind = KINDS[part.kind]
        for name in (part.name, f"{part.name[:_NAME]}-{suffix}"):
            body["metadata"]["name"] = name
            try:
                return self._stored(await self.api.create(kind.path(ref.namespace), body))
            except ApiError as error:
                if error.reason != "AlreadyExists":
                    raise
            current = await self.api.find(kind.path(ref.namespace, name))
            shown = _shown_of(current) if current else None
            if current and shown is not None and (shown.cluster, shown.source) == (cluster, part.uid):
                return self._stored(current)
        raise ApiError(f"the names {part.name} and {name} are in use", 422)

    def _stored(self, obj: Object) -> _Shown | None:
        """Store the result of a write before the watch reports it, and return it."""
        shown = _shown_of(obj)
        if shown is not None:
            informer = self.shown[shown.kind]
            old = informer.objects.get(key_of(obj))
            if informer.put(obj):
                self._index(shown, old)
        return shown

    async def _remove(self, shown: _Shown) -> None:
        if shown.deleting:
            return
        try:
            await self.api.delete(shown.path, uid=shown.uid, grace=0)
        except ApiError as error:
            if not (error.missing or error.conflict):
                raise


def _opted_in(template: Template) -> bool:
    annotations = template.manifest()["metadata"]["annotations"]
    return bool(template.item.ref.namespace) and annotations.get(BACKPROPAGATE) == "true"


def _render(ref: Ref, cluster: str, part: Owned, owner: Mapping[str, Any]) -> dict[str, Any]:
    """Return the manifest of a shown object without its name."""
    annotations = {**part.annotations, _OBJECT: ref.key, _UID: part.uid, **({_NODE: part.node} if part.node else {})}
    return {"apiVersion": KINDS[part.kind].api_version, "kind": part.kind, "spec": part.spec, "metadata": {
        "namespace": ref.namespace, "labels": {**part.labels, BACKPROPAGATED: "true", BACKPROPAGATED_ORIGIN: cluster},
        "annotations": annotations, "ownerReferences": [{**owner, "controller": True}]}}


def _shown_of(obj: Object) -> _Shown | None:
    """Return a shown object, or None for an object of a user with the same label."""
    metadata = obj["metadata"]
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    if BACKPROPAGATED not in labels or _UID not in annotations or (
            annotations.get(_OBJECT, "").split("/")[1:2] != [metadata["namespace"]]):
        return None
    kind = "Pod" if obj.get("kind") == "Pod" else "ReplicaSet"
    return _Shown(kind, metadata["namespace"], metadata["name"], str(metadata.get("uid")),
                  str(labels.get(BACKPROPAGATED_ORIGIN)), annotations[_UID], annotations[_OBJECT],
                  str(annotations.get(_DIGEST)), "deletionTimestamp" in metadata)
