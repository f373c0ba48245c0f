"""The Placement API's rows beside the reports of hosts and the claims of servers, on every database."""

from __future__ import annotations

import concurrent.futures
import types
from collections.abc import Callable

import pytest
import sqlalchemy as sa
from oslo_db import exception as db_exception

from nova import exception
from nova.conductor import announcer
from nova.conductor.endpoints.by_hosts import Heartbeat
from nova.conductor.endpoints.hosts import Services
from nova.conductor.endpoints.placement import Placement
from nova.db import audit, tables
from nova.db.hosts import allocations
from nova.db.placement import candidates, consumers, providers
from nova.objects.base import new_uuid
from nova.objects.hosts.node import Inventory, Provider
from nova.objects.hosts.placement import (
    RESOURCE_CLASS,
    TRAIT,
    CandidateRequest,
    ConsumerChange,
    ProviderFilter,
    RequestedGroup,
)
from tests.unit.conductor.books import Books, at, ctx, node

BANDWIDTH = "NET_BW_EGR_KILOBIT_PER_SEC"


@pytest.fixture
def root(core: Books) -> str:
    """Return the node of host h1, which has a child provider."""
    Heartbeat(core).register(ctx(), "h1", "nova-compute", "compute", 1)
    return report(core, with_child=True)


def report(core: Books, with_child: bool, *traits: str) -> str:
    made = node("h1", uuid="11111111-1111-4111-8111-111111111111")
    made.provider.traits = [*made.provider.traits, *traits]
    if with_child:
        made.children = [Provider(uuid="22222222-2222-4222-8222-222222222222", name="h1_gpu",
                                  inventories={"VGPU": Inventory(total=4)})]
    [stored] = announcer.report_nodes(core, "h1", [made])
    return stored.uuid


def nic_of(core: Books, parent: str, total: int = 1000) -> str:
    placement = Placement(core)
    made = placement.create(ctx(), f"nic-{new_uuid()}", parent_uuid=parent)
    placement.set_inventories(ctx(), made.uuid, {BANDWIDTH: Inventory(total=total)}, made.generation)
    return made.uuid


def allocate(core: Books, consumer: str, amounts: dict[str, dict[str, int]], **values: object) -> None:
    Placement(core).allocate(ctx(), [ConsumerChange(uuid=consumer, allocations=amounts, project_id="p", user_id="u",
                                                    **values)])  # type: ignore[arg-type]


def used(core: Books, provider: str) -> dict[str, int]:
    return {name: inventory.used for name, inventory in Placement(core).get(ctx(), provider).inventories.items()}


def consistent(core: Books) -> bool:
    return [str(finding) for finding in audit.audit(core.db)] == []


def test_reports_keep_external_providers_traits_and_allocations(core: Books, root: str) -> None:
    placement, consumer = Placement(core), new_uuid()
    gpu = "22222222-2222-4222-8222-222222222222"
    nic, below_gpu = nic_of(core, root), nic_of(core, gpu)
    placement.add_name(ctx(), TRAIT, "CUSTOM_A")
    traits = placement.get(ctx(), root).traits
    placement.set_traits(ctx(), root, [*traits, "CUSTOM_A"])
    allocate(core, consumer, {nic: {BANDWIDTH: 7}, root: {"VCPU": 2}})
    core.statements()
    report(core, with_child=True)
    assert {statement.split()[0] for statement in core.statements()} == {"SELECT"}
    assert "CUSTOM_A" in placement.get(ctx(), root).traits
    report(core, True, "HW_CPU_X86_AVX")
    assert {"CUSTOM_A", "HW_CPU_X86_AVX"} <= set(placement.get(ctx(), root).traits)
    report(core, with_child=False)  # the GPU has a provider below it, and so stays without capacity
    assert placement.get(ctx(), gpu).inventories["VGPU"].total == 0
    placement.delete(ctx(), below_gpu)
    report(core, with_child=False)
    with pytest.raises(exception.ProviderNotFound):
        placement.get(ctx(), gpu)
    assert (used(core, nic), used(core, root)["VCPU"]) == ({BANDWIDTH: 7}, 2)
    assert consistent(core)
    placement.set_traits(ctx(), root, traits)
    placement.remove_name(ctx(), TRAIT, "CUSTOM_A")


def test_allocations_and_claims_share_inventories(core: Books, root: str) -> None:
    server = new_uuid()
    for amount in (8, 8, 8, 7):
        allocate(core, new_uuid(), {root: {"VCPU": amount}})
    with pytest.raises(exception.ClaimLost):
        core.db.write(lambda connection: allocations.claim(connection, server, at(root), {"VCPU": 2}, "p", "u"))
    core.db.write(lambda connection: allocations.claim(connection, server, at(root), {"VCPU": 1}, "p", "u"))
    with pytest.raises(exception.PlacementConflict, match="1 requested of 32, 32 used"):
        allocate(core, new_uuid(), {root: {"VCPU": 1}})
    with pytest.raises(exception.OwnedByNova):
        allocate(core, server, {root: {"VCPU": 2}})
    assert Placement(core).usages(ctx(), "p")["unknown"].resources == {"VCPU": 31}
    core.db.write(lambda connection: (allocations.release(connection, server),
                                      allocations.finish_io(connection, root, None)))
    assert used(core, root)["VCPU"] == 31
    assert consistent(core)


