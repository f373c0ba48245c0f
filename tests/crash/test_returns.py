"""A killed host whose queued orders expire, and which does not execute them after its return."""

from __future__ import annotations

import pathlib
import time
from collections.abc import Iterator

import pytest

from tests.crash import invariants
from tests.crash.steps import Points
from tests.integration.cluster import Cluster
from tests.integration.processes import eventually
from tests.integration.rabbit import Rabbit

# Seconds until the orders of a host are abandoned; a host counts as down after 10.
_GIVEN_UP = 60.0
# Seconds in which a returning host would have executed an order of its queue, with a wide margin.
_WHILE = 8.0


@pytest.fixture
def nova(rabbitmq: Rabbit, tmp_path: pathlib.Path) -> Iterator[Cluster]:
    options = {"fake": {"latency": "spawn:1.5,destroy:0.1"}, "DEFAULT": {"max_concurrent_builds": 2}}
    launcher = Points(tmp_path).launcher
    with Cluster(rabbitmq.new_vhost(), None, computes=3, options=options, launcher=launcher) as made:
        yield made
        made.audit()


def host_of(nova: Cluster, uuid: str) -> str:
    return str(nova.api.show(uuid)["OS-EXT-SRV-ATTR:host"])


def idle(nova: Cluster, *uuids: str) -> bool:
    servers = nova.api.servers()
    return not any(servers[uuid]["OS-EXT-STS:task_state"] for uuid in uuids)


def test_abandoned_stop_is_not_executed_when_its_host_returns(nova: Cluster) -> None:
    [uuid] = nova.boot_many(1)
    nova.all_active([uuid], 30)
    host = host_of(nova, uuid)
    nova.kill(host)
    nova.api.action(uuid, "os-stop")
    assert not idle(nova, uuid)
    eventually(lambda: idle(nova, uuid), _GIVEN_UP, "the stop operation has timed out", interval=0.5)
    assert nova.api.show(uuid)["status"] == "ACTIVE"
    nova.start(host)
    nova.wait_ready()
    until = time.monotonic() + _WHILE
    while time.monotonic() < until:
        server = nova.api.show(uuid)
        # The power state is unknown (0) until the returned host reports it.
        assert (server["status"], server["OS-EXT-STS:power_state"]) in (("ACTIVE", 0), ("ACTIVE", 1))
        time.sleep(0.3)
    eventually(lambda: nova.api.show(uuid)["OS-EXT-STS:power_state"] == 1, 30,
               "the host has reported the power state of its guest")
    # The host executes new orders: a new stop is not confused with the old stop.
    nova.api.action(uuid, "os-stop")
    nova.api.wait(uuid, "SHUTOFF")


def test_rescheduled_builds_are_not_repeated_by_the_returning_host(nova: Cluster) -> None:
    accepted = nova.boot_many(18)
    hosts: dict[str, list[str]] = {}

    def spread() -> bool:
        """Return True if builds wait in the queue of a host, and a guest exists."""
        hosts.clear()
        for uuid, server in nova.api.servers().items():
            if server["status"] == "BUILD" and server["OS-EXT-SRV-ATTR:host"]:
                hosts.setdefault(server["OS-EXT-SRV-ATTR:host"], []).append(uuid)
        return any(len(waiting) >= 3 for waiting in hosts.values()) and bool(invariants.journal(nova))

    eventually(spread, 30, "builds are queued on a host", interval=0.1)
    host = max(hosts, key=lambda name: len(hosts[name]))
    nova.kill(host)
    nova.all_active(accepted, 90)
    moved = [uuid for uuid in hosts[host] if host_of(nova, uuid) != host]
    assert moved, "no build was rescheduled"
    seen = len(invariants.journal(nova))
    nova.start(host)
    nova.wait_ready()
    time.sleep(_WHILE)
    again = [(name, uuid) for verb, name, uuid in invariants.journal(nova)[seen:] if verb == "create"]
    assert not again, "a build was repeated"
    invariants.check(nova, accepted)
    assert all(server["status"] == "ACTIVE" for server in nova.api.servers().values())
