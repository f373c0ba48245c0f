"""Growth of costs with the number of existing servers."""

from __future__ import annotations

from typing import Any

from tools.bench import boots, reads, starts
from tools.bench.amounts import Amounts
from tools.bench.cpu import Calibration
from tools.bench.fill import fill
from tools.bench.world import World

_CLIENTS = 20


def measure(world: World, amounts: Amounts) -> dict[str, Any]:
    """Return ``growth``: a list of points; ``*_growth``: ratios of the last point (20,000 servers) to the first.

    ``boot_cost_growth``: CPU per boot in units of the calibration loop, since the machine speed varies between points.
    """
    points = []
    for servers in amounts.growth:
        fill(world, servers)
        points.append(_point(world, servers, amounts))
    first, last = points[0], points[-1]
    return {"growth": points,
            "boot_cost_growth": round(last["cpu_yardsticks_per_boot"] / first["cpu_yardsticks_per_boot"], 3),
            "boot_rate_growth": round(last["boots_per_s"] / first["boots_per_s"], 3),
            "get_server_growth": round(last["get_server_ms"] / first["get_server_ms"], 3),
            "list_1000_growth": round(last["list_1000_ms"] / first["list_1000_ms"], 3)}


def _round(world: World, amounts: Amounts) -> dict[str, Any]:
    with Calibration() as machine:
        result = boots.boot_and_delete(world, _CLIENTS, amounts.growth_boots)
    result["cpu_yardsticks_per_boot"] = round(result["cpu_ms_per_boot"] / machine.ms, 4)
    result["yardstick_ms"] = round(machine.ms, 4)
    return result


def _point(world: World, servers: int, amounts: Amounts) -> dict[str, Any]:
    boots.boot_and_delete(world, 4, amounts.growth_boots // 4)  # warm-up: the services were just started
    point: dict[str, Any] = {"servers": servers}
    rounds = [_round(world, amounts) for _ in range(amounts.growth_rounds)]
    # The best round counts, since disturbances only add time.
    for name in ("boots_per_s", "deletes_per_s"):
        point[name] = max(result[name] for result in rounds)
    for name in ("post_p50_ms", "active_p50_ms", "cpu_ms_per_boot", "cpu_yardsticks_per_boot", "cpu_ms_per_delete"):
        point[name] = min(result[name] for result in rounds)
    point["yardstick_ms"] = min(result["yardstick_ms"] for result in rounds)
    point["foreign_cores"] = max(result["boot_disturbance"]["foreign_cores"] for result in rounds)
    with world.connect() as connection:
        middle = connection.get("/servers?limit=1000")["servers"][-1]["id"]
    point |= reads.read(world, "get_server", f"/servers/{middle}", amounts.read)
    point |= reads.read(world, "list_1000", "/servers/detail?limit=1000", amounts.read)
    point |= starts.memories(world, f"with {servers} servers")
    print(f"  {servers:6} servers: {point['boots_per_s']:.1f} boots/s, CPU {point['cpu_ms_per_boot']:.1f} ms per boot, "
          f"GET {point['get_server_ms']:.2f} ms, page of 1000 {point['list_1000_ms']:.0f} ms", flush=True)
    return point
