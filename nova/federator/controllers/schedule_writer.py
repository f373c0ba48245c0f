"""Writing of schedules: stores the decisions on groups in the control plane."""

import functools
import logging
from collections.abc import Callable, Mapping
from typing import Any

from nova.common.errors import Invalid
from nova.federator.api import objects, tracing
from nova.federator.api.names import TARGET, TRACE, label_value
from nova.federator.api.types import Decision, Group, Policy
from nova.federator.controllers.catalog import Catalog
from nova.federator.controllers.clusters import Clusters
from nova.federator.controllers.events import Recorder
from nova.federator.kube.client import Api, ApiError
from nova.federator.scheduling import overrides
from nova.federator.store import schedules
from nova.federator.store.schedules import Entry, Schedule

LOG = logging.getLogger(__name__)


class Stored(dict[str, dict[str, dict[int, Schedule]]]):
    """Schedules by group, cluster and part. ``clusters``: the same schedules by cluster, group and part."""

    def __init__(self) -> None:
        super().__init__()
        self.clusters: dict[str, dict[str, dict[int, Schedule]]] = {}

    def put(self, cluster: str, schedule: Schedule) -> None:
        parts = self.setdefault(schedule.group, {}).setdefault(cluster, {})
        parts[schedule.part] = schedule
        self.clusters.setdefault(cluster, {})[schedule.group] = parts

    def discard(self, cluster: str, schedule: Schedule) -> None:
        """Remove a schedule if it is stored, and the maps that become empty."""
        parts = self.clusters.get(cluster, {}).get(schedule.group, {})
        parts.pop(schedule.part, None)
        if not parts:
            for outer, first, second in ((self, schedule.group, cluster), (self.clusters, cluster, schedule.group)):
                inner = outer.get(first, {})
                inner.pop(second, None)
                if not inner:
                    outer.pop(first, None)


