"""A control plane, members with fake nodes, and the processes of the federator, with their CPU time and memory."""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
import re
import statistics
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any, Protocol

import aiohttp
import msgspec
import psutil

from nova.federator.api.names import TARGET
from nova.federator.kube.client import Api, Object
from nova.federator.kube.informer import Informer
from nova.federator.local.cluster import LocalCluster
from nova.federator.local.fake_nodes import NodeOptions
from tests.integration.federator import clusters
from tests.integration.federator.clusters import Cluster
from tests.integration.federator.federation import Federation

NAMESPACE = "bench"
SELECTED = {"bench": "selected"}  # labels of the objects that the policies of the benchmark select
_MEMBER = msgspec.structs.replace(clusters.MEMBER, small=False, nodes=NodeOptions(
    count=2, cpu="32", memory="512Gi", pods=100_000))
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_RARE = 0.05  # requests per placement
PATHS = {"Deployment": "/apis/apps/v1/deployments", "ConfigMap": "/api/v1/configmaps"}


class World:
    """Clusters and processes. ``servers``: API server and etcd of the control plane; ``agents``: agent processes."""

    def __init__(self, directory: pathlib.Path, members: int) -> None:
        self.nova = clusters.start_control_plane(directory / "nova", small=False)
        names = [f"member-{number}" for number in range(members)]
        self.members = clusters.start([LocalCluster(directory / name, name, _MEMBER) for name in names])
        self.directory = directory
        self.federation: Federation | None = None
        self.requests: dict[str, float] = {}  # per placement, of the last measurement

    def federate(self) -> None:
        """Start the scheduler and the agents."""
        self.federation = Federation(self.nova, self.members, self.directory / "federation")
        self.federation.wait_ready()

    def stop(self) -> None:
        """Stop the scheduler and the agents."""
        if self.federation:
            for process in (*self.federation.agents.values(), self.federation.scheduler):
                process.stop()
            self.federation = None

    def cpu(self) -> dict[str, float]:
        """Return the CPU seconds of the parts of the control plane, of the members, and of the federator."""
        result = {name: usage.cpu_seconds for name, usage in self.nova.local.usage().items()}
        result["members"] = sum(usage.cpu_seconds for member in self.members for usage in member.local.usage().values())
        if self.federation:
            result["scheduler"] = cpu_seconds(self.federation.scheduler)
            result["agents"] = sum(map(cpu_seconds, self.federation.agents.values()))
        return result

    def agent_mb(self) -> float:
        """Return the resident memory of the largest agent."""
        assert self.federation
        return round(max(map(memory_mb, self.federation.agents.values())), 1)


@contextlib.contextmanager
def start(directory: pathlib.Path, members: int) -> Iterator[World]:
    """Start a control plane and members; remove them at the end."""
    world = World(directory, members)
    try:
        yield world
    finally:
        if world.federation:
            world.federation.stop()
        clusters.remove([world.nova, *world.members])


class Running(Protocol):
    """A process."""

    @property
    def pid(self) -> int: ...


def cpu_seconds(process: Running) -> float:
    times = psutil.Process(process.pid).cpu_times()
    return float(times.user + times.system)


def memory_mb(process: Running) -> float:
    return float(psutil.Process(process.pid).memory_info().rss) / 2**20


def per_placement(before: Mapping[str, float], after: Mapping[str, float], count: int) -> dict[str, float]:
    """Return the CPU milliseconds per placement of each part. ``servers``: API server and etcd together."""
    result = {name: (after[name] - before.get(name, 0.0)) * 1000 / count for name in after}
    result["servers"] = result["kube-apiserver"] + result["etcd"]
    return {name: round(value, 2) for name, value in result.items()}


async def requests(cluster: Cluster) -> dict[str, float]:
    """Return the number of requests that an API server has answered, by verb and resource."""
    result: dict[str, float] = {}
    connector = aiohttp.TCPConnector(ssl=cluster.config.tls() or False)
    async with aiohttp.ClientSession(connector=connector) as session, \
            session.get(f"{cluster.config.server}/metrics") as response:
        for line in (await response.text()).splitlines():
            if line.startswith("apiserver_request_total{"):
                labels = dict(_LABEL.findall(line))
                name = " ".join(filter(None, (labels["verb"], labels["resource"], labels["subresource"])))
                result[name] = result.get(name, 0.0) + float(line.rpartition(" ")[2])
    return result


