"""Fairness: one project asks for thousands of servers; how long does the one server of another project take?

In a suite of its own, which is thrown away with whatever still waits in it.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import threading
import time
from typing import Any

from tools.bench.amounts import Amounts
from tools.bench.load import Connection, Unexpected, percentile
from tools.bench.world import World

# The project that asks for one server at a time.
_OTHER = "c" * 32
# Servers of one request of the crowd, and how many such requests at a time.
_TOGETHER, _CLIENTS = 250, 2
_POLL = 0.02
_PATIENCE = 120.0
# Seconds between the rounds of the other project: it shall see how things are, not add to them.
_PAUSE = 0.2
_ALONE = 5


def measure(world: World, amounts: Amounts) -> dict[str, Any]:
    """``fair_*_s``: the worst of a boot, a stop and a delete while the crowd is built; ``_alone_s`` before."""
    with world.connect(_OTHER) as connection:
        _round(world, connection)  # rows that a project gets once
        alone = [_round(world, connection) for _ in range(_ALONE)]
        crowd = _Crowd(world, amounts.crowd)
        beside: list[dict[str, float]] = []
        with crowd:
            began = time.monotonic()
            while crowd.goes_on(time.monotonic() - began < amounts.fair):
                beside.append(_round(world, connection))
                time.sleep(_PAUSE)
            left = crowd.left()
    results: dict[str, Any] = {"crowd": amounts.crowd, "crowd_left": left, "fair_rounds": len(beside)}
    for name in ("boot", "stop", "delete"):
        results[f"fair_{name}_s"] = round(max(found[name] for found in beside), 3)
        results[f"fair_{name}_p50_s"] = round(percentile([found[name] for found in beside], 0.5), 3)
        results[f"fair_{name}_alone_s"] = round(percentile([found[name] for found in alone], 0.5), 3)
    print(f"  {len(beside)} rounds beside {amounts.crowd} servers of another project ({left} still waited): "
          + ", ".join(f"{name} {results[f'fair_{name}_p50_s']:.2f} s, at worst {results[f'fair_{name}_s']:.2f} s "
                      f"(alone {results[f'fair_{name}_alone_s']:.2f} s)" for name in ("boot", "stop", "delete")),
          flush=True)
    return results


def _round(world: World, connection: Connection) -> dict[str, float]:
    """Seconds of a boot, a stop and a delete, each from its request until it is done."""
    began = time.monotonic()
    answer = connection.expect(202, "POST", "/servers", world.server_body("one"))
    path = f"/servers/{json.loads(answer)['server']['id']}"
    found = {"boot": _until(connection, path, "ACTIVE", began)}
    began = time.monotonic()
    connection.expect(202, "POST", f"{path}/action", b'{"os-stop": null}')
    found["stop"] = _until(connection, path, "SHUTOFF", began)
    began = time.monotonic()
    connection.expect(204, "DELETE", path)
    found["delete"] = _until(connection, path, "", began)
    return found


def _until(connection: Connection, path: str, status: str, began: float) -> float:
    """Seconds from ``began`` until the server has ``status`` ("": is gone)."""
    while True:
        code, content = connection.request("GET", path)
        found = json.loads(content)["server"]["status"] if code == 200 else ""
        if found == status:
            return time.monotonic() - began
        if found == "ERROR" or code not in (200, 404) or time.monotonic() - began > _PATIENCE:
            raise Unexpected(f"{path}: {code} {found}, expected {status or 404}")
        time.sleep(_POLL)


class _Crowd:
    """Another project asks for ``count`` servers in the block."""

    def __init__(self, world: World, count: int) -> None:
        self._world = world
        self._shares = [min(_TOGETHER, count - start) for start in range(0, count, _TOGETHER)]
        self._pool = concurrent.futures.ThreadPoolExecutor(_CLIENTS)
        self._ended = threading.Event()
        self._asking: list[concurrent.futures.Future[None]] = []

    def __enter__(self) -> _Crowd:
        self._asking = [self._pool.submit(self._ask, share) for share in self._shares]
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._pool.shutdown(cancel_futures=True)
        with contextlib.suppress(concurrent.futures.CancelledError):
            for future in self._asking:
                future.result()

    def _ask(self, share: int) -> None:
        body = json.loads(self._world.server_body("crowd"))
        body["server"] |= {"min_count": share, "max_count": share}
        with self._world.connect() as connection:
            while not self._ended.is_set():
                status, content = connection.request("POST", "/servers", json.dumps(body).encode())
                if status == 202:
                    return
                if status != 503:
                    raise Unexpected(f"POST /servers: {status} {content[:500].decode(errors='replace')}")
                time.sleep(1)

    def goes_on(self, time_left: bool) -> bool:
        """Whether it asks still, or what it asked for is being built and there is time left."""
        return not all(future.done() for future in self._asking) or (time_left and self.left(1) > 0)

    def left(self, most: int = 1000) -> int:
        """How many of its servers are being built; ``most``: are counted."""
        with self._world.connect() as connection:
            return len(connection.get(f"/servers?status=BUILD&limit={most}")["servers"])
