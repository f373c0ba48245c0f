"""Unit tests of the conductor's resources, on PostgreSQL and MariaDB instead of SQLite."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from nova import conf
from nova.conductor.endpoints.networks import Networks
from nova.conductor.endpoints.placement import Placement
from nova.conductor.saga.control import ConductorControl
from nova.db import tables
from nova.db.audit.claims import Usage
from nova.db.hosts import allocations, compute_nodes
from nova.db.maintenance import migrate
from nova.db.networks import fixed_ips
from nova.db.placement import consumers
from nova.db.volumes import share_accesses
from nova.objects.base import new_uuid
from nova.objects.hosts.placement import ConsumerChange
from nova.objects.hosts.scheduling import Selection
from nova.objects.networks.network import Network, NetworkRequest
from tests.unit.conductor.accounts.test_certificates import *  # noqa: F403
from tests.unit.conductor.accounts.test_flavors import *  # noqa: F403
from tests.unit.conductor.accounts.test_quotas import *  # noqa: F403
from tests.unit.conductor.accounts.test_user_resources import *  # noqa: F403
from tests.unit.conductor.books import Books, ctx, server
from tests.unit.conductor.conftest import own_clock, settings  # noqa: F401
from tests.unit.conductor.database.test_audit import *  # noqa: F403
from tests.unit.conductor.database.test_audit_storm import *  # noqa: F403
from tests.unit.conductor.database.test_lengths import *  # noqa: F403
from tests.unit.conductor.database.test_outbox import *  # noqa: F403
from tests.unit.conductor.database.test_purge import *  # noqa: F403
from tests.unit.conductor.database.test_statement_limits import *  # noqa: F403
from tests.unit.conductor.hosts.test_aggregates import *  # noqa: F403
from tests.unit.conductor.hosts.test_claims import asking
from tests.unit.conductor.hosts.test_claims import claim as claimed
from tests.unit.conductor.hosts.test_claims import hosts as selections  # noqa: F401
from tests.unit.conductor.hosts.test_nodes import *  # noqa: F403
from tests.unit.conductor.hosts.test_placement import *  # noqa: F403
from tests.unit.conductor.hosts.test_placement import BANDWIDTH, allocate, nic_of
from tests.unit.conductor.hosts.test_services import *  # noqa: F403
from tests.unit.conductor.networks.test_fixed_ips import *  # noqa: F403
from tests.unit.conductor.networks.test_legacy_networks import *  # noqa: F403
from tests.unit.conductor.networks.test_network_hosts import *  # noqa: F403
from tests.unit.conductor.networks.test_networks import *  # noqa: F403
from tests.unit.conductor.networks.test_new_servers import *  # noqa: F403
from tests.unit.conductor.networks.test_security_filters import *  # noqa: F403
from tests.unit.conductor.networks.test_security_groups import *  # noqa: F403
from tests.unit.conductor.servers.test_expressions import *  # noqa: F403
from tests.unit.conductor.test_secret_cipher import *  # noqa: F403
from tests.unit.conductor.volumes.test_shares import *  # noqa: F403


@pytest.fixture(scope="module", params=["postgresql", "mariadb"])
def books(request: pytest.FixtureRequest) -> Iterator[Books]:
    conf.register()
    url = request.getfixturevalue(request.param).new_database()
    migrate.sync(url)
    made = Books(url)
    yield made
    made.db.close()


@pytest.fixture
def core(books: Books) -> Books:
    books.reset()
    return books


def impatient(core: Books, connection: sa.Connection) -> None:
    """Set the lock timeout of the connection to one second."""
    connection.execute(sa.text("SET SESSION innodb_lock_wait_timeout = 1" if core.db.dialect != "postgresql"
                               else "SET LOCAL lock_timeout = '1s'"))


def test_concurrent_address_allocations_on_a_network_do_not_block(core: Books) -> None:
    """The second of two open transactions allocates an address before the first one commits."""
    made = Networks(core).create(ctx(), Network(uuid="", label="n", cidr="10.0.0.0/24", gateway="", bridge="",
                                                cidr_v6="fd00::/64"))
    taken = []
    with core.db.engine.connect() as first, first.begin():
        taken.append(fixed_ips.take(first, made, new_uuid(), new_uuid()))
        with core.db.engine.connect() as second, second.begin():
            impatient(core, second)
            taken.append(fixed_ips.take(second, made, new_uuid(), new_uuid()))
            second.rollback()
    assert [one.addresses[0] for one in taken] == ["10.0.0.2", "10.0.0.3"]
    again = core.db.write(lambda connection: fixed_ips.take(connection, made, new_uuid(), new_uuid()))
    assert again == taken[1]


def test_concurrent_share_access_request_keeps_the_access(core: Books) -> None:
    """Releasing the last known access waits for an open transaction that requests the access."""
    core.db.write(lambda connection: share_accesses.want(connection, "x", "h1", "s1"))
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        with core.db.engine.connect() as coming, coming.begin():
            assert share_accesses.want(coming, "x", "h1", "s2")
            last = pool.submit(core.db.write, lambda connection: share_accesses.leave(connection, "x", "h1", "s1"))
            assert concurrent.futures.wait([last], 1).not_done, "the release does not wait for the open transaction"
        assert not last.result(30)


def test_concurrent_placements_on_a_network_lock_only_their_node(
        core: Books, selections: dict[str, Selection]) -> None:  # noqa: F811
    """A placement on one node does not wait for an open placement on another node."""
    made = Networks(core).create(ctx(), Network(uuid="", label="n", cidr="10.0.0.0/24", gateway="", bridge=""))

    def place(host: str, connection: sa.Connection) -> ConductorControl:
        ctl = ConductorControl(core, ctx(), server(core, requested_networks=[NetworkRequest(network_id=made.uuid)]))
        ctl.claim(selections[host], asking())
        ctl.interfaces.take(host)
        ctl.set(host=host, node=host)
        ctl.apply(connection)
        return ctl

    with core.db.engine.connect() as first, first.begin():
        placed = [place("a", first)]
        with core.db.engine.connect() as second, second.begin():
            impatient(core, second)
            placed.append(place("b", second))
            with pytest.raises(Exception, match=r"(?i)lock"):  # proves that the test detects lock waits
                place("a", second)
    addresses = {ctl.instance.network_info[0].fixed_ips[0].address for ctl in placed}
    assert addresses == {"10.0.0.2", "10.0.0.3"}


def hold_node(connection: sa.Connection, uuid: str) -> None:
    nodes = tables.compute_nodes
    connection.execute(sa.select(nodes.c.id).where(nodes.c.uuid == uuid).with_for_update())


def test_releasing_a_claim_takes_no_lock_before_the_node_lock(
        core: Books, selections: dict[str, Selection]) -> None:  # noqa: F811
    instance, node = claimed(core, selections["a"], asking()), selections["a"].node_uuid
    with core.db.engine.connect() as first, first.begin():
        impatient(core, first)
        hold_node(first, node)
        with core.db.engine.connect() as second, second.begin() as undone:
            impatient(core, second)
            with pytest.raises(Exception, match=r"(?i)lock"):  # The release waits for the lock of the node.
                allocations.release(second, instance.uuid)
            compute_nodes.remove(first, [node])  # The removal succeeds, as the waiting transaction has no locks.
            undone.rollback()


@pytest.mark.parametrize("had", ["a", "b"])
def test_writer_of_two_nodes_locks_them_in_order(
        core: Books, selections: dict[str, Selection], had: str) -> None:  # noqa: F811
    instance = claimed(core, selections[had], asking())
    first_one, second_one = sorted(selections[host].node_uuid for host in "ab")
    other, = {first_one, second_one} - {selections[had].node_uuid}
    ctl = ConductorControl(core, ctx(), instance)
    ctl.release_claim()
    ctl.finish_io(failed=None, node_uuid=other)
    with core.db.engine.connect() as first, first.begin():
        impatient(core, first)
        hold_node(first, first_one)
        with core.db.engine.connect() as second, second.begin() as undone:
            impatient(core, second)
            with pytest.raises(Exception, match=r"(?i)lock"):
                ctl.apply(second)
            hold_node(first, second_one)
            undone.rollback()
    core.db.write(ctl.apply)
    assert core.db.read(lambda connection: allocations.root_of(connection, instance.uuid)) is None


def test_open_allocation_blocks_the_audit_of_its_tree_and_no_removal_of_a_host(
        core: Books, selections: dict[str, Selection]) -> None:  # noqa: F811
    node, alone = selections["a"].node_uuid, nic_of(core, Placement(core).create(ctx(), "alone").uuid)
    busy, other = sorted(new_uuid() for _ in range(2))
    allocate(core, busy, {alone: {BANDWIDTH: 1}})
    allocate(core, other, {node: {"VCPU": 1}})
    with core.db.engine.connect() as first, first.begin():
        consumers.replace(first, [ConsumerChange(uuid=busy, allocations={alone: {BANDWIDTH: 2}})])
        with core.db.engine.connect() as second, second.begin() as undone:
            impatient(core, second)
            with pytest.raises(Exception, match=r"(?i)lock"):
                Usage().lock(second, alone)
            undone.rollback()
        with core.db.engine.connect() as third, third.begin():
            impatient(core, third)
            compute_nodes.remove(third, [node])
    assert core.db.read(lambda connection: connection.scalars(sa.select(tables.consumers.c.uuid)).all()) == [busy]
