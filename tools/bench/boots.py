"""Boots and deletes by 1, 10 and 20 clients, each of which waits for its server before the next request."""

from __future__ import annotations

import datetime
import json
import time
from typing import Any

from tools.bench.amounts import Amounts
from tools.bench.cpu import Meter
from tools.bench.load import Connection, Unexpected, Watcher, in_parallel, milliseconds
from tools.bench.world import World

# Seconds between two polls of the watcher: short for a single client, longer to limit the cost for many.
_INTERVAL_ALONE, INTERVAL = 0.02, 0.1


def measure(world: World, amounts: Amounts) -> dict[str, Any]:
    """Run all phases; return the results under the names of the JSON file."""
    boot_and_delete(world, 4, max(4, amounts.boots[20] // 10))  # warms up: connections, caches
    poll = _cost_of_a_poll(world)
    phases: dict[str, dict[str, Any]] = {}
    for clients, count in amounts.boots.items():
        phases[str(clients)] = phase = boot_and_delete(world, clients, count)
        phase["watcher_cpu_ms_per_boot"] = round(poll * phase["watcher_polls"] / count, 2)
        print(f"  {clients:2} clients: {phase['boots_per_s']:6.1f} boots/s, {phase['deletes_per_s']:6.1f} deletes/s, "
              f"POST {phase['post_p50_ms']:.0f} ms, ACTIVE {phase['active_p50_ms']:.0f} ms, CPU "
              f"{phase['cpu_ms_per_boot']:.1f} ms per boot {phase['cpu_ms_per_boot_by_process']}", flush=True)
    return {"boots": phases, "boots_per_s": phases["20"]["boots_per_s"],
            "deletes_per_s": phases["20"]["deletes_per_s"],
            "post_p50_ms": phases["10"]["post_p50_ms"], "post_alone_p50_ms": phases["1"]["post_p50_ms"],
            "cpu_ms_per_boot": phases["20"]["cpu_ms_per_boot"],
            "cpu_ms_per_delete": phases["20"]["cpu_ms_per_delete"],
            "cpu_ms_per_boot_by_process": phases["20"]["cpu_ms_per_boot_by_process"],
            "foreign_cores": phases["20"]["boot_disturbance"]["foreign_cores"]}


def boot_and_delete(world: World, clients: int, count: int) -> dict[str, Any]:
    """Create ``count`` servers, then delete them."""
    booted, ids = boot(world, clients, count)
    return booted | delete(world, clients, ids)


def boot(world: World, clients: int, count: int) -> tuple[dict[str, Any], list[str]]:
    """Create servers; return the results and the server ids. Raises Unexpected if a server is not ACTIVE."""
    since = now()
    meter = Meter(world.roots())
    with Watcher(world.connect(), f"/servers?status=BUILD&changes-since={since}", _interval(clients)) as watcher:
        def act(connection: Connection, number: int) -> tuple[str, float, float]:
            began = time.monotonic()
            answer = connection.expect(202, "POST", "/servers", world.server_body(f"bench-{number}"))
            posted = time.monotonic() - began
            server_id = str(json.loads(answer)["server"]["id"])
            watcher.wait(server_id)
            return server_id, posted, time.monotonic() - began

        answers = in_parallel(clients, range(count), world.connect, act)
        used = meter.stop()
    _no_errors(world, since)
    posts, actives = [posted for _id, posted, _active in answers], [active for _id, _posted, active in answers]
    return {
        "boots": count, "boots_per_s": round(count / used.seconds, 2),
        **{f"post_{name}": value for name, value in milliseconds(posts).items()},
        **{f"active_{name}": value for name, value in milliseconds(actives).items()},
        "cpu_ms_per_boot": round(used.ms_per(count), 2), "cpu_ms_per_boot_by_process": used.ms_by_process(count),
        "client_cpu_ms_per_boot": round(1000 * used.by_process["client"] / count, 2),
        "watcher_polls": watcher.polls, "boot_disturbance": used.disturbance(),
    }, [server_id for server_id, _posted, _active in answers]


def delete(world: World, clients: int, ids: list[str]) -> dict[str, Any]:
    """Delete servers and wait until they are deleted."""
    meter = Meter(world.roots())
    path = f"/servers?task_state=deleting&deleted=false&changes-since={now()}"
    with Watcher(world.connect(), path, _interval(clients)) as watcher:
        def act(connection: Connection, server_id: str) -> tuple[float, float]:
            began = time.monotonic()
            connection.expect(204, "DELETE", f"/servers/{server_id}")
            posted = time.monotonic() - began
            watcher.wait(server_id)
            return posted, time.monotonic() - began

        answers = in_parallel(clients, ids, world.connect, act)
        used = meter.stop()
    _verify_deleted(world, ids)
    count = len(ids)
    return {
        "deletes_per_s": round(count / used.seconds, 2),
        **{f"delete_{name}": value for name, value in milliseconds([posted for posted, _deleted in answers]).items()},
        **{f"gone_{name}": value for name, value in milliseconds([deleted for _posted, deleted in answers]).items()},
        "cpu_ms_per_delete": round(used.ms_per(count), 2), "cpu_ms_per_delete_by_process": used.ms_by_process(count),
        "delete_disturbance": used.disturbance(),
    }


def _interval(clients: int) -> float:
    return _INTERVAL_ALONE if clients == 1 else INTERVAL


def _cost_of_a_poll(world: World, count: int = 50) -> float:
    """Return the CPU milliseconds of a poll of the watcher."""
    with world.connect() as connection:
        path = f"/servers?status=BUILD&changes-since={now()}"
        connection.get(path)
        meter = Meter(world.roots())
        for _ in range(count):
            connection.get(path)
        return meter.stop().ms_per(count)


def now() -> str:
    """Return a time two seconds ago for changes-since, which has a resolution of a second."""
    return (datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=2)).strftime("%Y-%m-%dT%H:%M:%SZ")


def _no_errors(world: World, since: str) -> None:
    with world.connect() as connection:
        failed = connection.get(f"/servers/detail?status=ERROR&deleted=false&changes-since={since}")["servers"]
    if failed:
        raise Unexpected(f"{len(failed)} boots failed, e.g.: {failed[0].get('fault')}")


def _verify_deleted(world: World, ids: list[str]) -> None:
    with world.connect() as connection:
        for server_id in ids[:: max(1, len(ids) // 10)]:
            connection.expect(404, "GET", f"/servers/{server_id}")
