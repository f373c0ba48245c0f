"""Fairness: the latency of operations of one project while another project creates thousands of servers.

Runs in a separate suite, which is discarded with its pending operations.
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

# The measured project, which creates one server at a time.
_OTHER = "c" * 32
# Servers per request of the background load, and the number of concurrent requests.
_TOGETHER, _CLIENTS = 250, 2
_POLL = 0.02
_TIMEOUT = 120.0
# Seconds between the rounds of the measured project, so that it adds little load.
_PAUSE = 0.2
_ALONE = 5


def measure(world: World, amounts: Amounts) -> dict[str, Any]:
    """Return ``fair_*_s``: the worst boot, stop and delete during the background load; ``_alone_s``: before it."""
    with world.connect(_OTHER) as connection:
        _round(world, connection)  # rows that a project gets once
        alone = [_round(world, connection) for _ in range(_ALONE)]
        load = _BackgroundLoad(world, amounts.background_servers)
        beside: list[dict[str, float]] = []
        with load:
            began = time.monotonic()
            while load.is_active(time.monotonic() - began < amounts.fair):
                beside.append(_round(world, connection))
                time.sleep(_PAUSE)
            left = load.remaining()
    results: dict[str, Any] = {"crowd": amounts.background_servers, "crowd_left": left, "fair_rounds": len(beside)}
    for name in ("boot", "stop", "delete"):
        results[f"fair_{name}_s"] = round(max(seconds[name] for seconds in beside), 3)
        results[f"fair_{name}_p50_s"] = round(percentile([seconds[name] for seconds in beside], 0.5), 3)
        results[f"fair_{name}_alone_s"] = round(percentile([seconds[name] for seconds in alone], 0.5), 3)
    print(f"  {len(beside)} rounds beside {amounts.background_servers} servers of another project "
          f"({left} still pending): "
          + ", ".join(f"{name} {results[f'fair_{name}_p50_s']:.2f} s, at worst {results[f'fair_{name}_s']:.2f} s "
                      f"(alone {results[f'fair_{name}_alone_s']:.2f} s)" for name in ("boot", "stop", "delete")),
          flush=True)
    return results


def _round(world: World, connection: Connection) -> dict[str, float]:
    """Return the seconds of a boot, a stop and a delete, each from the request to its completion."""
    began = time.monotonic()
    answer = connection.expect(202, "POST", "/servers", world.server_body("one"))
    path = f"/servers/{json.loads(answer)['server']['id']}"
    seconds = {"boot": _until(connection, path, "ACTIVE", began)}
    began = time.monotonic()
    connection.expect(202, "POST", f"{path}/action", b'{"os-stop": null}')
    seconds["stop"] = _until(connection, path, "SHUTOFF", began)
    began = time.monotonic()
    connection.expect(204, "DELETE", path)
    seconds["delete"] = _until(connection, path, "", began)
    return seconds


def _until(connection: Connection, path: str, status: str, began: float) -> float:
    """Wait until the server has ``status`` ("": deleted); return the seconds since ``began``. Raises Unexpected."""
    while True:
        code, content = connection.request("GET", path)
        current = json.loads(content)["server"]["status"] if code == 200 else ""
        if current == status:
            return time.monotonic() - began
        if current == "ERROR" or code not in (200, 404) or time.monotonic() - began > _TIMEOUT:
            raise Unexpected(f"{path}: {code} {current}, expected {status or 404}")
        time.sleep(_POLL)


class _BackgroundLoad:
    """A context manager in which another project creates ``count`` servers."""

    def __init__(self, world: World, count: int) -> None:
        self._world = world
        self._batches = [min(_TOGETHER, count - start) for start in range(0, count, _TOGETHER)]
        self._pool = concurrent.futures.ThreadPoolExecutor(_CLIENTS)
        self._ended = threading.Event()
        self._requests: list[concurrent.futures.Future[None]] = []

    def __enter__(self) -> _BackgroundLoad:
        self._requests = [self._pool.submit(self._create, batch) for batch in self._batches]
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._pool.shutdown(cancel_futures=True)
        with contextlib.suppress(concurrent.futures.CancelledError):
            for future in self._requests:
                future.result()

    def _create(self, batch: int) -> None:
        body = json.loads(self._world.server_body("crowd"))
        body["server"] |= {"min_count": batch, "max_count": batch}
        with self._world.connect() as connection:
            while not self._ended.is_set():
                status, content = connection.request("POST", "/servers", json.dumps(body).encode())
                if status == 202:
                    return
                if status != 503:
                    raise Unexpected(f"POST /servers: {status} {content[:500].decode(errors='replace')}")
                time.sleep(1)

    def is_active(self, time_left: bool) -> bool:
        """Return True if requests are pending, or if servers are being built and time is left."""
        return not all(future.done() for future in self._requests) or (time_left and self.remaining(1) > 0)

    def remaining(self, limit: int = 1000) -> int:
        """Return the number of servers being built, counted up to ``limit``."""
        with self._world.connect() as connection:
            return len(connection.get(f"/servers?status=BUILD&limit={limit}")["servers"])
