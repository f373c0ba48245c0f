"""Fencing: workloads that must never run in two clusters stop if the control plane is unreachable for their fence time.

Annotations of the copies contain the fence times, so an agent that starts without the control plane fences, too.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import msgspec

from nova.federator.api.names import AGENT
from nova.federator.clusters.copies import Copies, Unapplied
from nova.federator.clusters.lease import RENEW, Heartbeat
from nova.federator.clusters.observe import FENCED, Copy, workload
from nova.federator.kube.client import Api, ApiError

LOG = logging.getLogger(__name__)
_CHECK = 0.5  # seconds between two checks
FENCE_MANAGER = "nova-agent-fence"
_NOWHERE = {"nova.elotl.co/fenced": "true"}  # node selector of stopped DaemonSets, which matches no node


class Fence:
    """Stops copies when their fence time has passed by the monotonic clock, and reports when they may run again.

    ``changed``: called with the name of a schedule whose copies were stopped, once these copies may run again.
    """

    def __init__(self, api: Api, copies: Copies, heartbeat: Heartbeat, changed: Callable[[str], None]) -> None:
        self.api, self.copies, self.heartbeat, self.changed = api, copies, heartbeat, changed
        self.stopped = 0  # copies stopped by this agent, for metrics
        self._closed: set[str] = set()  # names of schedules with stopped workloads
        self._scaled: set[str] = set()  # uids of custom resources whose scale is set to 0

    def closed(self, fence_after: float | None) -> bool:
        """Return True if workloads with this fence time must not run now."""
        return fence_after is not None and self.heartbeat.silence() >= fence_after

    async def run(self) -> None:
        """Stop copies and report those that may run again, until cancelled."""
        while True:
            await asyncio.sleep(_CHECK)
            due, shortest = [], 4 * RENEW
            for copy in self.copies:
                shortest = min(shortest, copy.fence_after or shortest)
                if not self.closed(copy.fence_after):
                    if copy.fenced and self.heartbeat.held:
                        self._closed.add(copy.schedule)
                elif workload(copy.ref):
                    self._closed.add(copy.schedule)
                    if not copy.deleting and (change := _stop(copy, copy.uid in self._scaled)) is not None:
                        due.append(self._stop(copy, change))
            self.heartbeat.interval = shortest / 4
            await asyncio.gather(*due)
            for name in [name for name in self._closed if self.heartbeat.held and not any(
                    self.closed(copy.fence_after) for copy in self.copies.of(name).values())]:
                self._closed.discard(name)
                self.changed(name)

    async def _stop(self, copy: Copy, change: dict[str, Any]) -> None:
        try:
            resource = await self.copies.resource(copy.ref)
            if not (change or resource.scalable or copy.ref.kind == "Pod"):
                return  # skip it: a custom resource without the subresource scale cannot be stopped
            path = resource.path(copy.ref.namespace, copy.ref.name)
            LOG.warning("Stopping %s: the federation control plane is unreachable for %.0f s", copy.ref.key,
                        self.heartbeat.silence())
            if copy.ref.kind == "Pod":
                await self.api.delete(path, uid=copy.uid)
            else:
                before = copy.fenced or msgspec.json.encode(await self._fields(copy, path)).decode()
                await self.api.patch(path, {"metadata": {"uid": copy.uid, "annotations": {FENCED: before}}, **change},
                                     fieldManager=FENCE_MANAGER)
                if not change:
                    await self.api.patch(f"{path}/scale", {"spec": {"replicas": 0}}, fieldManager=FENCE_MANAGER)
                    self._scaled.add(copy.uid)
                if copy.ref.kind == "CronJob":
                    await self._end_jobs(copy)
            self.stopped += 1
        except (ApiError, Unapplied) as error:
            LOG.error("Cannot stop workload %s, retrying: %s", copy.ref.key, error)

    async def _fields(self, copy: Copy, path: str) -> dict[str, Any]:
        """Return the present values of the fields that stop a copy, so that :meth:`restore` can set them again."""
        obj = await self.api.get(path)
        spec = obj.get("spec") or {}
        match copy.ref.kind:
            case "Job":
                return {"spec": {"parallelism": spec.get("parallelism", 1)}}
            case "CronJob":
                return {"spec": {"suspend": bool(spec.get("suspend"))}}
            case "DaemonSet":
                return {"spec": {"template": {"spec": {"nodeSelector": dict.fromkeys(_NOWHERE)}}}}
            case "Deployment" | "ReplicaSet" | "StatefulSet":
                return {"spec": {"replicas": spec.get("replicas", 1)}}
        scale = await self.api.get(f"{path}/scale")
        return {"scale": int((scale.get("spec") or {}).get("replicas") or 0)}

    async def _end_jobs(self, copy: Copy) -> None:
        """Delete the running Jobs of a CronJob. It creates new ones after :meth:`restore`."""
        jobs = f"/apis/batch/v1/namespaces/{copy.ref.namespace}/jobs"
        for job in (await self.api.list(jobs))["items"]:
            metadata = job["metadata"]
            if any(owner.get("uid") == copy.uid for owner in metadata.get("ownerReferences") or ()) and (
                    job.get("status") or {}).get("active"):
                await self.api.delete(f"{jobs}/{metadata['name']}", uid=metadata["uid"])

    async def restore(self, copy: Copy, replicas: int | None) -> None:
        """Start a stopped workload again. ``replicas``: the number in its current manifest, None for the number before
        the stop. The caller must first have read the Schedule from the server. Raises ApiError, Unapplied."""
        resource = await self.copies.resource(copy.ref)
        path = resource.path(copy.ref.namespace, copy.ref.name)
        try:
            fields: dict[str, Any] = msgspec.json.decode(copy.fenced, type=dict[str, Any])
        except msgspec.MsgspecError:
            LOG.warning("%s: annotation %s is invalid, using the values of the manifest", copy.ref.key, FENCED)
            fields = {}
        scale = fields.pop("scale", None)
        if replicas is not None and "replicas" in (fields.get("spec") or {}):
            fields["spec"]["replicas"] = replicas
        if isinstance(scale, int):
            await self.api.patch(f"{path}/scale", {"spec": {"replicas": scale}}, fieldManager=AGENT)
        self._scaled.discard(copy.uid)
        obj = await self.api.patch(path, {**fields, "metadata": {"uid": copy.uid, "annotations": {FENCED: None}}},
                                   fieldManager=FENCE_MANAGER)
        self.copies.put(resource, obj, applied=False)
        LOG.info("Restarted %s: the federation control plane still schedules it here", copy.ref.key)


def _stop(copy: Copy, scaled: bool) -> dict[str, Any] | None:
    """Return the patch that stops a copy, or None if it does not run. The patch is empty for Pods, which are deleted,
    and for custom resources, whose scale is set. ``scaled``: True if the scale of the custom resource is 0 already."""
    match copy.ref.kind:
        case "Deployment" | "ReplicaSet" | "StatefulSet":
            return {"spec": {"replicas": 0}} if copy.replicas != 0 else None
        case "Job":
            return {"spec": {"parallelism": 0}} if copy.replicas != 0 and not copy.finished else None
        case "Pod":
            return None if copy.finished else {}
        case "CronJob":
            return None if copy.fenced else {"spec": {"suspend": True}}
        case "DaemonSet":
            return None if copy.fenced else {"spec": {"template": {"spec": {"nodeSelector": _NOWHERE}}}}
    return None if copy.fenced and scaled else {}