class ScheduleWriter:
    """Creates, changes and deletes schedules, and the label that shows users the cluster of an object. ``stored``: the
    schedules as the control plane has them."""

    def __init__(self, api: Api, catalog: Catalog, clusters: Clusters, recorder: Recorder, stored: Stored) -> None:
        self.api, self.catalog, self.clusters, self.recorder, self.schedules = api, catalog, clusters, recorder, stored
        # Called with the cluster and each written schedule; stores the schedule if it is later than the watch.
        self.written: Callable[[str, dict[str, Any]], None] = lambda _cluster, _result: None

    async def write(self, group: Group, policy: Policy, cluster: str, shares: Mapping[str, int | None],
                     stored: Mapping[int, Schedule]) -> None:
        """Create or update the schedules of a group in a cluster, if they differ from the decision."""
        manifests, entries = self._render(group, policy, cluster, shares)
        if stored and entries == [entry for _number, part in sorted(stored.items()) for entry in part.entries] and all(
                _current(part, policy) for part in stored.values()):
            return
        parts = schedules.partition([make() for make in manifests]) if manifests else []
        for number, (indexes, packed) in enumerate(parts):
            chosen = tuple(entries[index] for index in indexes)
            old = stored.get(number)
            if old is not None and old.entries == chosen and _current(old, policy):
                continue
            if old is not None and old.deleting:
                raise ApiError(f"the copies of {group.key} in {cluster} are still being deleted", 409)
            stop_time = max((self.catalog.templates[entry.ref.key].item.stop_time for entry in chosen), default=0)
            spec = schedules.render_spec(
                group.key, chosen, packed, number, policy.name, policy.failover, policy.fence_after,
                stop_time=stop_time, prior_silence=old.silence if old is not None else 0)
            await self._store(cluster, spec, old)
        for number, old in stored.items():
            if number >= len(parts):
                await self.delete(old)

    def _render(self, group: Group, policy: Policy, cluster: str, shares: Mapping[str, int | None]) -> tuple[
            list[Callable[[], dict[str, Any]]], list[Entry]]:
        """Return the functions that create the manifests of a cluster's share in a group, and the schedule entries."""
        state = self.clusters.cluster(cluster)
        labels = state.labels if state else {}
        manifests: list[Callable[[], dict[str, Any]]] = []
        entries = []
        for item in group.items:
            if item.ref.key not in shares:
                continue
            template, replicas = self.catalog.templates[item.ref.key], shares[item.ref.key]
            if replicas == item.replicas and not (policy.spread and policy.spread.overrides):
                manifests.append(template.manifest)
                entries.append(Entry(item.ref, template.uid, template.digest, replicas))
                continue
            manifest = template.manifest()
            if replicas is not None and item.replicas is not None:
                objects.set_replicas(manifest, replicas)
            if policy.spread:
                try:
                    manifest = overrides.apply(manifest, item.ref, policy.spread, labels)
                except Invalid as error:
                    self.recorder.emit(item.ref, template.uid, "OverrideFailed", error.message, "Warning")
            manifests.append(functools.partial(dict, manifest))
            entries.append(Entry(item.ref, template.uid, schedules.digest_of(manifest), replicas))
        return manifests, entries

    async def _store(self, cluster: str, spec: dict[str, Any], old: Schedule | None) -> None:
        if old is None:
            body = schedules.render(cluster, spec)
            body["metadata"] |= _traced("")
            path = schedules.path_of(body["metadata"]["namespace"])
            try:
                result = await self.api.create(path, body)
            except ApiError as error:
                if error.reason != "AlreadyExists":
                    raise
                result = await self._restore(f"{path}/{body['metadata']['name']}", spec)
        else:
            result = await self.api.patch(old.path, {
                "metadata": {"resourceVersion": old.version, **_traced(old.trace)}, "spec": spec})
        self.written(cluster, result)  # do not wait for the watch
        if spec["part"] not in self.schedules.get(spec["group"], {}).get(cluster, {}):
            raise ApiError(f"the schedule of {spec['group']} in {cluster} was deleted after it was written", 409)

    async def _restore(self, path: str, spec: dict[str, Any]) -> dict[str, Any]:
        """Set the spec of a schedule that exists but was damaged. Raises ApiError."""
        metadata = (await self.api.get(path))["metadata"]
        if "deletionTimestamp" in metadata:
            raise ApiError(f"{path} is still being deleted", 409)
        LOG.warning("Restoring %s: another client changed its spec", path)
        return await self.api.patch(path, {"spec": {**spec, "priorSilenceSeconds": schedules.NEVER}, "metadata": {
            "resourceVersion": metadata["resourceVersion"]}})

    async def retire(self, parts: Mapping[int, Schedule]) -> None:
        for part in parts.values():
            if not part.retiring and not part.deleting:
                await self.api.patch(part.path, {"metadata": {"resourceVersion": part.version},
                                                 "spec": {"retiring": True}})

    async def remove(self, clusters: Mapping[str, Mapping[int, Schedule]]) -> None:
        """Delete the schedules of a group in clusters; their agents delete the copies."""
        for parts in clusters.values():
            for part in parts.values():
                if not part.deleting:
                    await self.delete(part)

    async def prune(self, cluster: str, part: Schedule) -> None:
        """Remove the objects that do not exist any more from a schedule; the agent deletes their copies."""
        templates = self.catalog.templates
        present = [index for index, entry in enumerate(part.entries)
                   if (template := templates.get(entry.ref.key)) is not None and template.uid == entry.uid]
        if part.deleting or len(present) == len(part.entries):
            return
        if not present:
            await self.delete(part)
            return
        manifests = schedules.decode(await self.api.get(part.path)).manifests()
        await self._store(cluster, schedules.render_spec(
            part.group, [part.entries[index] for index in present],
            schedules.pack([manifests[index] for index in present]), part.part, part.policy, part.failover,
            part.fence_after, part.retiring, part.stop_time, prior_silence=part.silence), part)

    async def discard(self, cluster: str, group: str, part: int) -> None:
        """Create and delete a schedule without objects, so that the agent deletes the copies of a missing schedule."""
        body = schedules.render(cluster, schedules.render_spec(group, (), schedules.pack(()), part))
        path = schedules.path_of(body["metadata"]["namespace"])
        if await self.api.ensure(path, body):
            LOG.warning("Cluster %s: deleting the copies of %s: the restored schedules place it in other clusters",
                        cluster, group)
            await self.api.remove(f"{path}/{body['metadata']['name']}")

    async def delete(self, part: Schedule) -> None:
        await self.api.remove(part.path, uid=part.uid, version=part.version)

    async def label(self, group: Group, decision: Decision) -> None:
        """Write the label target-cluster of the members; objects in several clusters have no such label."""
        target = label_value(next(iter(decision.targets))) if len(decision.targets) == 1 else ""
        for item in group.items:
            template = self.catalog.templates.get(item.ref.key)
            if template is None or template.target == target:
                continue
            try:
                path = self.catalog.kind(item.ref).path(item.ref.namespace, item.ref.name)
                await self.api.patch(path, {"metadata": {"labels": {TARGET: target or None}}})
                self.catalog.set_target(item.ref.key, target)
            except ApiError as error:
                if not error.missing:
                    raise


def _traced(former: str) -> dict[str, Any]:
    """Return metadata with the present span. ``former``: the stored span, or an empty text."""
    trace = tracing.traceparent()
    return {"annotations": {TRACE: trace or None}} if trace or former else {}


def _current(part: Schedule, policy: Policy) -> bool:
    """Return True if a stored schedule is in use and has the properties of a policy."""
    return not part.retiring and not part.deleting and (part.policy, part.failover, part.fence_after) == (
        policy.name, policy.failover, policy.fence_after)