def test_failed_allocation_changes_nothing(core: Books, root: str) -> None:
    nic, consumer = nic_of(core, root), new_uuid()
    allocate(core, consumer, {nic: {BANDWIDTH: 10}})
    before = Placement(core).get(ctx(), nic)
    for wrong in ({nic: {BANDWIDTH: 20}, root: {"VCPU": 1000}}, {nic: {BANDWIDTH: 20, "DISK_GB": 1}},
                  {new_uuid(): {"VCPU": 1}}):
        with pytest.raises((exception.PlacementConflict, exception.UnknownProvider)):
            allocate(core, consumer, wrong)
    assert Placement(core).get(ctx(), nic) == before
    view = Placement(core).get_consumer(ctx(), consumer)
    assert view is not None
    assert view.allocations == {nic: {BANDWIDTH: 10}}
    assert consistent(core)


def test_changes_are_published_to_schedulers(core: Books, root: str) -> None:
    core.sent.take()
    nic = nic_of(core, root)
    allocate(core, new_uuid(), {nic: {BANDWIDTH: 10}})
    state = core.sent.take()[-1].states[0]
    assert {child.uuid: child.inventories[BANDWIDTH].used for child in state.children
            if BANDWIDTH in child.inventories} == {nic: 10}
    alone = Placement(core).create(ctx(), "alone").uuid
    assert core.sent.take() == []
    Placement(core).update(ctx(), nic, "moved", alone, reparent=True, move=True)
    states = core.sent.take()
    assert [nic in {child.uuid for child in delta.states[0].children} for delta in states] == [False]
    assert Placement(core).get(ctx(), nic).root_uuid == alone
    assert consistent(core)


def test_deleted_host_takes_its_external_providers_along(core: Books, root: str) -> None:
    placement, consumer, both = Placement(core), new_uuid(), new_uuid()
    nic = placement.create(ctx(), "nic", parent_uuid=root).uuid
    placement.set_inventories(ctx(), nic, {BANDWIDTH: Inventory(total=9)})
    placement.set_aggregates(ctx(), nic, [new_uuid()])
    alone = nic_of(core, placement.create(ctx(), "alone").uuid)
    allocate(core, consumer, {nic: {BANDWIDTH: 1}})
    allocate(core, both, {nic: {BANDWIDTH: 1}, alone: {BANDWIDTH: 1}})
    [service] = Services(core).index(ctx())
    Services(core).delete(ctx(), service.uuid)
    assert {provider.name for provider in placement.index(ctx(), ProviderFilter())} >= {"alone"}
    assert placement.index(ctx(), ProviderFilter(in_tree=root)) == []
    left = core.db.read(lambda connection: set(connection.scalars(sa.select(tables.consumers.c.uuid))))
    assert left == {both}
    members = core.db.read(lambda connection: connection.execute(sa.select(tables.provider_aggregates)).all())
    assert members == []
    assert placement.create(ctx(), "nic").name == "nic"  # the name is free again
    assert consistent(core)


def test_names_in_use(core: Books, root: str) -> None:
    placement = Placement(core)
    assert placement.add_name(ctx(), RESOURCE_CLASS, "CUSTOM_X")
    assert not placement.add_name(ctx(), RESOURCE_CLASS, "CUSTOM_X")
    alone = placement.create(ctx(), "alone").uuid
    placement.set_inventories(ctx(), alone, {"CUSTOM_X": Inventory(total=1)})
    assert {"CUSTOM_X", "VGPU", "VCPU"} <= set(placement.list_names(ctx(), RESOURCE_CLASS))
    with pytest.raises(exception.PlacementConflict):
        placement.remove_name(ctx(), RESOURCE_CLASS, "CUSTOM_X")
    with pytest.raises(exception.Invalid, match="No such trait: CUSTOM_NO"):
        placement.set_traits(ctx(), alone, ["CUSTOM_NO"])
    # the underscore of a name is no wildcard
    placement.add_name(ctx(), TRAIT, "CUSTOM_AXB")
    placement.set_traits(ctx(), alone, ["CUSTOM_AXB"])
    assert not placement.has_name(ctx(), TRAIT, "CUSTOM_A_B")


