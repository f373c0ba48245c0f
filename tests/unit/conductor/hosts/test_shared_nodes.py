"""The assignment of bare metal nodes to the hosts that share them."""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Callable

import pytest

from nova import exception
from nova.conductor import announcer
from nova.conductor.endpoints.by_hosts import Heartbeat
from nova.conductor.endpoints.placement import Placement
from nova.db import tables
from nova.db.hosts import allocations, compute_nodes, shared_nodes
from nova.db.servers import evictions, servers
from nova.objects.base import new_uuid
from nova.objects.hosts.placement import ConsumerChange
from nova.objects.hosts.scheduling import Selection
from nova.objects.hosts.service import BARE_METAL
from nova.objects.servers.instance import Instance
from nova.virt.ironic import inventory
from nova.virt.ironic.client import Node
from tests.unit.conductor.books import Books, at, ctx, server, set_columns

Settings = Callable[..., None]
HOSTS = ["m1", "m2", "m3"]
UUIDS = [f"{number:08x}-0000-4000-8000-000000000000" for number in range(60)]


# --- the choice of a host ------------------------------------------------------------------------------
def shares(hosts: list[str], number: int = 3000) -> dict[str, str]:
    return {str(node): shared_nodes.owner_of(str(node), hosts) for node in range(number)}


def test_hosts_get_similar_numbers_of_nodes() -> None:
    counts = collections.Counter(shares(HOSTS).values())
    assert set(counts) == set(HOSTS)
    assert all(900 < count < 1100 for count in counts.values())


def test_order_of_hosts_makes_no_difference() -> None:
    assert shares(HOSTS) == shares(HOSTS[::-1])


def test_lost_host_moves_only_its_own_nodes() -> None:
    before, after = shares(HOSTS), shares(HOSTS[:2])
    assert {node for node, host in before.items() if after[node] != host} == {
        node for node, host in before.items() if host == "m3"}


def test_new_host_takes_nodes_from_all_hosts_and_moves_no_others() -> None:
    before, after = shares(HOSTS), shares([*HOSTS, "m4"])
    moved = {node for node, host in before.items() if after[node] != host}
    assert {after[node] for node in moved} == {"m4"}
    assert {before[node] for node in moved} == set(HOSTS)


# --- hosts and rows ------------------------------------------------------------------------------------
def register(core: Books, *hosts: str, group: str = "ironic//") -> None:
    for host in hosts:
        Heartbeat(core).register(ctx(), host, "nova-compute", "compute", 5, connector={BARE_METAL: group})


def report(core: Books, host: str, trusted: bool = True) -> set[str]:
    """Assign and report nodes as nova-compute does; return the nodes that the host manages."""
    mine = announcer.share_nodes(core, host, UUIDS, trusted)
    announcer.report_nodes(core, host, [inventory.compute_node(Node(
        uuid=uuid, provision_state="available", resource_class="gold"), host) for uuid in mine])
    return set(mine)


def hosts_of(core: Books) -> dict[str, str]:
    return {node.uuid: node.host for node in core.db.read(lambda connection: compute_nodes.index(connection))}


def put(core: Books, host: str, node: str, **changes: object) -> Instance:
    """Place a server on a node."""
    instance = server(core, host, node=node, **changes)
    core.db.write(lambda connection: allocations.claim(
        connection, instance.uuid, at(node), {"CUSTOM_GOLD": 1}, "p1", "u1"))
    return instance


def die(core: Books, host: str) -> None:
    set_columns(core, tables.services, tables.services.c.host == host, forced_down=True)


def test_hosts_that_are_up_manage_each_node_once(core: Books) -> None:
    register(core, *HOSTS)
    for _ in range(2):
        managed = [report(core, host) for host in HOSTS]
    assert sum(map(len, managed)) == len(set().union(*managed)) == len(UUIDS)
    assert hosts_of(core) == {uuid: shared_nodes.owner_of(uuid, HOSTS) for uuid in UUIDS}


def test_new_host_takes_idle_nodes_only(core: Books) -> None:
    register(core, "m1")
    assert report(core, "m1") == set(UUIDS)
    wanted = next(uuid for uuid in UUIDS if shared_nodes.owner_of(uuid, ["m1", "m2"]) == "m2")
    instance = put(core, "m1", wanted)
    register(core, "m2")
    taken = report(core, "m2")
    assert taken == {uuid for uuid in UUIDS if shared_nodes.owner_of(uuid, ["m1", "m2"]) == "m2"} - {wanted}
    assert report(core, "m1") == set(UUIDS) - taken
    assert hosts_of(core)[wanted] == "m1"
    assert core.db.read(lambda connection: servers.get(connection, instance.uuid)).host == "m1"


def test_number_of_statements_does_not_depend_on_the_number_of_nodes_taken_over(core: Books) -> None:
    """A new host takes thousands of nodes at once, which are locked meanwhile."""
    register(core, "m1")
    report(core, "m1")
    register(core, "m2")
    core.statements()
    assert len(announcer.share_nodes(core, "m2", UUIDS, True)) > 10
    assert len(core.statements()) < 15


def test_nodes_and_servers_of_a_dead_host_are_taken_over_and_published(core: Books) -> None:
    register(core, "m1", "m2")
    for host in ("m1", "m2"):
        report(core, host)
    mine = next(uuid for uuid, host in hosts_of(core).items() if host == "m1")
    instance = put(core, "m1", mine)
    die(core, "m1")
    core.sent.take()
    assert report(core, "m2") == set(UUIDS)
    assert set(hosts_of(core).values()) == {"m2"}
    assert core.db.read(lambda connection: servers.get(connection, instance.uuid)).host == "m2"
    published = [state for delta in core.sent.take() for state in delta.states]
    assert next(state for state in published if state.node_uuid == mine).host == "m2"
    used = core.db.read(lambda connection: compute_nodes.get(connection, mine)).inventory("CUSTOM_GOLD").used
    assert used == 1


