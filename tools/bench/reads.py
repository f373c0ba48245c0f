"""Cost of reads: one request at a time, and eight concurrent clients."""

from __future__ import annotations

import time
from typing import Any

from tools.bench.amounts import Amounts
from tools.bench.cpu import Meter
from tools.bench.load import Connection, for_seconds, milliseconds
from tools.bench.world import World

CLIENTS = 8


def measure(world: World, amounts: Amounts) -> dict[str, Any]:
    """Measure reads; needs 1,000 servers (see :mod:`tools.bench.fill`)."""
    with world.connect() as connection:
        page = connection.get("/servers?limit=1000")["servers"]
    results: dict[str, Any] = {"listed": len(page)}
    paths = {"get_server": f"/servers/{page[0]['id']}", "list_1000": "/servers/detail?limit=1000",
             "flavors": "/flavors/detail"}
    for name, path in paths.items():
        results |= read(world, name, path, amounts.read)
        print(f"  {name:12} {results[f'{name}_ms']:8.2f} ms alone, {results[f'{name}_rps']:8.1f} req/s at {CLIENTS} "
              f"clients, CPU {results[f'{name}_cpu_ms']:.2f} ms each", flush=True)
    return results


def read(world: World, name: str, path: str, seconds: float) -> dict[str, Any]:
    """``name``_ms is the median alone, ``name``_rps at eight clients, ``name``_cpu_ms of all processes per request."""
    def act(connection: Connection) -> None:
        connection.expect(200, "GET", path)

    with world.connect() as connection:
        for _ in range(3):  # warms up
            act(connection)
        size = len(connection.expect(200, "GET", path))
    alone = for_seconds(1, seconds, world.connect, act)
    for_seconds(CLIENTS, seconds / 4, world.connect, act)
    meter, began = Meter(world.roots()), time.monotonic()
    together = for_seconds(CLIENTS, seconds * 1.5, world.connect, act)
    used, took = meter.stop(), time.monotonic() - began
    shown = milliseconds(alone)
    return {f"{name}_ms": shown["p50_ms"], f"{name}_p99_ms": shown["p99_ms"],
            f"{name}_rps": round(len(together) / took, 1),
            f"{name}_at_8_ms": milliseconds(together)["p50_ms"],
            f"{name}_at_8_p99_ms": milliseconds(together)["p99_ms"],
            f"{name}_cpu_ms": round(used.ms_per(len(together)), 2), f"{name}_bytes": size}