def test_filters_of_providers(core: Books, root: str) -> None:
    placement, aggregate = Placement(core), new_uuid()
    nic = nic_of(core, root, 10)
    placement.set_aggregates(ctx(), nic, [aggregate])

    def uuids(**conditions: object) -> list[str]:
        wanted = ProviderFilter(**conditions)  # type: ignore[arg-type]
        return [provider.uuid for provider in placement.index(ctx(), wanted)]

    assert uuids(resources={BANDWIDTH: 10}) == uuids(member_of=[[aggregate]]) == uuids(in_tree=nic, uuid=nic) == [nic]
    assert uuids(resources={BANDWIDTH: 11}) == uuids(name="nothing") == uuids(in_tree=new_uuid()) == []
    assert uuids(required=[["COMPUTE_NODE"]]) == [root]
    assert nic not in uuids(not_member_of=[aggregate])
    assert root not in uuids(forbidden=["COMPUTE_NODE"])


def test_candidates_of_many_trees_are_bounded(core: Books, root: str) -> None:
    placement = Placement(core)
    for _ in range(12):
        nic_of(core, placement.create(ctx(), f"root-{new_uuid()}").uuid)
    core.statements()
    found = placement.find_candidates(ctx(), CandidateRequest(limit=5, groups=[
        RequestedGroup(resources={BANDWIDTH: 1})]))
    assert len(found.candidates) == 5
    assert len(core.statements()) <= 6
    assert placement.find_candidates(ctx(), CandidateRequest(limit=5, groups=[
        RequestedGroup(resources={BANDWIDTH: 1, "VCPU": 1}, required=[["COMPUTE_NODE"]])])).candidates == []


