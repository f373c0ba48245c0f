"""Agents of simulated clusters in one process: the agent's code is unchanged, the API server of its cluster is a dict.

    python -m tools.bench.federator.simulated --kubeconfig FILE --clusters 500
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import pathlib
import re
import signal
from collections.abc import AsyncIterator, Mapping
from typing import Any

from nova.federator.api import objects
from nova.federator.clusters.agent import Agent
from nova.federator.clusters.lease import Heartbeat
from nova.federator.clusters.report import Reporter
from nova.federator.controllers.joining import prepare
from nova.federator.kube.client import Api, ApiError, Event, Object
from nova.federator.kube.config import Kubeconfig, load

_NODES = 4
_RESOURCES = {"cpu": "64", "memory": "256Gi", "pods": "10000"}
_AT_ONCE = 8  # agents that start at the same time
_PATH = re.compile(r"(/api/v1|/apis/[^/]+/[^/]+)(?:/namespaces/([^/]+)(?=/[^/]+))?/([^/]+)(?:/([^/]+))?(?:/([^/]+))?")
_VERBS = ["create", "delete", "get", "list", "patch", "update", "watch"]


class MemberApi(Api):
    """An API server of a cluster, in memory. Deployments are available at once; there are no pods."""

    def __init__(self) -> None:
        super().__init__(Kubeconfig(server="https://simulated"))
        self._objects: dict[str, dict[str, Object]] = {}  # collection -> namespace/name -> object
        self._watchers: dict[str, set[asyncio.Queue[Event]]] = {}
        self._numbers = itertools.count(1)
        for number in range(_NODES):
            self._write("/api/v1/nodes", "", {
                "apiVersion": "v1", "kind": "Node", "metadata": {"name": f"node-{number}"},
                "status": {"allocatable": _RESOURCES, "capacity": _RESOURCES,
                           "conditions": [{"type": "Ready", "status": "True"}]}})

    async def _request(self, method: str, path: str, query: Mapping[str, str], body: Mapping[str, Any] | None = None,
                       content_type: str = "", timeout: float = 0) -> Object:
        if path == "/version":
            return {"gitVersion": "v1.20.2"}
        if path == "/apis":
            versions = sorted({(kind.group, kind.version) for kind in objects.KINDS if kind.group})
            return {"groups": [{"name": group, "versions": [{"groupVersion": f"{group}/{version}", "version": version}]}
                               for group, version in versions]}
        if path.count("/") == (2 if path.startswith("/api/") else 3):
            return _discovery(path)
        match = _PATH.fullmatch(path)
        if not match:
            raise ApiError(f"no such path: {path}", 404)
        prefix, namespace, plural, name, _subresource = match.groups()
        collection, key = f"{prefix}/{plural}", f"{namespace or ''}/{name}"
        stored = self._objects.setdefault(collection, {})
        if method == "GET" and not name:
            return {"items": list(stored.values()), "metadata": {"resourceVersion": str(next(self._numbers))}}
        if method == "GET" and key in stored:
            return stored[key]
        if method == "DELETE" and key in stored:
            self._publish(collection, Event("DELETED", stored.pop(key)))
            return {}
        if method in ("POST", "PATCH", "PUT") and body is not None:
            return self._write(collection, query.get("fieldManager", ""), dict(body))
        raise ApiError(f"{method} {path}: 404", 404)

    def _write(self, collection: str, manager: str, obj: Object) -> Object:
        metadata = obj["metadata"]
        key = f"{metadata.get('namespace', '')}/{metadata['name']}"
        old = self._objects.setdefault(collection, {}).get(key)
        version = str(next(self._numbers))
        obj["metadata"] = {**metadata, "uid": old["metadata"]["uid"] if old else f"uid-{version}", "generation": 1,
                           "resourceVersion": version,
                           "managedFields": [{"manager": manager, "operation": "Apply", "fieldsV1": {}}]}
        if obj.get("kind") == "Deployment":
            counts = ("replicas", "updatedReplicas", "readyReplicas", "availableReplicas")
            obj["status"] = {"observedGeneration": 1, **dict.fromkeys(counts, obj["spec"].get("replicas", 1))}
        self._objects[collection][key] = obj
        self._publish(collection, Event("MODIFIED" if old else "ADDED", obj))
        return obj

    def _publish(self, collection: str, event: Event) -> None:
        for watcher in self._watchers.get(collection, ()):
            watcher.put_nowait(event)

    async def watch(self, path: str, version: str, **query: str) -> AsyncIterator[Event]:
        queue: asyncio.Queue[Event] = asyncio.Queue()
        self._watchers.setdefault(path, set()).add(queue)
        try:
            while True:
                yield await queue.get()
        finally:
            self._watchers[path].discard(queue)


def _discovery(path: str) -> Object:
    kinds = [kind for kind in objects.KINDS if kind.path().rpartition("/")[0] == path]
    return {"resources": [{"name": kind.plural, "kind": kind.kind, "namespaced": kind.namespaced, "verbs": _VERBS}
                          for kind in kinds]}


async def _run(nova: Api, name: str, starting: asyncio.Semaphore) -> None:
    """Run the agent of a cluster."""
    async with starting:
        await prepare(nova, name)
        member, heartbeat = MemberApi(), Heartbeat(nova, name, "simulated")
        agent = Agent(nova, member, name, heartbeat)
        await heartbeat.acquire()
    reporter = Reporter(nova, member, name, heartbeat.epoch, agent.applied_with_pods, agent.unscheduled,
                        agent.copies)
    await asyncio.gather(agent.run_locally(), heartbeat.run(), agent.run(), reporter.run())


async def _run_all(kubeconfig: pathlib.Path, count: int) -> None:
    starting = asyncio.Semaphore(_AT_ONCE)
    async with Api(load([kubeconfig]), agent="nova-agent", connections=8 * count) as nova:
        await asyncio.gather(*(_run(nova, f"simulated-{number:03}", starting) for number in range(count)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kubeconfig", type=pathlib.Path, required=True)
    parser.add_argument("--clusters", type=int, required=True)
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    asyncio.run(_run_all(arguments.kubeconfig, arguments.clusters))
