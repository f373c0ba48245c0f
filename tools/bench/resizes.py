"""Resizes: each server is resized to another host, then confirmed."""

from __future__ import annotations

import collections
import json
import time
from typing import Any

from tools.bench import boots
from tools.bench.amounts import Amounts
from tools.bench.cpu import Meter, Used
from tools.bench.load import Connection, Unexpected, Watcher, in_parallel, milliseconds
from tools.bench.world import World

_CLIENTS = 20
_FLAVOR = "resized"


def measure(world: World, amounts: Amounts) -> dict[str, Any]:
    """Return ``resizes_per_s``: resizes and confirmations by 20 clients, each waiting for its server."""
    world.nova.flavor(_FLAVOR, ram=128, disk=1)
    _booted, ids = boots.boot(world, _CLIENTS, amounts.resizes)
    body = json.dumps({"resize": {"flavorRef": _FLAVOR}}).encode()
    resized, resizing = _all(world, ids, body, "RESIZE", "VERIFY_RESIZE")
    confirmed, confirming = _all(world, ids, b'{"confirmResize": null}', "VERIFY_RESIZE", "ACTIVE")
    boots.delete(world, _CLIENTS, ids)
    count, seconds = len(ids), resizing.seconds + confirming.seconds
    results = {
        "resizes": count, "resizes_per_s": round(count / seconds, 2),
        "cpu_ms_per_resize": round(resizing.ms_per(count) + confirming.ms_per(count), 2),
        **{f"resize_{name}": value for name, value in milliseconds(resized).items()},
        **{f"confirm_{name}": value for name, value in milliseconds(confirmed).items()}}
    print(f"  {results['resizes_per_s']:.1f} resizes and confirms a second, VERIFY_RESIZE after "
          f"{results['resize_p50_ms']:.0f} ms, ACTIVE again after {results['confirm_p50_ms']:.0f} ms, CPU "
          f"{results['cpu_ms_per_resize']:.1f} ms", flush=True)
    return results


def _all(world: World, ids: list[str], body: bytes, busy: str, after: str) -> tuple[list[float], Used]:
    """Send an action to every server and wait until none is ``busy``; return the seconds of each.

    Raises Unexpected if a server does not end in status ``after``.
    """
    since = boots.now()
    meter = Meter(world.roots())
    with Watcher(world.connect(), f"/servers?status={busy}&changes-since={since}", boots.INTERVAL) as watcher:
        def act(connection: Connection, server_id: str) -> float:
            began = time.monotonic()
            connection.expect(202 if busy == "RESIZE" else 204, "POST", f"/servers/{server_id}/action", body)
            watcher.wait(server_id)
            return time.monotonic() - began

        seconds = in_parallel(_CLIENTS, ids, world.connect, act)
        used = meter.stop()
    with world.connect() as connection:
        statuses = [server["status"] for server in connection.get(f"/servers/detail?changes-since={since}")["servers"]
                 if server["id"] in set(ids)]
    if statuses != [after] * len(ids[:1000]):
        raise Unexpected(f"{len(ids)} servers should be {after}, these are: {collections.Counter(statuses)}")
    return seconds, used