def test_providers_in_a_response_are_bounded(core: Books, root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    placement = Placement(core)
    for _ in range(3):
        nic_of(core, placement.create(ctx(), f"root-{new_uuid()}").uuid)
    monkeypatch.setattr(candidates, "_MOST_PROVIDERS", 3)  # each tree has two
    found = placement.find_candidates(ctx(), CandidateRequest(limit=5, groups=[
        RequestedGroup(resources={BANDWIDTH: 1})]))
    assert (len(found.candidates), len(found.providers)) == (2, 4)


def test_concurrent_consumers_never_share_the_last_amount(core: Books, root: str) -> None:
    nic, same = nic_of(core, root, 3), new_uuid()

    def attempt(consumer: str) -> bool:
        try:
            allocate(core, consumer, {nic: {BANDWIDTH: 1}}, checked=True)
        except exception.PlacementConflict:
            return False
        return True

    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        taken = list(pool.map(attempt, [same, same, *(new_uuid() for _ in range(4))]))
    assert taken[:2].count(True) <= 1
    assert (taken.count(True), used(core, nic)) == (3, {BANDWIDTH: 3})
    assert consistent(core)


# --- changes that other transactions commit while a change waits for its locks -----------------------------
def meanwhile(monkeypatch: pytest.MonkeyPatch, name: str, change: Callable[[sa.Connection], object],
              module: types.ModuleType = providers) -> None:
    """Run ``change`` before the first call of this function of the module, as if another transaction had committed it
    at that moment."""
    function, changes = getattr(module, name), [change]

    def wrapped(connection: sa.Connection, *args: object, **kwargs: object) -> object:
        while changes:
            changes.pop()(connection)
        return function(connection, *args, **kwargs)

    monkeypatch.setattr(module, name, wrapped)


def test_parent_that_is_deleted_meanwhile_gets_no_child(core: Books, root: str,
                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    placement = Placement(core)
    moved, parent = placement.create(ctx(), "moved").uuid, placement.create(ctx(), "parent", parent_uuid=root).uuid
    meanwhile(monkeypatch, "hold", lambda connection: providers.delete(connection, parent))
    with pytest.raises(exception.UnknownProvider, match="parent_provider_uuid"):
        placement.update(ctx(), moved, "moved", parent, reparent=True, move=True)
    assert placement.get(ctx(), moved).parent_uuid is None


def test_change_of_the_parent_is_repeated_if_the_parent_moves_meanwhile(core: Books, root: str,
                                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    placement = Placement(core)
    moved, parent = placement.create(ctx(), "moved").uuid, placement.create(ctx(), "parent").uuid
    meanwhile(monkeypatch, "hold", lambda connection: providers.update(
        connection, parent, "parent", root, reparent=True, move=True))

    def attempt(connection: sa.Connection) -> None:
        with pytest.raises(db_exception.RetryRequest):
            providers.update(connection, moved, "moved", parent, reparent=True, move=True)

    core.db.write(attempt)


def test_uuid_that_is_taken_meanwhile_is_a_conflict(core: Books, root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    uuid = new_uuid()
    meanwhile(monkeypatch, "_register", lambda connection: providers.create(connection, "first", uuid))
    with pytest.raises(exception.DuplicateProvider, match="uuid"):
        Placement(core).create(ctx(), "second", uuid)


def test_usage_does_not_leak_if_a_new_consumer_allocates_from_two_trees_at_once(
        core: Books, root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    consumer, nic, alone = new_uuid(), nic_of(core, root), nic_of(core, Placement(core).create(ctx(), "alone").uuid)
    meanwhile(monkeypatch, "_write_consumer", lambda connection: consumers.replace(connection, [
        ConsumerChange(uuid=consumer, allocations={alone: {BANDWIDTH: 1}})]), consumers)
    allocate(core, consumer, {nic: {BANDWIDTH: 1}})
    assert (used(core, nic), used(core, alone)) == ({BANDWIDTH: 1}, {BANDWIDTH: 0})
    assert consistent(core)


# --- servers on external providers ---------------------------------------------------------------------
def test_provider_with_the_claim_of_a_server_stays_in_the_tree_of_its_node(core: Books, root: str) -> None:
    """A claim counts on its node: elsewhere its release would lower the counters of another node."""
    placement, server, port = Placement(core), new_uuid(), new_uuid()
    nic, agent = nic_of(core, root), placement.create(ctx(), "agent", parent_uuid=root).uuid
    allocate(core, port, {nic: {BANDWIDTH: 1}})
    selection = at(root, allocations={root: {"VCPU": 1}, nic: {BANDWIDTH: 5}})
    core.db.write(lambda connection: allocations.claim(connection, server, selection, {}, "p", "u"))
    placement.update(ctx(), nic, "nic", agent, reparent=True, move=True)
    for provider, parent in ((nic, None), (agent, None), (agent, placement.create(ctx(), "alone").uuid)):
        with pytest.raises(exception.PlacementConflict, match=server):
            placement.update(ctx(), provider, "renamed", parent, reparent=True, move=True)
    core.db.write(lambda connection: (allocations.release(connection, server),
                                      allocations.finish_io(connection, root, None)))
    placement.update(ctx(), agent, "agent", None, reparent=True, move=True)
    assert used(core, nic) == {BANDWIDTH: 1}
    assert consistent(core)


def test_vanished_provider_leaves_its_aggregates(core: Books, root: str) -> None:
    placement, gpu = Placement(core), "22222222-2222-4222-8222-222222222222"
    placement.set_aggregates(ctx(), gpu, [new_uuid()])
    report(core, with_child=False)
    report(core, with_child=True)
    assert placement.get(ctx(), gpu).aggregates == []


def test_ancestors_of_an_external_provider_stay_until_it_is_deleted(core: Books, root: str) -> None:
    placement, group, gpu = Placement(core), new_uuid(), new_uuid()
    with_group, without = (node("h1", uuid=root) for _ in range(2))
    with_group.children = [Provider(uuid=group, name="gpus"), Provider(uuid=gpu, name="gpu", parent_uuid=group)]
    announcer.report_nodes(core, "h1", [with_group])
    nic = nic_of(core, gpu)
    announcer.report_nodes(core, "h1", [without])
    assert {provider.uuid for provider in placement.index(ctx(), ProviderFilter(in_tree=root))} == {
        root, group, gpu, nic}
    placement.delete(ctx(), nic)
    announcer.report_nodes(core, "h1", [without])
    assert [provider.uuid for provider in placement.index(ctx(), ProviderFilter(in_tree=root))] == [root]


def test_consumer_keeps_its_type_if_an_older_version_changes_it(core: Books, root: str) -> None:
    nic, consumer = nic_of(core, root), new_uuid()
    allocate(core, consumer, {nic: {BANDWIDTH: 1}})
    assert Placement(core).get_consumer(ctx(), consumer).type == "unknown"  # type: ignore[union-attr]
    allocate(core, consumer, {nic: {BANDWIDTH: 1}}, type="PORT")
    allocate(core, consumer, {nic: {BANDWIDTH: 2}})
    assert Placement(core).get_consumer(ctx(), consumer).type == "PORT"  # type: ignore[union-attr]


def test_inventories_of_a_tree_are_limited(core: Books, root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    placement = Placement(core)
    nic, alone = nic_of(core, root), nic_of(core, placement.create(ctx(), "alone").uuid)
    monkeypatch.setattr(providers, "_MOST_INVENTORIES", 6)  # the node and its child have four
    placement.set_inventories(ctx(), nic, {BANDWIDTH: Inventory(total=1), "VGPU": Inventory(total=1)})
    with pytest.raises(exception.PlacementConflict, match="6 inventories"):
        placement.set_inventories(ctx(), nic, {
            BANDWIDTH: Inventory(total=1), "VGPU": Inventory(total=1), "FPGA": Inventory(total=1)})
    with pytest.raises(exception.PlacementConflict, match="6 inventories"):
        placement.update(ctx(), alone, "moved", root, reparent=True, move=True)
