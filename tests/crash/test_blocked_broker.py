"""RabbitMQ's memory alarm: requests that need a message are refused at once, and no operation is lost."""

from __future__ import annotations

import concurrent.futures
import pathlib
import time
from collections.abc import Iterator

import pytest
import requests

from tests.crash import invariants
from tests.crash.steps import Points
from tests.integration.cluster import Cluster
from tests.integration.processes import eventually
from tests.integration.rabbit import Rabbit, start_rabbitmq

# Number of requests during the alarm, and of concurrent requests, which exceeds the threads of the API.
_REQUESTS, _AT_ONCE = 200, 40
_TIMEOUT = 10
_OPTIONS = {"fake": {"latency": "spawn:2"}, "DEFAULT": {"rpc_response_timeout": _TIMEOUT}}


@pytest.fixture
def rabbit() -> Iterator[Rabbit]:
    """Return a separate broker, since an alarm affects all clients of a broker."""
    with start_rabbitmq() as started:
        yield started


@pytest.fixture
def nova(rabbit: Rabbit, tmp_path: pathlib.Path) -> Iterator[Cluster]:
    with Cluster(rabbit.new_vhost(), computes=2, options=_OPTIONS, launcher=Points(tmp_path).launcher) as cluster:
        yield cluster
        cluster.restore(invariants.BOUND)
        cluster.audit()


def test_blocked_broker_refuses_requests_without_delay(nova: Cluster, rabbit: Rabbit) -> None:
    there = nova.boot_many(4, "there")
    nova.all_active(there, 60)
    building = nova.boot_many(4, "building")
    with rabbit.alarm():
        eventually(lambda: nova.api.request("GET", "/flavors", timeout=60).status_code == 503, 60,
                   "the API detects the blocked broker")
        took: list[float] = []
        versions = nova.api.url.removesuffix("/v2.1")

        def ask(number: int) -> requests.Response:
            begin = time.monotonic()
            if number % 3 == 0:
                response = requests.get(versions, timeout=120)
            elif number % 3 == 1:
                response = nova.api.request("GET", "/servers/detail", timeout=120)
            else:
                response = nova.api.request("POST", f"/servers/{there[0]}/action", {"reboot": {"type": "SOFT"}},
                                            timeout=120)
            took.append(time.monotonic() - begin)
            return response

        begin = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(_AT_ONCE) as pool:
            responses = list(pool.map(ask, range(_REQUESTS)))
        whole = time.monotonic() - begin
    statuses = [response.status_code for response in responses]
    assert set(statuses[0::3]) == {200}
    assert set(statuses[1::3] + statuses[2::3]) == {503}
    assert all(int(response.headers["Retry-After"]) > 0 for response in responses if response.status_code == 503)
    # Without detection of the alarm, a request would wait a quarter of its timeout for the confirmation of its message.
    assert max(took) < _TIMEOUT / 4, f"{whole:.1f} s, the longest {max(took):.1f} s"
    print(f"{_REQUESTS} requests in {whole:.2f} s, the longest {max(took):.2f} s")
    # A process that retried would get each message accepted by a new connection.
    noticed = {name: process.log.read_text().count("The message broker accepts no messages (memory")
               for name, process in nova.processes.items()}
    print(f"the alarm was noticed: {noticed}")
    assert max(noticed.values()) == noticed["api"] == 1
    nova.api_returns(60)
    nova.wait_ready()
    nova.all_active([*there, *building], invariants.BOUND)
    invariants.check(nova, nova.api.servers())
    assert {invariants.times_built(nova)[uuid] for uuid in building} == {1}
