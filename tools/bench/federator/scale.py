"""Many simulated clusters and many objects: cost of a placement, of an idle federation, a restart and a policy edit."""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from nova.federator.kube.client import Api
from nova.federator.store.schedules import SCHEDULES
from tests.integration.federator import clusters
from tests.integration.federator.federation import Process, policy
from tools.bench.amounts import Amounts
from tools.bench.federator.world import (
    NAMESPACE,
    SELECTED,
    config_map,
    cpu_seconds,
    create_at_once,
    create_namespaces,
    deployment,
    memory_mb,
)

_FEW = 5  # clusters of the comparison
_RATE = 10.0  # Deployments per second
_IDLE = 20.0  # seconds
_SETTLE = 3.0
_TIMEOUT = 120.0  # seconds without progress
_EDITED = {"bench": "edited"}  # labels of the objects whose policy is edited


class _Simulation:
    """A control plane with its scheduler, and a process with the agents of simulated clusters."""

    def __init__(self, directory: pathlib.Path, count: int) -> None:
        self.directory, self.count = directory, count
        self.nova = clusters.start_control_plane(directory / "nova", small=False)
        pki = self.nova.local.pki
        self.scheduler = Process(directory / "scheduler.log", "scheduler", f"--kubeconfig={self.nova.kubeconfig}",
                                 f"--ca-cert={pki / 'ca.crt'}", f"--ca-key={pki / 'ca.key'}")

    async def start_agents(self, api: Api) -> None:
        with (self.directory / "agents.log").open("ab") as log:
            self.agents = await asyncio.create_subprocess_exec(
                *clusters.END_WITH_TESTS, sys.executable, "-m", "tools.bench.federator.simulated",
                f"--kubeconfig={self.nova.kubeconfig}", f"--clusters={self.count}", stdout=log, stderr=log)

        async def ready() -> int:
            items = (await api.list("/apis/cluster.elotl.co/v1alpha1/clusters"))["items"]
            return sum(any(entry["type"] == "Ready" and entry["status"] == "True"
                           for entry in (item.get("status") or {}).get("conditions", ())) for item in items)

        await _progress(ready, self.count)

    def cpu(self) -> dict[str, float]:
        usage = self.nova.local.usage()
        return {"servers": usage["kube-apiserver"].cpu_seconds + usage["etcd"].cpu_seconds,
                "scheduler": cpu_seconds(self.scheduler), "agents": cpu_seconds(self.agents)}


async def _progress(value: Callable[[], Awaitable[int]], wanted: int) -> None:
    """Wait until a number is reached. Raises AssertionError if it stays the same for too long."""
    last, deadline = -1, time.monotonic() + _TIMEOUT
    while (current := await value()) < wanted:
        if current != last:
            last, deadline = current, time.monotonic() + _TIMEOUT
        assert time.monotonic() < deadline, f"{current} of {wanted}"
        await asyncio.sleep(0.5)


@contextlib.asynccontextmanager
async def _simulation(directory: pathlib.Path, count: int) -> AsyncIterator[tuple[_Simulation, Api]]:
    directory.mkdir()
    simulation = await asyncio.to_thread(_Simulation, directory, count)
    try:
        async with Api(simulation.nova.config) as api:
            await simulation.start_agents(api)
            await create_namespaces([simulation.nova])
            yield simulation, api
            simulation.agents.kill()
            await simulation.agents.wait()
    finally:
        simulation.scheduler.stop(9)
        await asyncio.to_thread(clusters.remove, [simulation.nova])


def measure(directory: pathlib.Path, amounts: Amounts) -> dict[str, Any]:
    """Return the measurements with few and with many clusters."""
    few = asyncio.run(_few(directory / "few", amounts))
    many = asyncio.run(_many(directory / "many", amounts))
    return {"federator_few_clusters": few, "federator_many_clusters": many,
            "federator_clusters_ratio": round(sum(many[part] for part in ("servers", "scheduler", "agents"))
                                              / sum(few[part] for part in ("servers", "scheduler", "agents")), 2)}


async def _few(directory: pathlib.Path, amounts: Amounts) -> dict[str, float]:
    async with _simulation(directory, _FEW) as (simulation, api):
        result = await _cost(simulation, api, amounts.placements)
        print(f"  {_FEW} clusters: {result}", flush=True)
        return result