def test_allocations_of_other_consumers_do_not_keep_a_node_at_a_dead_host(core: Books) -> None:
    register(core, "m1", "m2")
    for host in ("m1", "m2"):
        report(core, host)
    mine = next(uuid for uuid, host in hosts_of(core).items() if host == "m1")
    Placement(core).allocate(ctx(), [ConsumerChange(uuid=new_uuid(), allocations={mine: {"CUSTOM_GOLD": 1}})])
    die(core, "m1")
    assert report(core, "m2") == set(UUIDS)
    assert hosts_of(core)[mine] == "m2"


def test_selection_of_a_node_that_was_taken_over_is_refused(core: Books) -> None:
    register(core, "m1", "m2")
    for host in ("m1", "m2"):
        report(core, host)
    mine = next(uuid for uuid, host in hosts_of(core).items() if host == "m1")
    die(core, "m1")
    report(core, "m2")
    instance = server(core)
    for host, works in (("m1", False), ("m2", True)):
        selection = Selection(node_uuid=mine, host=host, node=mine)
        with contextlib.nullcontext() if works else pytest.raises(exception.ClaimLost, match="manages it now"):
            core.db.write(lambda connection, selection=selection: allocations.claim(
                connection, instance.uuid, selection, {"CUSTOM_GOLD": 1}, "p1", "u1", service="up"))


def test_node_stays_with_a_dead_host_while_an_operation_changes_its_server(core: Books) -> None:
    register(core, "m1", "m2")
    for host in ("m1", "m2"):
        report(core, host)
    mine = next(uuid for uuid, host in hosts_of(core).items() if host == "m1")
    instance = put(core, "m1", mine, action_uuid=new_uuid())
    die(core, "m1")
    assert mine not in report(core, "m2")
    set_columns(core, tables.instances, tables.instances.c.uuid == instance.uuid, action_uuid=None)
    assert mine in report(core, "m2")


def test_node_is_not_taken_over_by_a_host_that_must_remove_its_server(core: Books) -> None:
    register(core, "m1", "m2")
    for host in ("m1", "m2"):
        report(core, host)
    mine = next(uuid for uuid, host in hosts_of(core).items() if host == "m1")
    instance = put(core, "m1", mine)
    core.db.write(lambda connection: evictions.add(connection, instance.uuid, "m2", keep_disks=False))
    die(core, "m1")
    assert mine not in report(core, "m2")


def test_host_that_is_down_gets_no_further_nodes(core: Books) -> None:
    register(core, "m1", "m2")
    die(core, "m2")
    assert report(core, "m1") == set(UUIDS)
    assert announcer.share_nodes(core, "m2", UUIDS, True) == []


def test_hosts_of_another_conductor_group_share_no_nodes(core: Books) -> None:
    register(core, "m1")
    register(core, "m2", group="ironic/other/")
    assert report(core, "m1") == set(UUIDS)
    die(core, "m1")
    assert announcer.share_nodes(core, "m2", UUIDS, True) == []


@pytest.mark.parametrize("listed", [[], ["m1"]])
def test_host_with_its_own_key_must_be_listed(core: Books, settings: Settings, listed: list[str]) -> None:
    register(core, "m1", "m2")
    settings("peer_list", listed, "ironic")
    with pytest.raises(exception.CallerRefused, match="peer_list"):
        announcer.share_nodes(core, "m2", UUIDS, trusted=False)


def test_host_that_is_not_listed_takes_no_part(core: Books, settings: Settings) -> None:
    register(core, "m1", "m2")
    settings("peer_list", ["m1"], "ironic")
    assert report(core, "m1", trusted=False) == set(UUIDS)


def test_assignment_without_changes_only_reads_and_does_not_depend_on_the_number_of_nodes(core: Books) -> None:
    register(core, "m1")
    report(core, "m1")
    core.statements()
    announcer.share_nodes(core, "m1", UUIDS, True)
    assert [statement.split()[0] for statement in core.statements()] == ["SELECT"] * 2


# --- inventories ---------------------------------------------------------------------------------------
AVAILABLE = Node(uuid=UUIDS[0], provision_state="available", resource_class="baremetal.gold-1", power_state="power off",
                 traits=["CUSTOM_FAST"], properties={"cpu_arch": "aarch64"})


def test_available_node_offers_its_resource_class_and_traits() -> None:
    node = inventory.compute_node(AVAILABLE, "m1")
    offered = node.provider.inventories
    assert {name: (item.total, item.reserved) for name, item in offered.items()} == {
        "CUSTOM_BAREMETAL_GOLD_1": (1, 0)}
    assert node.provider.traits == ["COMPUTE_NODE", "CUSTOM_FAST", "OWNER_NOVA"]
    assert node.supported_instances == [("aarch64", "baremetal", "hvm")]
    assert node.uuid == node.hypervisor_hostname == node.provider.uuid == UUIDS[0]


@pytest.mark.parametrize("changes", [
    {"maintenance": True}, {"retired": True}, {"power_state": "error"}, {"provision_state": "manageable"},
    {"provision_state": "cleaning"}, {"instance_uuid": new_uuid()}])
def test_unusable_node_is_reserved(changes: dict[str, object]) -> None:
    node = inventory.compute_node(Node(**{
        "uuid": UUIDS[0], "provision_state": "available", "resource_class": "gold", **changes}), "m1")
    assert node.inventory("CUSTOM_GOLD").capacity == 0


def test_node_without_a_resource_class_offers_nothing() -> None:
    node = inventory.compute_node(Node(uuid=UUIDS[0], provision_state="available"), "m1")
    assert node.provider.inventories == {}
