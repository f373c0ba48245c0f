"""Memory of each service over thousands of boots and deletes: what grows with them is a cache without a bound."""

from __future__ import annotations

import time
from typing import Any

from tools.bench import boots
from tools.bench.amounts import Amounts
from tools.bench.cpu import workers
from tools.bench.world import SERVICES, World

_CLIENTS = 20
# Servers that exist at the same time, at most.
_ROUND = 500
# Cycles that fill the caches, the pools and the connections: a fifth of all.
_WARM_UP = 5
# Seconds in which services return free memory to the system.
_REST = 10.0

# The resident memory of each worker process in MiB, by service and pid.
Memory = dict[str, dict[int, float]]


def measure(world: World, amounts: Amounts) -> dict[str, Any]:
    """``cycles_growth_mb``: growth of the worker of each service that grew most, from the end of the warm-up on."""
    warm_up = max(1, amounts.cycles // _WARM_UP)
    _run(world, warm_up)
    before = _memory(world)
    began = time.monotonic()
    _run(world, amounts.cycles - warm_up)
    rate = (amounts.cycles - warm_up) / (time.monotonic() - began)
    after = _memory(world)
    grown = growth(before, after)
    print(f"  {amounts.cycles} boots and deletes, {rate:.1f}/s: growth {grown} MB", flush=True)
    return {"cycles": amounts.cycles, "cycles_per_s": round(rate, 2), "cycles_growth_mb": grown,
            "cycles_rss_mb": {service: max(sizes.values(), default=0.0) for service, sizes in after.items()}}


def growth(before: Memory, after: Memory) -> dict[str, float]:
    """Return the largest growth of a worker per service. A replaced worker counts with its whole memory."""
    return {service: round(max((size - before[service].get(pid, 0.0) for pid, size in sizes.items()), default=0.0), 1)
            for service, sizes in after.items()}


def _run(world: World, count: int) -> None:
    for start in range(0, count, _ROUND):
        boots.boot_and_delete(world, _CLIENTS, min(_ROUND, count - start))


def _memory(world: World) -> Memory:
    time.sleep(_REST)
    sizes_by_service = {service: workers(world.process(service).pid) for service in SERVICES}
    shown = {service: max(sizes.values(), default=0.0) for service, sizes in sizes_by_service.items()}
    print(f"  memory: {shown} MB", flush=True)
    return sizes_by_service
