"""Overload: four times the load at which the suite answers most. How much of what it does then is of use to anybody?

Load is offered whether answers come or not, as by clients that know nothing of one another. Each waits a while, then
closes its connection: work that is done for it afterwards is lost.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import itertools
import json
import os
import time
from collections.abc import Iterator, Sequence
from typing import Any

from tools.bench import boots
from tools.bench.amounts import Amounts
from tools.bench.world import World

# Clients that find out how much can be done at all.
_CLIENTS = (8, 24)
_TIMES = 4
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
        closed = {clients: _closed(world, requests, clients, amounts.overload / 2) for clients in _CLIENTS}
        best = max(closed, key=lambda clients: closed[clients].per_s)
        opened = asyncio.run(_open(world, requests, _TIMES * closed[best].per_s, amounts.overload))
        # The machine changes meanwhile: the peak is what was before and what is after.
        after = _closed(world, requests, best, amounts.overload / 2)
        peak = (closed[best].per_s + after.per_s) / 2
    boots.delete(world, _BOOTERS, ids)
    few = boots.boot_and_delete(world, _BOOTERS, amounts.boots[_BOOTERS] // 2)
    many = boots.boot_and_delete(world, _TIMES * _BOOTERS, amounts.boots[_BOOTERS] // 2)
    results = {
        "peak_per_s": round(peak, 1), "overload_offered_per_s": round(opened.offered / opened.seconds, 1),
        "goodput_per_s": round(opened.per_s, 1), "goodput_ratio": round(opened.per_s / peak, 3),
        "overload_answers": {str(status): count for status, count in sorted(opened.answers.items())},
        "overload_boots_ratio": round(many["boots_per_s"] / few["boots_per_s"], 3)}
    print(f"  {peak:.0f} answers/s at best; offered {results['overload_offered_per_s']:.0f}/s: {opened.per_s:.0f} in "
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


@dataclasses.dataclass
class Found:
    """``answers``: how often which status came in time; 0: none did."""

    seconds: float
    offered: int
    answers: collections.Counter[int]

    @property
    def per_s(self) -> float:
        """Answers of use."""
        return sum(count for status, count in self.answers.items() if 200 <= status < 300) / self.seconds


def _closed(world: World, requests: Sequence[bytes], clients: int, seconds: float) -> Found:
    """So many clients, each of which asks again as soon as it is answered."""
    load = _Load(world)
    end = time.monotonic() + seconds
    turns = itertools.cycle(requests)

    async def client() -> None:
        while time.monotonic() < end:
            await load.ask(next(turns))

    async def all_clients() -> None:
        await asyncio.gather(*(client() for _ in range(clients)))
        load.close()

    asyncio.run(all_clients())
    return Found(seconds, sum(load.answers.values()), load.answers)


async def _open(world: World, requests: Sequence[bytes], per_s: float, seconds: float) -> Found:
    """So many requests a second, whatever becomes of them.

    What is found is that of the last ``seconds``: before, it is offered until the first clients have given up.
    """
    load = _Load(world)
    began, offered, asked = time.monotonic(), 0, set()
    turns = itertools.cycle(requests)
    # When what counts began (after a machine that has other work held this up, it is later), and what was before.
    since, before, answered = float("inf"), 0, collections.Counter[int]()
    while (passed := time.monotonic() - began) < since + seconds:
        if passed >= PATIENCE and since == float("inf"):
            since, before, answered = passed, offered, collections.Counter(load.answers)
        while offered < passed * per_s:
            task = asyncio.ensure_future(load.ask(next(turns)))
            asked.add(task)
            task.add_done_callback(asked.discard)
            offered += 1
        await asyncio.sleep(0.005)
    found = Found(passed - since, offered - before, load.answers - answered)
    await asyncio.gather(*asked)
    load.close()
    return found


class _Load:
    """Connections that are kept while they are good; each carries one request at a time."""

    def __init__(self, world: World) -> None:
        self._address = str(world.address.host), int(world.address.port or 0)
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self.answers: collections.Counter[int] = collections.Counter()

    async def ask(self, request: bytes) -> None:
        status = 0
        with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
            async with asyncio.timeout(PATIENCE):
                status = await self._exchange(request)
        self.answers[status] += 1

    async def _exchange(self, request: bytes) -> int:
        reader, writer = self._idle.pop() if self._idle else await asyncio.open_connection(*self._address)
        try:
            writer.write(request)
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            await reader.readexactly(int(head.partition(b"\r\ncontent-length:")[2].partition(b"\r\n")[0]))
        except BaseException:
            writer.close()
            raise
        if b"\r\nconnection: close" in head:
            writer.close()
        else:
            self._idle.append((reader, writer))
        return int(head[9:12])

    def close(self) -> None:
        for _reader, writer in self._idle:
            writer.close()
