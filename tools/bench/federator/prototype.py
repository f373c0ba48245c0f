"""The floor of a placement: one scheduler task and one agent task per member, without policies and durability.

The scheduler task writes the label target-cluster; the agent tasks apply what has their label and write statuses back.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Any

from nova.federator.api.names import TARGET
from nova.federator.kube.client import Api, Object
from tests.integration.federator.clusters import Cluster
from tools.bench.federator.world import NAMESPACE, PATHS, path_of

_ALL = "all"  # value of the label: a copy in each member
_AT_ONCE = 16


class Prototype:
    """A minimal placer. ``duplicate``: place each object in all members instead of one."""

    def __init__(self, nova: Api, members: dict[str, Api], duplicate: bool = False) -> None:
        self.nova, self.members, self.duplicate = nova, members, duplicate
        self._tasks: set[asyncio.Task[None]] = set()
        self._limit = asyncio.Semaphore(_AT_ONCE)
        self._limits = {name: asyncio.Semaphore(_AT_ONCE) for name in members}
        self._placed = 0

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def place(self, kind: str) -> None:
        """Write the label of each new object of a kind."""
        names = list(self.members)
        async for obj in _changes(self.nova, PATHS[kind], f"!{TARGET},bench"):
            target = _ALL if self.duplicate else names[self._placed % len(names)]
            self._placed += 1
            self._start(self._assign(kind, obj["metadata"]["name"], target))

    async def _assign(self, kind: str, name: str, target: str) -> None:
        async with self._limit:
            await self.nova.patch(f"{path_of(kind)}/{name}", {"metadata": {"labels": {TARGET: target}}})

    async def apply(self, kind: str, member: str) -> None:
        """Apply the objects of a member."""
        applied: set[str] = set()
        async for obj in _changes(self.nova, PATHS[kind], f"{TARGET}={_ALL if self.duplicate else member}"):
            if (name := obj["metadata"]["name"]) not in applied:
                applied.add(name)
                self._start(self._apply(kind, member, obj))

    async def _apply(self, kind: str, member: str, obj: Object) -> None:
        metadata = {"name": obj["metadata"]["name"], "namespace": NAMESPACE, "labels": obj["metadata"]["labels"]}
        body = {"apiVersion": "v1" if kind == "ConfigMap" else "apps/v1", "kind": kind, "metadata": metadata,
                **{field: obj[field] for field in ("spec", "data") if field in obj}}
        async with self._limits[member]:
            await self.members[member].apply(f"{path_of(kind)}/{metadata['name']}", body, "prototype")

    async def report(self, member: str) -> None:
        """Write the status of available Deployments back."""
        written: dict[str, Any] = {}
        async for obj in _changes(self.members[member], PATHS["Deployment"], TARGET):
            name, status = obj["metadata"]["name"], obj.get("status") or {}
            if status.get("availableReplicas") == obj["spec"]["replicas"] and written.get(name) != status:
                written[name] = status
                self._start(self._write(member, name, status))

    async def _write(self, member: str, name: str, status: Object) -> None:
        async with self._limits[member]:
            await self.nova.patch(f"{path_of('Deployment')}/{name}/status", {"status": status})


async def _changes(api: Api, path: str, selector: str) -> AsyncIterator[Object]:
    """Yield new and changed objects of a collection that is empty at first."""
    version = (await api.list(path, labelSelector=selector))["metadata"]["resourceVersion"]
    async for event in api.watch(path, version, labelSelector=selector):
        if event.type in ("ADDED", "MODIFIED"):
            yield event.object


@contextlib.asynccontextmanager
async def running(nova: Cluster, members: Sequence[Cluster], kinds: Sequence[str],
                  duplicate: bool = False) -> AsyncIterator[Prototype]:
    """Run a prototype while the context is open."""
    async with contextlib.AsyncExitStack() as stack:
        api = await stack.enter_async_context(Api(nova.config))
        apis = {member.name: await stack.enter_async_context(Api(member.config)) for member in members}
        prototype = Prototype(api, apis, duplicate)
        loops = [prototype.place(kind) for kind in kinds]
        loops += [prototype.apply(kind, member) for kind in kinds for member in apis]
        loops += [prototype.report(member) for member in apis]
        tasks = [asyncio.create_task(loop) for loop in loops]
        await asyncio.sleep(1.0)  # until the watches are open
        try:
            yield prototype
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
