"""Start-up time and resident memory of each service."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from tools.bench.amounts import Amounts
from tools.bench.cpu import memory, used
from tools.bench.load import Unexpected
from tools.bench.world import SERVICES, World

_TIMEOUT = 60.0
_POLL = 0.005


def measure(world: World, amounts: Amounts) -> dict[str, Any]:
    """Return ``start_s``: the median time from the start of the process until all its workers are ready."""
    results: dict[str, Any] = {"start_s": {}, "start_cpu_s": {}}
    for service in SERVICES:
        starts = [_start(world, service) for _ in range(amounts.starts)]
        results["start_s"][service] = round(statistics.median(seconds for seconds, _cpu in starts), 3)
        results["start_cpu_s"][service] = round(statistics.median(cpu for _seconds, cpu in starts), 3)
        print(f"  {service:10} {results['start_s'][service]:.2f} s (CPU {results['start_cpu_s'][service]:.2f} s)",
              flush=True)
    world.nova.wait_ready()
    return results


def _start(world: World, service: str) -> tuple[float, float]:
    """Restart a service while the others run; return (seconds, CPU seconds) until it is ready."""
    process = world.process(service)
    world.nova.stop(process.name)
    began = time.monotonic()
    ready = world.start_service(service)
    ready = _answers(world) if service == "api" else ready
    while not ready():
        if time.monotonic() > began + _TIMEOUT:
            raise Unexpected(f"{service} does not start:\n{process.tail()}")
        time.sleep(_POLL)
    seconds = time.monotonic() - began
    return seconds, used({service: [process.pid]})[service]


def _answers(world: World) -> Callable[[], bool]:
    """Return a function that returns True once the API answers a request that needs the conductor."""
    def ask() -> bool:
        try:
            with world.connect() as connection:
                return connection.request("GET", "/flavors?limit=1")[0] == 200
        except (OSError, Unexpected):
            return False

    return ask


def memories(world: World, when: str) -> dict[str, Any]:
    """Return ``rss_mb`` (largest worker of each service) and ``memory_mb`` (details). ``when``: text for the output."""
    details = {service: memory(world.process(service).pid) for service in SERVICES}
    rss = {service: sizes["worker_rss"] for service, sizes in details.items()}
    print(f"  memory {when}: {rss} MB", flush=True)
    return {"rss_mb": rss, "pss_mb": {service: sizes["worker_pss"] for service, sizes in details.items()},
            "memory_mb": details}
