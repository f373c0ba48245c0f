"""Random requests of several roles: no invariant of the API is violated.

No 5xx, no response slower than two seconds, no data of another project in a response or changed by a request, no
secret in a log, no growth of memory, and consistent records afterwards.
"""

from __future__ import annotations

import itertools
import time
from typing import Any

import pytest
import requests
from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.fuzz import cases
from tests.fuzz.world import World

_BLOCK = 500
_SLOW = 2.0
# Maximum seconds of a trivial request; if it is slower, the machine is busy.
_BUSY = 0.5
# MB by which caches may grow after the first block.
_GROWTH = 40


class Found:
    """Faults, recorded once per operation and kind."""

    def __init__(self) -> None:
        self._wrong: dict[tuple[str, str], str] = {}
        self.statuses: dict[int, int] = {}

    def __call__(self, kind: str, sent: cases.Sent, detail: object) -> None:
        self._wrong.setdefault((kind, sent.key), f"{kind}: {sent} -> {str(detail)[:500]}")

    def all(self) -> list[str]:
        return sorted(self._wrong.values())


def _send(world: World, sent: cases.Sent) -> requests.Response | None:
    try:
        return world.session.request(sent.method, f"{world.url}/v2.1{sent.path}", params=sent.query, data=sent.body,
                                     headers={name: value.encode("latin-1") for name, value in sent.headers.items()},
                                     timeout=60, allow_redirects=False)
    except (requests.exceptions.InvalidHeader, requests.exceptions.InvalidURL):
        return None  # refused by the client library


def _slow(world: World, sent: cases.Sent) -> bool:
    started = time.monotonic()
    world.client("fuzz").get("/flavors?limit=1")
    if time.monotonic() - started > _BUSY:
        return False
    started = time.monotonic()
    _send(world, sent)
    return time.monotonic() - started > _SLOW


def _judge(world: World, sent: cases.Sent, found: Found) -> None:
    started = time.monotonic()
    try:
        answer = _send(world, sent)
    except requests.RequestException as error:
        found("no answer", sent, error)
        return
    if answer is None:
        return
    if time.monotonic() - started > _SLOW and _slow(world, sent):
        found("slow", sent, time.monotonic() - started)
    found.statuses[answer.status_code] = found.statuses.get(answer.status_code, 0) + 1
    if answer.status_code >= 500 and answer.status_code != 501:
        found("5xx", sent, f"{answer.status_code} {answer.text}")
    if sent.persona.name != "admin":
        asked = f"{sent.path} {sent.query} {sent.body!r}"
        for owned in (world.mark, world.things["owner"]["servers"]):
            if owned in answer.text and owned not in asked:
                found("another project's", sent, answer.text)
        if answer.ok and sent.method == "GET" and world.mark in answer.text:
            found("another project's", sent, answer.text)


def _block(world: World, number: int, amount: int, versions: tuple[int, ...], found: Found) -> None:
    @seed(number)
    @settings(max_examples=amount, phases=[Phase.generate], database=None, deadline=None,
              suppress_health_check=list(HealthCheck))
    @given(sent=cases.requests(world, versions))
    def run(sent: cases.Sent) -> None:
        _judge(world, sent, found)

    run()


def test_random_requests_violate_no_invariant_of_the_api(world: World, amount: int,
                                                         request: pytest.FixtureRequest) -> None:
    found, first = Found(), request.config.getoption("--fuzz-seed")
    owned, sizes = world.owned(), []
    # A full run covers all microversions, each block a few of them.
    versions: Any = itertools.cycle(range(0, len(cases.all_versions()), 7))
    for number in range(max(1, amount // _BLOCK)):
        world.renew()
        start = next(versions) + number // 15
        chosen = tuple(cases.all_versions()[(start + step) % len(cases.all_versions())] for step in (0, 26, 52, 78))
        _block(world, first + number, min(_BLOCK, amount), chosen, found)
        assert world.process.running(), world.process.tail()
        sizes.append(world.memory())
        assert world.owned() == owned, f"seed {first + number}"
    print(f"\n{amount} requests, {dict(sorted(found.statuses.items()))}, MB {sizes[0]:.0f} .. {sizes[-1]:.0f}")
    assert found.all() == []
    world.process.stop()
    assert world.findings() == []
    log = world.process.log.read_text(errors="replace")
    assert [secret for secret in world.secrets if secret in log] == []
    assert "Traceback" not in log
    assert sizes[-1] <= sizes[0] + _GROWTH * max(1, len(sizes) / 20), sizes
