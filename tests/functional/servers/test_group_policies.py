"""Server group policies with independent schedulers: claims re-check the policy."""

import concurrent.futures
import threading
from collections import Counter

import pytest

from nova import bus, context, exception
from nova.compute.service import ComputeService
from nova.conf import CONF
from nova.image.directory import DirectoryStore
from nova.objects.base import new_uuid
from nova.objects.images.image import Image
from nova.scheduler.options import SchedulerOptions
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

    def make(policy, **rules):
        group = admin.post("/os-server-groups", {"server_group": {
            "name": "g", "policy": policy, **({"rules": rules} if rules else {})}})["server_group"]
        made.append(group["id"])
        return {"os:scheduler_hints": {"group": group["id"]}}

    yield make
    for uuid in made:
        admin.delete(f"/os-server-groups/{uuid}")


class UnawareSchedulers:
    """Independent schedulers that give the same answer to the first ``count`` requests.

    The real scheduler is called once for all of them: a selection that is never claimed would make its host seem
    busier than the hosts of members that are already active. ``full``: all later requests fail with NoValidHost.
    ``differ``: each of the first requests gets another one of the selected hosts.
    """

    def __init__(self, scheduler, count, full=False, differ=False):
        self._scheduler, self._full, self._differ = scheduler, full, differ
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
            if self._differ:
                self._first = [self._first[0][1:] + self._first[0][:1]]
            answer = self._first
        self._barrier.wait(60)
        return answer


@pytest.fixture
def unaware(suite, monkeypatch):
    """Return a function that replaces the conductor's scheduler with independent schedulers."""
    def replace(count, **how):
        schedulers = UnawareSchedulers(suite.conductor.core.scheduler, count, **how)
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


@pytest.fixture
def strong_affinity(suite, monkeypatch):
    """Weigh soft affinity more than free resources, which other hosts have more of."""
    CONF.set_override("soft_affinity_weight_multiplier", 1000.0, group="filter_scheduler")
    monkeypatch.setattr(suite.scheduler.manager, "_settings", SchedulerOptions.from_conf(CONF))
    yield
    CONF.clear_override("soft_affinity_weight_multiplier", group="filter_scheduler")


def test_concurrent_builds_with_soft_affinity_end_on_one_host(
        suite, admin, hosts, grouped, unaware, flavor, image_id, strong_affinity):
    """Each server gets another host from its scheduler."""
    hints, schedulers = grouped("soft-affinity"), unaware(3, differ=True)
    built = at_once(suite, 3, lambda client, _number: client.boot(flavor, image_id, top=hints))
    assert sorted(hosts_of(admin, built).values()) == [3]
    assert 2 <= schedulers.later <= 4


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
    placed = moved(suite, admin, hosts[:2], servers, act)
    assert len(set(placed)) == 2, placed
    if begin is not _unshelve:
        assert placed[0] != hosts[0]
        assert placed[1] != hosts[1]


def moved(suite, admin, hosts, servers, act):
    """Move the servers away from the hosts at once and return their new hosts."""
    try:
        at_once(suite, len(servers), act)
        for server in servers:
            wait_for(lambda server=server: admin.server(server)["status"] in ("ACTIVE", "VERIFY_RESIZE"))
        wait_for(lambda: all(admin.server(server)["OS-EXT-STS:task_state"] is None for server in servers))
        ended = [admin.get(f"/servers/{server}/os-instance-actions")["instanceActions"][0] for server in servers]
        assert {action["message"] for action in ended} == {None}
        return [admin.server(server)["OS-EXT-SRV-ATTR:host"] for server in servers]
    finally:
        for host in hosts:
            set_service(admin, host, forced_down=False)


@pytest.mark.parametrize("begin", [_migrate, _live_migrate, _evacuate, _unshelve])
def test_concurrent_moves_respect_max_server_per_host(
        suite, admin, hosts, grouped, unaware, flavor, image_id, begin):
    """Two hosts have as many members as allowed, so that all moved servers get the same one of the others."""
    hints = grouped("anti-affinity", max_server_per_host=2)
    servers = [admin.boot(flavor, image_id, top=hints, availability_zone=f"nova:{host}")
               for host in (hosts[0], hosts[0], hosts[1], hosts[1])]
    assert hosts_of(admin, servers) == {hosts[0]: 2, hosts[1]: 2}
    act = begin(admin, hosts[:2], servers[:3])
    unaware(3)
    placed = moved(suite, admin, hosts[:2], servers[:3], act)
    assert max(Counter([*placed, hosts[1]]).values()) <= 2, placed
    if begin is not _unshelve:
        assert sorted(Counter(placed).values()) == [1, 2]
        assert set(placed) == set(hosts[2:])


def test_rebuild_keeps_servers_on_a_host_with_max_server_per_host_members(
        suite, admin, hosts, grouped, flavor, image_id, tmp_path):
    hints = grouped("anti-affinity", max_server_per_host=2)
    servers = [admin.boot(flavor, image_id, top=hints, availability_zone=f"nova:{hosts[0]}") for _ in range(2)]
    assert hosts_of(admin, servers) == {hosts[0]: 2}
    (tmp_path / "other").write_bytes(b"\0" * 1024)
    other = DirectoryStore().add(str(tmp_path / "other"), Image(id=new_uuid(), name="other", disk_format="raw",
                                                                container_format="bare", visibility="public")).id
    try:
        at_once(suite, 2, lambda client, number: client.action(servers[number], "rebuild", {"imageRef": other}))
        for server in servers:
            assert admin.wait_idle(server)["image"]["id"] == other
        assert hosts_of(admin, servers) == {hosts[0]: 2}
    finally:
        DirectoryStore().delete(context.admin(), other)


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