async def _many(directory: pathlib.Path, amounts: Amounts) -> dict[str, float]:
    async with _simulation(directory, amounts.clusters) as (simulation, api):
        result = await _cost(simulation, api, amounts.placements)
        print(f"  {amounts.clusters} clusters: {result}", flush=True)
        result |= await _fill(simulation, api, amounts)
        result |= await _idle(simulation)
        result |= await _edit(simulation, api, amounts)
        result |= await _restart(simulation, api)
        print(f"  {amounts.objects} objects: {result}", flush=True)
        return result


async def _idle(simulation: _Simulation) -> dict[str, float]:
    """Return the percentage of a core that an idle federation uses, and its memory. ``agent``: each of the agents."""
    await asyncio.sleep(_SETTLE)
    before = simulation.cpu()
    await asyncio.sleep(_IDLE)
    shares = {name: (value - before[name]) * 100 / _IDLE for name, value in simulation.cpu().items()}
    result = {"idle_servers_percent": shares["servers"], "idle_scheduler_percent": shares["scheduler"],
              "idle_agent_percent": shares["agents"] / simulation.count,
              "scheduler_mb": memory_mb(simulation.scheduler), "agents_mb": memory_mb(simulation.agents)}
    return {name: round(value, 2) for name, value in result.items()}


async def _placed(api: Api) -> int:
    """Return the number of schedules."""
    page = await api.get(SCHEDULES, limit="1")
    return len(page["items"]) + int(page["metadata"].get("remainingItemCount") or 0)


async def _cost(simulation: _Simulation, api: Api, count: int) -> dict[str, float]:
    """Return the CPU ms per placement, without what the idle federation uses meanwhile."""
    simulation.nova.apply(policy("bench", SELECTED))
    idle = await _idle(simulation)
    before, began = simulation.cpu(), time.monotonic()
    for number in range(count):
        await asyncio.sleep(max(0.0, began + number / _RATE - time.monotonic()))
        await api.create(f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments", deployment(f"scale-{number}"))
    await _progress(lambda: _placed(api), count)
    await asyncio.sleep(_SETTLE)
    after, seconds = simulation.cpu(), time.monotonic() - began
    idle_cores = {"servers": idle["idle_servers_percent"] / 100, "scheduler": idle["idle_scheduler_percent"] / 100,
                  "agents": idle["idle_agent_percent"] * simulation.count / 100}
    return {name: round((after[name] - before[name] - idle_cores[name] * seconds) * 1000 / count, 2) for name in after}


async def _fill(simulation: _Simulation, api: Api, amounts: Amounts) -> dict[str, float]:
    """Place many ConfigMaps; a part of them by a policy that is edited later."""
    simulation.nova.apply(policy("edited", _EDITED))
    began, total = time.monotonic(), await _placed(api) + amounts.objects
    edited = [config_map(f"edited-{number}") for number in range(amounts.edited)]
    for obj in edited:
        obj["metadata"]["labels"] = _EDITED
    others = [config_map(f"other-{number}") for number in range(amounts.objects - amounts.edited)]
    await create_at_once(api, [*edited, *others])
    await _progress(lambda: _placed(api), total)
    seconds = time.monotonic() - began
    return {"objects": float(amounts.objects), "fill_per_s": round(amounts.objects / seconds, 1)}


async def _restart(simulation: _Simulation, api: Api) -> dict[str, float]:
    """Return the seconds from the start of a scheduler to its first placement."""
    simulation.scheduler.stop()
    began, total = time.monotonic(), await _placed(api) + 1
    await api.create(f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments", deployment("restart"))
    simulation.scheduler.start()
    await _progress(lambda: _placed(api), total)
    seconds = time.monotonic() - began
    return {"restart_s": round(seconds, 1), "restart_cpu_s": round(cpu_seconds(simulation.scheduler), 1)}


async def _edit(simulation: _Simulation, api: Api, amounts: Amounts) -> dict[str, float]:
    """Edit a policy so that the schedules of its objects change; return the CPU ms of the scheduler per object."""
    before = cpu_seconds(simulation.scheduler)
    simulation.nova.apply(policy("edited", _EDITED, failover="AvailabilityFirst"))

    async def changed() -> int:
        page = await api.list(  # from the cache of the API server: a read from etcd would read all schedules
            SCHEDULES, labelSelector="nova.elotl.co/matching-policy=edited", resourceVersion="0")
        return sum(item["spec"].get("failover") == "AvailabilityFirst" for item in page["items"])

    await _progress(changed, amounts.edited)
    return {"edit_scheduler_ms": round((cpu_seconds(simulation.scheduler) - before) * 1000 / amounts.edited, 2)}
