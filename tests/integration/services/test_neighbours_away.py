"""Requests and reports while conductors are frozen or down."""

from __future__ import annotations

import concurrent.futures
import threading
import time
from collections.abc import Iterator

import pytest

from tests.integration.client import Client
from tests.integration.cluster import Cluster
from tests.integration.databases import Server
from tests.integration.processes import eventually
from tests.integration.rabbit import Rabbit

_SETTLE = 60.0
_DOWN = 6
_CONDUCTORS = ("conductor-1", "conductor-2")
_COMPUTES = ("compute-1", "compute-2", "compute-3", "compute-4")


@pytest.fixture(scope="module")
def cluster(rabbitmq: Rabbit, postgresql: Server) -> Iterator[Cluster]:
    options = {"DEFAULT": {"service_down_time": _DOWN, "rpc_response_timeout": 8}, "conductor": {"lease": 4}}
    with Cluster(rabbitmq.new_vhost(), postgresql.new_database(), computes=len(_COMPUTES), schedulers=1,
                 options=options) as made:
        yield made


@pytest.fixture
def nova(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster. Restores the services after the test, deletes all servers and audits the records."""
    yield cluster
    for name in _CONDUCTORS:
        cluster.thaw(name)
    cluster.api_returns(60)
    cluster.restore(_SETTLE)
    cluster.audit()


def try_boot(nova: Cluster, name: str) -> str | None:
    """Boot a server and return its id, or None if the request was refused with 503."""
    answer = Client(nova.api.url).request("POST", "/servers", {"server": {
        "name": name, "flavorRef": "tiny", "imageRef": nova.api.image_id, "networks": "none"}}, timeout=60)
    assert answer.status_code in (202, 503), answer.text
    return str(answer.json()["server"]["id"]) if answer.status_code == 202 else None


@pytest.mark.parametrize("frozen", [pytest.param(_CONDUCTORS[0], marks=pytest.mark.slow), _CONDUCTORS[1]])
def test_hosts_stay_up_while_one_of_two_conductors_is_frozen(nova: Cluster, frozen: str) -> None:
    nova.freeze(frozen)
    down: list[str] = []
    looks = 0
    until = time.monotonic() + 3 * _DOWN
    while time.monotonic() < until or looks < 3:
        assert time.monotonic() < until + 120, "almost no request was answered"
        try:
            shown = {service["host"]: service["state"] for service in nova.api.get("/os-services")["services"]}
        except AssertionError:  # the request went to the frozen conductor
            continue
        looks += 1
        down += [host for host in _COMPUTES if shown[host] != "up"]
        time.sleep(0.3)
    assert down == []


def refused(nova: Cluster) -> float | None:
    """Return the seconds until a request was refused, or None if the request succeeded."""
    started = time.monotonic()
    answer = Client(nova.api.url).request("GET", "/servers", timeout=60)
    assert answer.status_code in (200, 503), answer.text
    return time.monotonic() - started if answer.status_code == 503 else None


def test_requests_fail_fast_when_all_conductors_are_killed(nova: Cluster) -> None:
    nova.kill(*_CONDUCTORS)
    time.sleep(1.5)
    with concurrent.futures.ThreadPoolExecutor(64) as pool:
        first = list(pool.map(lambda _number: refused(nova), range(64)))
        after = list(pool.map(lambda _number: refused(nova), range(64)))
    assert None not in first + after
    assert max(filter(None, first)) < 30, first  # all API threads wait a moment for a restart
    assert max(filter(None, after)) < 2, after
    nova.start(*_CONDUCTORS)
    eventually(lambda: refused(nova) is None, 30, "requests are answered again")


def test_requests_fail_at_once_when_all_conductors_are_frozen(nova: Cluster) -> None:
    for name in _CONDUCTORS:
        nova.freeze(name)
    eventually(lambda: (refused(nova) or 60) < 0.5, 40, "requests are refused at once")
    assert max(refused(nova) or 60 for _number in range(20)) < 0.5
    for name in _CONDUCTORS:
        nova.thaw(name)
    eventually(lambda: refused(nova) is None, 30, "requests are answered again")


def test_refused_post_creates_no_server(nova: Cluster) -> None:
    """A thawed conductor skips expired requests and compensates requests that it had committed but not answered."""
    accepted: list[str] = []
    refusals: list[str] = []
    end = threading.Event()

    def ask(number: int) -> None:
        for round_ in range(1000):
            if end.is_set():
                return
            name = f"post-{number}-{round_}"
            uuid = try_boot(nova, name)
            (accepted if uuid else refusals).append(uuid or name)

    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        asked = [pool.submit(ask, number) for number in range(12)]
        time.sleep(2)
        for name in _CONDUCTORS:
            nova.freeze(name)
        eventually(lambda: len(refusals) >= 24, 60, "requests are refused")
        for name in _CONDUCTORS:
            nova.thaw(name)
        before = len(accepted)
        eventually(lambda: len(accepted) > before, 60, "requests are accepted again")
        end.set()
        for future in asked:
            future.result(60)
    eventually(lambda: set(nova.api.servers()) == set(accepted), 30, "only the accepted requests have created servers")
    time.sleep(2)
    assert set(nova.api.servers()) == set(accepted)
    nova.wait_settled(accepted, _SETTLE)


def test_requests_with_one_idempotency_key_create_one_server(nova: Cluster) -> None:
    """Twelve clients repeat the request until it is accepted, while conductors are killed."""
    def ask(_number: int) -> str:
        def accepted() -> str | None:
            answer = Client(nova.api.url).request("POST", "/servers", {"server": {
                "name": "named", "flavorRef": "tiny", "imageRef": nova.api.image_id, "networks": "none"}}, timeout=60,
                headers={"Idempotency-Key": "twelve at once"})
            assert answer.status_code in (202, 503), answer.text
            return str(answer.json()["server"]["id"]) if answer.status_code == 202 else None

        return str(eventually(accepted, 120, "the request is accepted"))

    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        asked = [pool.submit(ask, number) for number in range(12)]
        nova.kill("conductor-1")
        nova.kill("conductor-2")
        nova.start(*_CONDUCTORS)
        answers = {future.result(180) for future in asked}
    assert len(answers) == 1
    assert set(nova.api.servers()) == answers
    nova.wait_settled(answers, _SETTLE)


def test_one_frozen_conductor_of_two_fails_at_most_four_requests(nova: Cluster) -> None:
    nova.freeze("conductor-1")
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        refusals = [seconds for seconds in pool.map(lambda _number: refused(nova), range(200)) if seconds]
    assert len(refusals) <= 4, refusals
