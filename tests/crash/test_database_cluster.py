"""A whole Nova during database faults: no request is lost, executed twice, or refused wrongly."""

from __future__ import annotations

import concurrent.futures
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import requests

from tests.crash import invariants
from tests.crash.faults.chaos import cut_connections, provoke_deadlocks
from tests.crash.faults.dbproxy import Proxy, When
from tests.crash.steps import Points
from tests.integration.cluster import Cluster
from tests.integration.databases import Server
from tests.integration.processes import eventually
from tests.integration.rabbit import Rabbit

_BOOTS = 50
FULL = pytest.mark.full
WHEN = pytest.mark.parametrize("when", [pytest.param("before", marks=FULL), "after"])
_OPTIONS = {"fake": {"latency": "spawn:0.3"}, "DEFAULT": {"rpc_response_timeout": 10}}


@pytest.fixture(scope="module", params=["postgresql", pytest.param("mariadb", marks=FULL)])
def server(request: pytest.FixtureRequest) -> Server:
    found: Server = request.getfixturevalue(request.param)
    return found


@pytest.fixture(scope="module")
def proxy(server: Server) -> Iterator[Proxy]:
    with Proxy(server.new_database()) as made:
        yield made


@pytest.fixture(scope="module")
def cluster(rabbitmq: Rabbit, proxy: Proxy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    launcher = Points(tmp_path_factory.mktemp("database")).launcher
    with Cluster(rabbitmq.new_vhost(), proxy.url, computes=2, options=_OPTIONS, launcher=launcher) as made:
        yield made


@pytest.fixture
def nova(cluster: Cluster) -> Iterator[Cluster]:
    yield cluster
    cluster.restore(invariants.BOUND)
    cluster.audit()


def ask(nova: Cluster, method: str, path: str, body: object) -> requests.Response:
    return nova.api.request(method, path, body, timeout=60)


def create(nova: Cluster, name: str, **fields: object) -> requests.Response:
    return ask(nova, "POST", "/servers", {"server": {
        "name": name, "flavorRef": "tiny", "imageRef": nova.api.image_id, "networks": "auto", **fields}})


# --- commits with a lost response -----------------------------------------------------------------------
@WHEN
def test_create_server_with_a_lost_commit_response_is_accepted_once(nova: Cluster, proxy: Proxy, when: When) -> None:
    cut = proxy.cut("^COMMIT", of="INSERT INTO instances", when=when)
    response = create(nova, "once", max_count=3)
    assert (response.status_code, cut.done) == (202, 1), response.text
    servers = nova.api.servers()
    assert len(servers) == 3
    assert response.json()["server"]["id"] in servers
    nova.all_active(list(servers), invariants.BOUND)
    invariants.check(nova, servers)
    assert set(invariants.times_built(nova).values()) == {1}


@WHEN
def test_stop_server_with_a_lost_commit_response_is_accepted_once(nova: Cluster, proxy: Proxy, when: When) -> None:
    """Stop a server; the retried transaction must not conflict with the first attempt."""
    uuid = nova.api.boot("stopped")
    nova.api.wait(uuid, "ACTIVE")
    cut = proxy.cut("^COMMIT", of="INSERT INTO actions", when=when)
    response = ask(nova, "POST", f"/servers/{uuid}/action", {"os-stop": None})
    assert (response.status_code, cut.done) == (202, 1), response.text
    nova.api.wait(uuid, "SHUTOFF", invariants.BOUND)
    actions = nova.api.get(f"/servers/{uuid}/os-instance-actions")["instanceActions"]
    assert [action["action"] for action in actions] == ["stop", "create"]


def test_every_commit_of_an_operation_may_lose_its_connection(nova: Cluster, proxy: Proxy) -> None:
    """Cut the connection of each transaction that advances an operation once in COMMIT, before or after its effect."""
    for number in range(4):
        when: When = "after" if number % 2 else "before"
        cut = proxy.cut("^COMMIT", of="UPDATE actions", when=when, times=1 + number // 2)
        uuid = nova.api.boot(f"life-{number}")
        nova.api.wait(uuid, "ACTIVE", invariants.BOUND)
        cut.wait()
        cut = proxy.cut("^COMMIT", of="UPDATE actions", when=when)
        nova.api.action(uuid, "os-stop")
        nova.api.wait(uuid, "SHUTOFF", invariants.BOUND)
        cut.wait()
    servers = nova.api.servers()
    invariants.check(nova, servers)
    assert {invariants.times_built(nova)[uuid] for uuid in servers} == {1}
    proxy.cut("^COMMIT", of="DELETE FROM allocations", when="after", times=3)
    nova.delete_all(invariants.BOUND)
    invariants.check(nova, servers, deleted=servers)


@WHEN
def test_create_flavor_with_a_lost_commit_succeeds_or_is_503(nova: Cluster, proxy: Proxy, when: When) -> None:
    """Create a flavor; the response must not be a conflict with the flavor of the first attempt."""
    cut = proxy.cut("^COMMIT", of="INSERT INTO flavors", when=when)
    response = ask(nova, "POST", "/flavors", {"flavor": {
        "id": f"new-{when}", "name": f"new-{when}", "ram": 64, "vcpus": 1, "disk": 1}})
    assert cut.done == 1
    assert response.status_code in (200, 503), response.text
    assert nova.api.get(f"/flavors/new-{when}")["flavor"]["name"] == f"new-{when}"


# --- during many boots ----------------------------------------------------------------------------------
def boots(nova: Cluster, disturb: Callable[[], None]) -> list[str]:
    """Request 50 servers while ``disturb`` runs; return the accepted servers. Refusals may be 503 only."""
    thread = threading.Thread(target=disturb)
    thread.start()
    with concurrent.futures.ThreadPoolExecutor(5) as pool:
        responses = list(pool.map(lambda number: create(nova, f"boot-{number}"), range(_BOOTS)))
    thread.join()
    others = [response.text for response in responses if response.status_code not in (202, 503)]
    assert not others
    return [response.json()["server"]["id"] for response in responses if response.status_code == 202]


def all_well(nova: Cluster, accepted: list[str]) -> None:
    nova.all_active(accepted, invariants.BOUND)
    servers = nova.api.servers()
    invariants.check(nova, servers)
    assert {invariants.times_built(nova)[uuid] for uuid in servers} == {1}


@FULL
def test_deadlocks_do_not_fail_boots(nova: Cluster, proxy: Proxy, server: Server) -> None:
    met: list[int] = []
    accepted = boots(nova, lambda: met.append(provoke_deadlocks(proxy.url, 6.0)))
    assert met[0] > 0
    assert len(accepted) == _BOOTS
    all_well(nova, accepted)


@FULL
def test_cut_database_connections_delay_boots_only(nova: Cluster, proxy: Proxy, server: Server) -> None:
    """Cut connections repeatedly. A transaction may then take longer than its client waits."""
    def disturb() -> None:
        for _ in range(10):
            cut_connections(server, proxy.url)
            time.sleep(0.6)
            proxy.cut_all()

    accepted = boots(nova, disturb)
    assert len(accepted) > _BOOTS / 2
    all_well(nova, accepted)


@FULL
@pytest.mark.parametrize("seconds", [0.5, 5.0])
def test_killed_database_delays_boots_only(nova: Cluster, server: Server, seconds: float) -> None:
    def disturb() -> None:
        time.sleep(1)
        server.kill()
        time.sleep(seconds)
        server.restart()

    accepted = boots(nova, disturb)
    assert len(accepted) > 10
    all_well(nova, accepted)


@FULL
def test_long_database_outage_is_503_and_operations_resume(nova: Cluster, server: Server) -> None:
    """Stop the database for longer than transactions are retried; conductors resume operations by expired leases."""
    accepted = nova.boot_many(20, "away")
    server.kill()
    begin = time.monotonic()
    assert ask(nova, "GET", "/servers", None).status_code == 503
    assert time.monotonic() - begin < 30
    time.sleep(max(0.0, 30 - (time.monotonic() - begin)))
    server.restart()
    eventually(lambda: ask(nova, "GET", "/servers", None).status_code == 200, 30, "the API answers again")
    nova.wait_ready()
    all_well(nova, accepted)
