"""Overload: four times the load at which the suite answers most. How much of what it does then is of use to anybody?

Load is offered whether answers come or not, as by clients that know nothing of one another. Each waits a while, then
closes its connection: work that is done for it afterwards is lost.
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
from tools.bench.crowd import Crowd
from tools.bench.world import World

# Clients that find out how much can be done at all.
_CLIENTS = (8, 24)
_TIMES = 4
# The machine changes meanwhile: the load is offered so many times, and the peak is what was before, between and after.
_ROUNDS = 2
# Seconds that a client waits for its answer.
PATIENCE = 3.0
# Servers that are asked about.
_SERVERS = 20
_BOOTERS = 20


def measure(world: World, amounts: Amounts) -> dict[str, Any]:
    """``goodput_ratio``: answers in time per second at four times the peak's load, over those at the peak."""
    _booted, ids = boots.boot(world, _BOOTERS, _SERVERS)
    requests = [request for server_id in ids for request in _requests(world, server_id)]
    with _before_others():
        crowd = Crowd((str(world.address.host), int(world.address.port or 0)), requests, PATIENCE)
        closed = {clients: crowd.closed(clients, amounts.overload / 2) for clients in _CLIENTS}
        best = max(closed, key=lambda clients: closed[clients].per_s)
        peaks, opened = [closed[best]], []
        for _ in range(_ROUNDS):
            opened.append(crowd.opened(_TIMES * closed[best].per_s, amounts.overload))
            peaks.append(crowd.closed(best, amounts.overload / 2))
        crowd.close()
    peak = statistics.fmean(found.per_s for found in peaks)
    good = statistics.fmean(found.per_s for found in opened)
    offered = statistics.fmean(found.offered / found.seconds for found in opened)
    answers = sum((found.answers for found in opened), Counter[int]())
    boots.delete(world, _BOOTERS, ids)
    few = boots.boot_and_delete(world, _BOOTERS, amounts.boots[_BOOTERS] // 2)
    many = boots.boot_and_delete(world, _TIMES * _BOOTERS, amounts.boots[_BOOTERS] // 2)
    results = {
        "peak_per_s": round(peak, 1), "overload_offered_per_s": round(offered, 1),
        "goodput_per_s": round(good, 1), "goodput_ratio": round(good / peak, 3),
        "overload_answers": {str(status): count for status, count in sorted(answers.items())},
        "overload_boots_ratio": round(many["boots_per_s"] / few["boots_per_s"], 3)}
    print(f"  {peak:.0f} answers/s at best; offered {results['overload_offered_per_s']:.0f}/s: {good:.0f} in "
          f"time ({results['goodput_ratio']:.2f}), {results['overload_answers']}; boots/s of {_TIMES * _BOOTERS} "
          f"clients over those of {_BOOTERS}: {results['overload_boots_ratio']:.2f}", flush=True)
    return results


def _requests(world: World, server_id: str) -> list[bytes]:
    """What is asked about a server: looks, lists and a write.

    They cost the services much more than the client, who is on the same cores.
    """
    def request(method: str, path: str, body: Any = None) -> bytes:
        content = json.dumps(body).encode() if body else b""
        headers = {"Host": str(world.address.host), "Content-Type": "application/json", **world.headers()}
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return f"{method} /v2.1{path} HTTP/1.1\r\n{lines}Content-Length: {len(content)}\r\n\r\n".encode() + content

    look = request("GET", f"/servers/{server_id}")
    write = request("POST", f"/servers/{server_id}/metadata", {"metadata": {"said": "something"}})
    detail = request("GET", f"/servers/detail?limit={_SERVERS}")
    return [look, detail, write, look, detail]


@contextlib.contextmanager
def _before_others() -> Iterator[None]:
    """Clients are on machines of their own as a rule: they need little of this one, but at once."""
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, usual - 10)
    try:
        yield
    finally:
        with contextlib.suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, usual)