def requests_per_placement(before: Mapping[str, float], after: Mapping[str, float], count: int) -> dict[str, float]:
    """Return the requests per placement by verb and resource, those that are frequent enough to matter."""
    result = {name: round((number - before.get(name, 0.0)) / count, 2) for name, number in after.items()}
    return {name: value for name, value in sorted(result.items()) if value >= _RARE}


class Arrivals:
    """The times at which objects appeared in members: cluster, kind and name -> monotonic seconds."""

    def __init__(self, label: str = TARGET) -> None:
        self.times: dict[tuple[str, str, str], float] = {}
        self._label = label

    @contextlib.asynccontextmanager
    async def watch(self, members: Sequence[Cluster], kinds: Sequence[str] = ("Deployment",)) -> AsyncIterator[None]:
        """Watch members for the copies of kinds while the context is open."""
        async with contextlib.AsyncExitStack() as stack:
            tasks = []
            for member in members:
                api = await stack.enter_async_context(Api(member.config))
                for kind in kinds:
                    informer = Informer(api, PATHS[kind], self._decoder(member.name, kind), labelSelector=self._label)
                    tasks.append(asyncio.create_task(informer.run()))
                    await informer.synced.wait()
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    def _decoder(self, member: str, kind: str) -> Any:
        def decode(obj: Object) -> None:
            self.times.setdefault((member, kind, obj["metadata"]["name"]), time.monotonic())
        return decode

    async def wait(self, count: int, timeout: float) -> None:
        """Wait until this number of copies exists. Raises AssertionError if none appears for ``timeout`` seconds."""
        seen, deadline = 0, time.monotonic() + timeout
        while len(self.times) < count:
            if len(self.times) > seen:
                seen, deadline = len(self.times), time.monotonic() + timeout
            assert time.monotonic() < deadline, f"{seen} of {count} copies appeared"
            await asyncio.sleep(0.02)


def latencies(sent: Mapping[str, float], arrivals: Arrivals) -> dict[str, float]:
    """Return p50 and p99 in ms from the creation of objects to the existence of their first copy."""
    first: dict[str, float] = {}
    for (_member, _kind, name), at in arrivals.times.items():
        first[name] = min(at, first.get(name, at))
    values = sorted((first[name] - at) * 1000 for name, at in sent.items() if name in first)
    return {"p50_ms": round(statistics.median(values), 1), "p99_ms": round(values[int(len(values) * 0.99) - 1], 1)}


def deployment(name: str) -> dict[str, Any]:
    return clusters.deployment(name, namespace=NAMESPACE, labels=SELECTED)


def config_map(name: str) -> dict[str, Any]:
    """Return a ConfigMap of 1 KB."""
    return {"apiVersion": "v1", "kind": "ConfigMap", "data": {"text": "x" * 1000},
            "metadata": {"name": name, "namespace": NAMESPACE, "labels": SELECTED}}


def path_of(kind: str) -> str:
    prefix, _slash, plural = PATHS[kind].rpartition("/")
    return f"{prefix}/namespaces/{NAMESPACE}/{plural}"


async def create_paced(api: Api, names: Sequence[str], rate: float) -> dict[str, float]:
    """Create Deployments at a rate. Return when each request was sent."""
    sent: dict[str, float] = {}
    began = time.monotonic()
    for number, name in enumerate(names):
        await asyncio.sleep(max(0.0, began + number / rate - time.monotonic()))
        sent[name] = time.monotonic()
        await api.create(path_of("Deployment"), deployment(name))
    return sent


async def create_at_once(api: Api, objects: Sequence[dict[str, Any]], workers: int = 16) -> None:
    """Create objects as fast as this number of workers can."""
    iterator = iter(objects)

    async def work() -> None:
        for obj in iterator:
            await api.create(path_of(obj["kind"]), obj)

    await asyncio.gather(*(work() for _number in range(workers)))


async def create_namespaces(configs: Sequence[Cluster]) -> None:
    for cluster in configs:
        async with Api(cluster.config) as api:
            await api.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace",
                                                    "metadata": {"name": NAMESPACE}})
