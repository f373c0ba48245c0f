"""Latency, CPU per placement, and a burst, with real members; the prototype is measured in the same run."""

from __future__ import annotations

import asyncio
import signal
import time
from typing import Any

from nova.federator.kube.client import Api
from tests.integration.federator.federation import policy
from tools.bench.amounts import Amounts
from tools.bench.federator import prototype
from tools.bench.federator.world import (
    SELECTED,
    Arrivals,
    World,
    config_map,
    create_at_once,
    create_namespaces,
    create_paced,
    deployment,
    latencies,
    path_of,
    per_placement,
    requests,
    requests_per_placement,
)

_RATE = 5.0  # Deployments per second
_SETTLE = 3.0  # seconds in which statuses arrive after the last placement
_TIMEOUT = 60.0  # seconds without a further copy
_KINDS = ("Deployment", "ConfigMap")


def measure(world: World, amounts: Amounts) -> dict[str, Any]:
    """Return the measurements of placements at a rate and at once, of Nova and of the prototype."""
    results: dict[str, Any] = {}
    asyncio.run(create_namespaces([world.nova, *world.members]))
    results["federator_floor"] = asyncio.run(_paced_by_prototype(world, amounts.placements))
    world.federate()
    results["federator"] = asyncio.run(_paced(world, amounts.placements))
    results["federator_requests"] = world.requests
    world.stop()
    _show("requests", results["federator_requests"])
    _show("floor", results["federator_floor"])
    _show("federator", results["federator"])
    for member in world.members:  # A burst measures the federator, not the controllers of its members.
        for part in ("kube-controller-manager", "kube-scheduler"):
            member.local.processes.signal(part, signal.SIGSTOP)
    results["federator_burst_floor"] = asyncio.run(_burst_of_prototype(world, amounts.burst))
    world.federate()
    results["federator_burst"] = asyncio.run(_burst(world, amounts.burst))
    world.stop()
    results["federator_burst_ratio"] = round(
        results["federator_burst"]["per_s"] / results["federator_burst_floor"]["per_s"], 2)
    _show("burst, floor", results["federator_burst_floor"])
    _show("burst", results["federator_burst"])
    return results


def _show(title: str, values: dict[str, float]) -> None:
    print(f"  {title:14} " + ", ".join(f"{name} {value:g}" for name, value in values.items()), flush=True)


async def _paced(world: World, count: int) -> dict[str, float]:
    """Place Deployments on the member with the most room."""
    world.nova.apply(policy("bench", SELECTED, [member.name for member in world.members]))
    async with Api(world.nova.config) as api:
        arrivals = Arrivals("nova.elotl.co/managed-by")
        async with arrivals.watch(world.members):
            await _warm_up(api, arrivals)
            before, counts = world.cpu(), await requests(world.nova)
            sent = await create_paced(api, [f"paced-{number}" for number in range(count)], _RATE)
            await arrivals.wait(count, _TIMEOUT)
            await asyncio.sleep(_SETTLE)
            after, memory = world.cpu(), world.agent_mb()
            world.requests = requests_per_placement(counts, await requests(world.nova), count)
        ready = await api.list(path_of("Deployment"))
        assert all(item.get("status", {}).get("readyReplicas") == 1 for item in ready["items"]), "statuses are missing"
        await _clean(api)
    return latencies(sent, arrivals) | per_placement(before, after, count) | {"agent_mb": memory}


async def _warm_up(api: Api, arrivals: Arrivals) -> None:
    """Place a few objects that are not measured: connections, watches of kinds and namespaces exist afterwards."""
    await create_paced(api, [f"warm-{number}" for number in range(6)], _RATE)
    await arrivals.wait(6, _TIMEOUT)
    await asyncio.sleep(_SETTLE)
    arrivals.times.clear()


async def _paced_by_prototype(world: World, count: int) -> dict[str, float]:
    async with prototype.running(world.nova, world.members, ["Deployment"]), Api(world.nova.config) as api:
        arrivals = Arrivals()
        async with arrivals.watch(world.members):
            await _warm_up(api, arrivals)
            before = world.cpu()
            sent = await create_paced(api, [f"floor-{number}" for number in range(count)], _RATE)
            await arrivals.wait(count, _TIMEOUT)
            await asyncio.sleep(_SETTLE)
            after = world.cpu()
        await _clean(api)
    for member in world.members:
        async with Api(member.config) as api:
            await _clean(api)
    return latencies(sent, arrivals) | per_placement(before, after, count)


async def _clean(api: Api) -> None:
    for kind in _KINDS:
        await api.delete(path_of(kind))


async def _burst(world: World, count: int) -> dict[str, float]:
    """Place Deployments and ConfigMaps on two members as fast as possible."""
    members = world.members[:2]
    names = [member.name for member in members]
    world.nova.apply(policy("bench", SELECTED, names, spreadConstraints={
        "topologyKey": "kubernetes.io/metadata.name", "spreadMode": "Duplicate"}))
    arrivals = Arrivals("nova.elotl.co/managed-by")
    async with Api(world.nova.config) as api, arrivals.watch(members, _KINDS):
        return await _run_burst(world, api, arrivals, count, "burst")


async def _burst_of_prototype(world: World, count: int) -> dict[str, float]:
    members = world.members[:2]
    arrivals = Arrivals()
    async with prototype.running(world.nova, members, _KINDS, duplicate=True), Api(world.nova.config) as api:
        async with arrivals.watch(members, _KINDS):
            result = await _run_burst(world, api, arrivals, count, "floor")
        await _clean(api)
    for member in members:
        async with Api(member.config) as member_api:
            await _clean(member_api)
    return result


async def _run_burst(world: World, api: Api, arrivals: Arrivals, count: int, prefix: str) -> dict[str, float]:
    objects = [make(f"{prefix}-{number}") for number in range(count) for make in (deployment, config_map)]
    before, began = world.cpu(), time.monotonic()
    creating = asyncio.create_task(create_at_once(api, objects))
    await arrivals.wait(4 * count, _TIMEOUT)
    await creating
    seconds = max(arrivals.times.values()) - began
    await asyncio.sleep(_SETTLE)
    result = {"per_s": round(2 * count / seconds, 1), "seconds": round(seconds, 1)}
    return result | per_placement(before, world.cpu(), 2 * count)


