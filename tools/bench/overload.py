"""Overload: goodput at four times the load of the peak throughput.

Requests are sent independent of responses, as by independent clients. Each client closes its connection after a
timeout: work that the services do for the request afterwards is lost.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
from collections import Counter
from collections.abc import Iterator
from typing import Any

from tools.bench import boots
from tools.bench.amounts import Amounts
from tools.bench.background_load import BackgroundLoad
from tools.bench.world import World

# Numbers of clients with which the peak throughput is measured.
_CLIENTS = (8, 24)
_TIMES = 4
# The speed of the machine varies: the load runs this many times, and the peak is measured before, between and after.
_ROUNDS = 2
# Seconds that a client waits for a response.
TIMEOUT = 3.0
# Servers that the requests address.
_SERVERS = 20
_BOOTERS = 20


def measure(world: World, amounts: Amounts) -> dict[str, Any]:
    """Return ``goodput_ratio``: the rate of responses in time at four times the peak load over the rate at the peak."""
    _booted, ids = boots.boot(world, _BOOTERS, _SERVERS)
    requests = [request for server_id in ids for request in _requests(world, server_id)]
    with _raised_priority():
        load = BackgroundLoad((str(world.address.host), int(world.address.port or 0)), requests, TIMEOUT)
        closed = {clients: load.closed(clients, amounts.overload / 2) for clients in _CLIENTS}
        best = max(closed, key=lambda clients: closed[clients].per_s)
        peaks, opened = [closed[best]], []
        for _ in range(_ROUNDS):
            opened.append(load.opened(_TIMES * closed[best].per_s, amounts.overload))
            peaks.append(load.closed(best, amounts.overload / 2))
        load.close()
    peak = statistics.fmean(result.per_s for result in peaks)
    good = statistics.fmean(result.per_s for result in opened)
    offered = statistics.fmean(result.offered / result.seconds for result in opened)
    answers = sum((result.answers for result in opened), Counter[int]())
    boots.delete(world, _BOOTERS, ids)
    few = boots.boot_and_delete(world, _BOOTERS, amounts.boots[_BOOTERS] // 2)
    many = boots.boot_and_delete(world, _TIMES * _BOOTERS, amounts.boots[_BOOTERS] // 2)
    results = {
        "peak_per_s": round(peak, 1), "overload_offered_per_s": round(offered, 1),
        "goodput_per_s": round(good, 1), "goodput_ratio": round(good / peak, 3),
        "overload_answers": {str(status): count for status, count in sorted(answers.items())},
        "overload_boots_ratio": round(many["boots_per_s"] / few["boots_per_s"], 3)}
    print(f"  {peak:.0f} responses/s at the peak; offered {results['overload_offered_per_s']:.0f}/s: {good:.0f} in "
          f"time ({results['goodput_ratio']:.2f}), {results['overload_answers']}; boots/s of {_TIMES * _BOOTERS} "
          f"clients over those of {_BOOTERS}: {results['overload_boots_ratio']:.2f}", flush=True)
    return results


def _requests(world: World, server_id: str) -> list[bytes]:
    """Return requests for a server: reads, lists and a write.

    They cost the services much more CPU than the client, which runs on the same cores.
    """
    def request(method: str, path: str, body: Any = None) -> bytes:
        content = json.dumps(body).encode() if body else b""
        headers = {"Host": str(world.address.host), "Content-Type": "application/json", **world.headers()}
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return f"{method} /v2.1{path} HTTP/1.1\r\n{lines}Content-Length: {len(content)}\r\n\r\n".encode() + content

    show = request("GET", f"/servers/{server_id}")
    write = request("POST", f"/servers/{server_id}/metadata", {"metadata": {"said": "something"}})
    detail = request("GET", f"/servers/detail?limit={_SERVERS}")
    return [show, detail, write, show, detail]


@contextlib.contextmanager
def _raised_priority() -> Iterator[None]:
    """Raise the priority of this process: real clients have their own machines and do not wait for a CPU."""
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, usual - 10)
    try:
        yield
    finally:
        with contextlib.suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, usual)
