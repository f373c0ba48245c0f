"""Server group policies with independent schedulers: claims re-check the policy."""

import concurrent.futures
import threading
from collections import Counter

import pytest

from nova import bus, exception
from nova.compute.service import ComputeService
from nova.conf import CONF
from tests.functional.client import Client, wait_for
from tests.functional.several_hosts import nothing_used, service_of, set_service, wait_scheduler

_OTHERS = ("host-b", "host-c", "host-d")


@pytest.fixture
def hosts(suite, admin):
    """Yield the names of four empty hosts."""
    services = [ComputeService(bus.connect(CONF, host), host=host) for host in _OTHERS]
    for service in services:
        service.start()
    try:
        for service in services:
            wait_scheduler(suite, service.host, True)
        suite.conductor.core.fleet.reload()  # drops selections that were never claimed
        wait_for(lambda: nothing_used(suite), reason="the scheduler counts all hosts as empty")
        yield [suite.compute.host, *_OTHERS]
        for shown in admin.get("/servers", all_tenants=1)["servers"]:
            admin.delete(f"/servers/{shown['id']}")
            admin.wait_gone(shown["id"])
    finally:
        for service in services:
            service.stop()
            admin.delete(f"/os-services/{service_of(admin, service.host)['id']}")


@pytest.fixture
def grouped(admin):
    """Make a server group and return the scheduler hints of its members."""
    made = []

    def make(policy):
        group = admin.post("/os-server-groups", {"server_group": {"name": "g", "policy": policy}})["server_group"]
        made.append(group["id"])
        return {"os:scheduler_hints": {"group": group["id"]}}

    yield make
    for uuid in made:
        admin.delete(f"/os-server-groups/{uuid}")


class UnawareSchedulers:
    """Independent schedulers that give the same answer to the first ``count`` requests.

    The real scheduler is called once for all of them: a selection that is never claimed would make its host seem
    busier than the hosts of members that are already active. ``full``: all later requests fail with NoValidHost.
    """

    def __init__(self, scheduler, count, full=False):
        self._scheduler, self._full = scheduler, full
        self._barrier, self._lock = threading.Barrier(count), threading.Lock()
        self._left, self._first, self.later = count, None, 0

    def select(self, ctx, spec):
        with self._lock:
            early = self._left > 0
            self._left -= early
            self.later += not early
        if not early and self._full:
            raise exception.NoValidHost(reason="There are not enough hosts available.")
        if not early:
            return self._scheduler.select(ctx, spec)
        with self._lock:
            self._first = self._first or self._scheduler.select(ctx, spec)
        self._barrier.wait(60)
        return self._first


@pytest.fixture
def unaware(suite, monkeypatch):
    """Return a function that replaces the conductor's scheduler with independent schedulers."""
    def replace(count, full=False):
        schedulers = UnawareSchedulers(suite.conductor.core.scheduler, count, full)
        monkeypatch.setattr(suite.conductor.core, "scheduler", schedulers)
        return schedulers

    return replace


def at_once(suite, count, act):
    """Return the results of ``act(client, number)`` for all numbers, called at the same moment."""
    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        return list(pool.map(lambda number: act(Client(suite.url), number), range(count)))


def hosts_of(admin, uuids):
    """Return the number of servers per host, once all are active."""
    return Counter(admin.wait(uuid, "ACTIVE")["OS-EXT-SRV-ATTR:host"] for uuid in uuids)


@pytest.mark.parametrize("policy", ["soft-anti-affinity", "anti-affinity"])
def test_concurrent_builds_with_anti_affinity_are_spread(
        suite, admin, hosts, grouped, unaware, flavor, image_id, policy):
    hints, schedulers = grouped(policy), unaware(3)
    built = at_once(suite, 3, lambda client, _number: client.boot(flavor, image_id, top=hints))
    assert sorted(hosts_of(admin, built).values()) == [1, 1, 1]
    assert schedulers.later <= 6, "a server was scheduled again without a concurrent placement"


def _evacuate(admin, hosts, servers):
    for host in hosts:
        set_service(admin, host, forced_down=True)
    return lambda client, number: client.action(servers[number], "evacuate", {}, version="2.94")


def _unshelve(admin, _hosts, servers):
    for server in servers:
        admin.action(server, "shelve")
        admin.wait(server, "SHELVED", "SHELVED_OFFLOADED")
        if admin.server(server)["status"] == "SHELVED":
            admin.action(server, "shelveOffload")
            admin.wait(server, "SHELVED_OFFLOADED")
    return lambda client, number: client.action(servers[number], "unshelve")


def _migrate(_admin, _hosts, servers):
    return lambda client, number: client.action(servers[number], "migrate")


def _live_migrate(_admin, _hosts, servers):
    return lambda client, number: client.action(
        servers[number], "os-migrateLive", {"host": None, "block_migration": "auto"})


@pytest.mark.parametrize("policy", ["soft-anti-affinity", "anti-affinity"])
@pytest.mark.parametrize("begin", [_migrate, _live_migrate, _evacuate, _unshelve])
def test_concurrent_moves_with_anti_affinity_use_different_hosts(
        suite, admin, hosts, grouped, unaware, flavor, image_id, policy, begin):
    hints = grouped(policy)
    servers = [admin.boot(flavor, image_id, top=hints, availability_zone=f"nova:{host}") for host in hosts[:2]]
    assert sorted(hosts_of(admin, servers)) == sorted(hosts[:2])
    act = begin(admin, hosts[:2], servers)
    unaware(2)
    try:
        at_once(suite, 2, act)
        for server in servers:
            wait_for(lambda server=server: admin.server(server)["status"] in ("ACTIVE", "VERIFY_RESIZE"))
        wait_for(lambda: all(admin.server(server)["OS-EXT-STS:task_state"] is None for server in servers))
        ended = [admin.get(f"/servers/{server}/os-instance-actions")["instanceActions"][0] for server in servers]
        assert [action["message"] for action in ended] == [None, None]
        placed = [admin.server(server)["OS-EXT-SRV-ATTR:host"] for server in servers]
        assert len(set(placed)) == 2, placed
        if begin is not _unshelve:
            assert placed[0] != hosts[0]
            assert placed[1] != hosts[1]
    finally:
        for host in hosts[:2]:
            set_service(admin, host, forced_down=False)


@pytest.mark.parametrize("full", [True, False], ids=["no other host", "the same host again"])
def test_soft_anti_affinity_builds_all_servers_on_a_single_host(
        suite, admin, hosts, grouped, unaware, flavor, image_id, full):
    hints = grouped("soft-anti-affinity")
    for host in hosts[1:]:
        set_service(admin, host, status="disabled")
        wait_scheduler(suite, host, False)
    schedulers = unaware(3, full=full)
    built = at_once(suite, 3, lambda client, _number: client.boot(flavor, image_id, top=hints))
    assert hosts_of(admin, built) == {hosts[0]: 3}
    assert schedulers.later, "the conductor made no further scheduler request"


@pytest.mark.parametrize("policy", ["soft-anti-affinity", "soft-affinity"])
def test_multi_create_with_soft_policy_needs_a_single_scheduler_call(
        suite, admin, hosts, grouped, unaware, flavor, image_id, policy):
    schedulers = unaware(1)
    admin.boot(flavor, image_id, top=grouped(policy), min_count=6, max_count=6)
    placed = hosts_of(admin, [shown["id"] for shown in admin.get("/servers")["servers"]])
    if policy == "soft-anti-affinity":
        assert sorted(placed.values()) == [1, 1, 2, 2]
    assert schedulers.later == 0
