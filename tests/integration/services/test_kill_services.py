"""Services killed during builds: every accepted server becomes ACTIVE, and records stay consistent.

All tests share one cluster, and each test restores the cluster.
"""

from __future__ import annotations

import concurrent.futures
import time
from collections.abc import Callable, Iterator

import pytest
import requests

from tests.integration.cluster import Cluster
from tests.integration.databases import Server
from tests.integration.processes import eventually
from tests.integration.rabbit import Rabbit

# Lease, timeout of a lost call and restart, on a loaded machine.
_SETTLE = 90.0
_COMPUTES = ("compute-1", "compute-2", "compute-3")


@pytest.fixture(scope="module")
def cluster(rabbitmq: Rabbit, postgresql: Server) -> Iterator[Cluster]:
    options = {"fake": {"latency": "spawn:0.7,destroy:0.1"}, "DEFAULT": {"max_concurrent_builds": 4}}
    with Cluster(rabbitmq.new_vhost(), postgresql.new_database(), computes=3, options=options) as made:
        yield made


@pytest.fixture
def nova(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster. Restores the services after the test, deletes all servers and audits the records."""
    yield cluster
    cluster.restore(_SETTLE)
    cluster.audit()


def try_boot(nova: Cluster, name: str) -> str | None:
    """Boot a server and return its id, or None if the request was refused because a service is unavailable."""
    try:
        response = nova.api.request("POST", "/servers", {"server": {
            "name": name, "flavorRef": "tiny", "imageRef": nova.api.image_id, "networks": "auto"}})
    except requests.RequestException:
        return None
    assert response.status_code in (202, 503), response.text
    return str(response.json()["server"]["id"]) if response.status_code == 202 else None


def refuses(nova: Cluster) -> bool:
    try:
        return nova.api.request("GET", "/servers", timeout=15).status_code == 503
    except requests.ConnectionError:
        return False  # the API does not listen yet


def storm(nova: Cluster, disturb: Callable[[], None], before: int = 24, during: int = 8) -> list[str]:
    """Boot servers, call ``disturb`` when some are ACTIVE and some are not, and boot more meanwhile.

    Return the accepted servers. A request without a response may have created a server, too.
    """
    accepted = nova.boot_many(before, "before")
    in_the_middle(nova)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        more = [pool.submit(try_boot, nova, f"during-{number}") for number in range(during)]
        disturb()
        return accepted + [uuid for uuid in (future.result() for future in more) if uuid]


def in_the_middle(nova: Cluster) -> None:
    def look() -> bool:
        statuses = [server["status"] for server in nova.api.servers().values()]
        return "ACTIVE" in statuses  # usually others are still being built

    eventually(look, 30, "a server is running", interval=0.05)


def settles(nova: Cluster, accepted: list[str]) -> None:
    """Wait until every accepted server, also those whose response was lost, is ACTIVE."""
    nova.api_returns()
    known = set(accepted) | set(nova.api.servers())
    nova.all_active(sorted(known), _SETTLE)
    nova.audit()


def restart(nova: Cluster, *names: str) -> Callable[[], None]:
    def disturb() -> None:
        nova.kill(*names)
        nova.start(*names)

    return disturb


@pytest.mark.parametrize("names", [
    *(pytest.param(names, marks=pytest.mark.slow) for names in (
        ("compute-1",), ("conductor-1",), ("conductor-1", "conductor-2"), ("scheduler-1", "scheduler-2"))),
    _COMPUTES, ("conductor-1", "scheduler-1", "compute-1", "api"),
], ids="+".join)
def test_builds_resume_after_services_are_killed(nova: Cluster, names: tuple[str, ...]) -> None:
    settles(nova, storm(nova, restart(nova, *names)))


def test_builds_resume_after_the_broker_is_killed(nova: Cluster, rabbitmq: Rabbit) -> None:
    """A running and a restarted API refuse requests quickly while the broker is down."""
    def disturb() -> None:
        rabbitmq.kill()
        assert nova.api.request("GET", "/servers", timeout=15).status_code == 503
        nova.kill("api")
        nova.start("api")
        eventually(lambda: refuses(nova), 20, "the API that has just started refuses")
        rabbitmq.start()

    settles(nova, storm(nova, disturb))


def test_builds_resume_after_the_database_is_killed(nova: Cluster, postgresql: Server) -> None:
    def disturb() -> None:
        postgresql.kill()
        postgresql.restart()

    settles(nova, storm(nova, disturb))


def test_builds_are_rescheduled_when_their_host_stays_down(nova: Cluster) -> None:
    accepted = storm(nova, lambda: nova.kill("compute-2"))
    nova.wait_settled(accepted, _SETTLE)
    servers = nova.api.servers()
    assert {server["status"] for server in servers.values()} == {"ACTIVE"}
    late = [server for server in servers.values() if server["name"].startswith("during")]
    assert not late or {server["OS-EXT-SRV-ATTR:host"] for server in late} <= {"compute-1", "compute-3"}
    nova.start("compute-2")
    nova.wait_ready()
    # The host removes the guests that were rescheduled to other hosts.
    eventually(nova.books_balance, 20, "the returned host has removed the deleted guests", interval=1)


def test_builds_survive_a_conductor_frozen_beyond_its_leases(nova: Cluster) -> None:
    def disturb() -> None:
        nova.freeze("conductor-1")
        time.sleep(6)
        nova.thaw("conductor-1")

    settles(nova, storm(nova, disturb))


def test_deletes_during_builds_and_service_failures_leave_no_records(nova: Cluster) -> None:
    accepted = nova.boot_many(24, "short")
    in_the_middle(nova)
    nova.kill("compute-1", "conductor-2")
    for uuid in accepted:
        eventually(lambda uuid=uuid: nova.api.request("DELETE", f"/servers/{uuid}").status_code in (204, 404), 40,
                   f"the delete of {uuid} is accepted")
    nova.start("compute-1", "conductor-2")
    nova.api.wait_gone(accepted, _SETTLE)
    nova.wait_ready()
    nova.audit()


def test_restart_of_all_services_during_builds_loses_no_server(nova: Cluster) -> None:
    accepted = nova.boot_many(24, "kept")
    in_the_middle(nova)
    names = list(nova.processes)
    ends = {name: process.log.stat().st_size for name, process in nova.processes.items()}
    nova.stop(*names)
    nova.start(*names)
    nova.wait_ready()
    settles(nova, accepted)
    said = {name: process.log.read_bytes()[ends[name]:].decode() for name, process in nova.processes.items()}
    assert not [name for name, text in said.items() if "Traceback" in text]
