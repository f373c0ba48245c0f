"""Hard policies of server groups with two conductors and two independent schedulers.

NOVA_GROUPS=500 runs longer than CI does.
"""

from __future__ import annotations

import collections
import concurrent.futures
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.integration.cluster import Cluster
from tests.integration.databases import Server
from tests.integration.rabbit import Rabbit

GROUPS = int(os.environ.get("NOVA_GROUPS", "40"))
# Groups at the same time, and concurrent requests for each.
_SIDE_BY_SIDE = 4
_MEMBERS = 3
# Share of failing starts if hosts fail; such a member is rescheduled to its next alternate.
_FAILING = 0.3

Hosts = collections.Counter[str]


@pytest.fixture(scope="module", params=[0.0, _FAILING], ids=["hosts-that-work", "hosts-that-fail"])
def nova(request: pytest.FixtureRequest, rabbitmq: Rabbit, postgresql: Server) -> Iterator[Cluster]:
    options = {"fake": {"failure": f"spawn:{request.param}", "vcpus": 1000, "memory_mb": 100000, "disk_gb": 10000},
               "DEFAULT": {"rpc_response_timeout": 25}, "conductor": {"lease": 20, "max_attempts": 4},
               "quota": {**dict.fromkeys(("instances", "cores", "ram", "server_groups"), -1)}}
    with Cluster(rabbitmq.new_vhost(), postgresql.new_database(), computes=4, options=options) as cluster:
        cluster.failing = bool(request.param)  # type: ignore[attr-defined]
        yield cluster


def split(hosts: Hosts) -> bool:
    """Return True if affinity is violated."""
    return len(hosts) > 1


def crowded(hosts: Hosts) -> bool:
    """Return True if anti-affinity is violated."""
    return any(members > 1 for members in hosts.values())


@pytest.mark.parametrize(("policy", "violated"), [("affinity", split), ("anti-affinity", crowded)])
@pytest.mark.parametrize("together", [False, True], ids=["requests", "one-request"])
def test_concurrent_boots_do_not_violate_server_group_policies(
        nova: Cluster, policy: str, violated: Callable[[Hosts], bool], together: bool) -> None:
    """Members are booted in concurrent requests or in one request; hosts may fail."""
    with concurrent.futures.ThreadPoolExecutor(_SIDE_BY_SIDE) as groups, \
            concurrent.futures.ThreadPoolExecutor(_SIDE_BY_SIDE * _MEMBERS) as requests:
        def run(number: int) -> list[dict[str, Any]]:
            group = nova.api.post("/os-server-groups", {"server_group": {"name": f"g{number}", "policy": policy}})
            hints = {"os:scheduler_hints": {"group": group["server_group"]["id"]}}
            ids = boot_together(nova, number, hints) if together else [
                each.result() for each in [requests.submit(boot, nova, f"g{number}-{member}", hints)
                                           for member in range(_MEMBERS)]]
            settled = list(nova.wait_settled(ids, 120).values())
            for uuid in ids:
                nova.api.delete(f"/servers/{uuid}")
            return settled

        found = list(groups.map(run, range(max(1, GROUPS // 8))))
    on_hosts = [collections.Counter(server["OS-EXT-SRV-ATTR:host"] for server in servers
                                    if server["OS-EXT-SRV-ATTR:host"]) for servers in found]
    assert not [hosts for hosts in on_hosts if violated(hosts)]
    statuses = collections.Counter(server["status"] for servers in found for server in servers)
    assert statuses["ACTIVE"] >= len(found), statuses
    if not nova.failing:  # type: ignore[attr-defined]
        assert statuses.keys() == {"ACTIVE"}, [server.get("fault") for servers in found for server in servers]
    nova.api.wait_gone((server["id"] for servers in found for server in servers), 60)
    nova.audit()


def boot(nova: Cluster, name: str, hints: dict[str, Any]) -> str:
    server = {"name": name, "flavorRef": "tiny", "imageRef": nova.api.image_id, "networks": "auto"}
    return str(nova.api.post("/servers", {"server": server, **hints})["server"]["id"])


def boot_together(nova: Cluster, number: int, hints: dict[str, Any]) -> list[str]:
    server = {"name": f"g{number}", "flavorRef": "tiny", "imageRef": nova.api.image_id, "networks": "auto",
              "min_count": _MEMBERS, "max_count": _MEMBERS, "return_reservation_id": True}
    reservation = nova.api.post("/servers", {"server": server, **hints})["reservation_id"]
    found = nova.api.get(f"/servers/detail?reservation_id={reservation}")["servers"]
    assert len(found) == _MEMBERS
    return [server["id"] for server in found]
