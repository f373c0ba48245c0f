"""Audit and repair during concurrent creations and deletions of servers, with records damaged at random."""

from __future__ import annotations

import concurrent.futures
import random
import threading
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from nova import exception
from nova.conductor import announcer
from nova.conductor.resources import addresses
from nova.db import audit, tables
from nova.db.accounts import quotas
from nova.db.hosts import allocations, services
from nova.db.networks import fixed_ips, networks, security_groups
from nova.db.servers import servers
from nova.objects.base import new_uuid, utcnow
from nova.objects.hosts.scheduling import Selection
from nova.objects.networks.network import Network, NetworkRequest
from nova.objects.servers import states
from nova.objects.servers.instance import Instance
from tests.unit.conductor.books import Books, flavor, node

HOSTS, WORKERS, ROUNDS = ("a", "b"), 4, 40
VCPUS = 8
RESOURCES = {"VCPU": 1, "MEMORY_MB": 512, "DISK_GB": 1}


class Cloud:
    """The transactions in which conductors create and delete servers, with the same order of locks."""

    def __init__(self, core: Books) -> None:
        self.core = core
        self.stop = threading.Event()
        for host in HOSTS:
            core.db.write(lambda connection, host=host: services.register(connection, host, "nova-compute", "c", 1))
        self.nodes = [announcer.report_nodes(core, host, [node(host, vcpus=VCPUS, ratio=1.0)])[0] for host in HOSTS]
        self.network = core.db.write(lambda connection: networks.create(connection, Network(
            uuid=new_uuid(), label="net", cidr="10.0.0.0/16", gateway="10.0.0.1", bridge="")))
        self.group = core.db.write(lambda connection: security_groups.resolve(connection, "p1", ["default"]))[0].id

    def boot(self, number: int) -> Instance | None:
        """Create a server and return it, or return None if the host is full."""
        on = self.nodes[number % len(self.nodes)]
        made = Instance(uuid=new_uuid(), project_id="p1", user_id=f"u{number % 2}", display_name="vm", hostname="vm",
                        flavor=flavor(), created_at=utcnow(), vm_state=states.ACTIVE, launched_at=utcnow(),
                        requested_networks=[NetworkRequest(network_id=self.network.uuid)])

        def write(connection: sa.Connection) -> None:
            servers.insert(connection, [made])
            security_groups.add_members(connection, [self.group], [made.uuid])
            allocations.claim(connection, made.uuid, Selection(host=on.host, node=on.host, node_uuid=on.uuid),
                              RESOURCES, "p1", made.user_id)
            allocations.finish_io(connection, on.uuid, False)
            servers.update(connection, made.uuid, {
                "host": on.host, "node": on.host,
                "network_info": addresses.allocate(connection, made, made.requested_networks or [])})
            quotas.lock(connection, "p1", ("", made.user_id))
            quotas.spend(connection, "p1", made.user_id, 1, made.flavor.vcpus, made.flavor.memory_mb)

        try:
            self.core.db.write(write)
        except exception.ClaimLost:
            return None
        return made

    def delete(self, server: Instance) -> None:
        def write(connection: sa.Connection) -> None:
            allocations.release(connection, server.uuid)
            fixed_ips.release(connection, server.uuid)
            quotas.spend(connection, "p1", server.user_id, -1, -server.flavor.vcpus, -server.flavor.memory_mb)
            security_groups.remove_members(connection, server.uuid)
            servers.update(connection, server.uuid, {"deleted": True, "network_info": []})

        self.core.db.write(write)

    def come_and_go(self, seed: int) -> None:
        """Boot and delete servers at random as one user, and return the highest usage of the hosts."""
        chance, mine = random.Random(seed), []
        for _round in range(ROUNDS):
            if mine and (chance.random() < 0.4 or len(mine) > VCPUS):
                self.delete(mine.pop(chance.randrange(len(mine))))
            elif server := self.boot(chance.randrange(1000)):
                mine.append(server)
            assert max(self.sold().values(), default=0) <= VCPUS, "a host has more servers than VCPUs"

    def sold(self) -> dict[str, int]:
        """Return the number of servers by host, counted from the instance rows."""
        table = tables.instances
        return dict(self.core.db.read(lambda connection: connection.execute(
            sa.select(table.c.host, sa.func.count()).where(table.c.deleted == sa.false(), table.c.host.is_not(None))
            .group_by(table.c.host)).all()))

    def storm(self) -> Iterator[None]:
        """Yield while worker threads create and delete servers. Raise the first error of a worker."""
        with concurrent.futures.ThreadPoolExecutor(WORKERS) as pool:
            running = [pool.submit(self.come_and_go, seed) for seed in range(WORKERS)]
            while any(not one.done() for one in running):
                yield
            for one in running:
                one.result()


@pytest.fixture
def cloud(core: Books) -> Cloud:
    return Cloud(core)


def _spoil(core: Books, chance: random.Random) -> None:
    """Damage a record at random without creating capacity for a further server."""
    inventories, nodes, usages = tables.inventories, tables.compute_nodes, tables.quota_usages
    spoilt: list[Any] = [
        sa.update(inventories).where(inventories.c.resource_class == "VCPU").values(used=inventories.c.used + 3),
        sa.update(nodes).values(num_instances=nodes.c.num_instances + 1),
        sa.update(usages).where(usages.c.user_id == "").values(ram=usages.c.ram + 5)]
    core.db.write(lambda connection: connection.execute(chance.choice(spoilt)))


def test_audit_repair_during_concurrent_boots_never_oversells_hosts(cloud: Cloud) -> None:
    chance = random.Random(1)
    repaired = 0
    for _ in cloud.storm():
        _spoil(cloud.core, chance)
        repaired += sum(finding.repaired for finding in audit.audit(cloud.core.db, repair=True))
    assert repaired
    for _finding in audit.audit(cloud.core.db, repair=True):
        pass
    assert list(audit.audit(cloud.core.db)) == []


def test_audit_ignores_changes_made_while_it_runs(cloud: Cloud) -> None:
    found = [str(finding) for _ in cloud.storm() for finding in audit.audit(cloud.core.db, page=2)]
    assert found == []


def test_audit_holds_no_connection_between_findings(cloud: Cloud) -> None:
    for _server in range(3):
        cloud.boot(0)
    _spoil(cloud.core, random.Random(1))
    table = tables.security_group_members
    cloud.core.db.write(lambda connection: connection.execute(sa.insert(table), [
        {"group_id": cloud.group, "instance_uuid": new_uuid()} for _each in range(3)]))
    before = cloud.core.db.engine.pool.checkedout()  # type: ignore[attr-defined]
    held = [cloud.core.db.engine.pool.checkedout() for _finding in audit.audit(cloud.core.db)]  # type: ignore[attr-defined]
    assert held == [before] * len(held)
    assert len(held) > 3


def test_memory_of_the_audit_is_independent_of_the_number_of_servers(cloud: Cloud) -> None:
    def peak(count: int) -> int:
        cloud.core.db.write(lambda connection: servers.insert(connection, [
            Instance(uuid=new_uuid(), project_id="p2", user_id="u", display_name="vm", hostname="vm", flavor=flavor(),
                     created_at=utcnow(), vm_state=states.ACTIVE) for _each in range(count)]))
        list(audit.audit(cloud.core.db, repair=True, page=50))
        tracemalloc.start()
        try:
            assert list(audit.audit(cloud.core.db, page=50)) == []
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    few, many = peak(100), peak(1500)
    assert many < 1.5 * few
