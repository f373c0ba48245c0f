"""Compute nodes: reports write differences, keep claims, and are published to schedulers."""

from __future__ import annotations

import copy
import re
import threading
import uuid
from typing import Any

import pytest

from nova import exception
from nova.conductor import announcer
from nova.conductor.endpoints.by_hosts import Fleet, Heartbeat
from nova.conductor.endpoints.hosts import Aggregates, Hypervisors, Services
from nova.db.hosts import allocations, compute_nodes
from nova.objects.base import new_uuid
from nova.objects.dedicated_resources.numa import HostCell, HostTopology
from nova.objects.dedicated_resources.pci import PciDevice
from nova.objects.hosts.node import ComputeNode, Inventory, Provider
from nova.objects.hosts.scheduling import HostState
from tests.unit.conductor.books import Books, at, ctx, node, server


@pytest.fixture
def hosts(core: Books) -> Books:
    """Return a database with two registered nova-compute services."""
    for host in ("h1", "h2"):
        Heartbeat(core).register(ctx(), host, "nova-compute", "compute", 1)
    core.sent.take()
    core.statements()
    return core


def _report(core: Books, *nodes: ComputeNode, host: str = "h1") -> list[ComputeNode]:
    return announcer.report_nodes(core, host, nodes)


def _state(core: Books, uuid: str) -> HostState:
    return core.db.read(lambda connection: compute_nodes.states_of(connection, [uuid]))[0]


def _claim(core: Books, node_uuid: str, **resources: int) -> str:
    consumer = new_uuid()
    core.db.write(lambda connection: allocations.claim(connection, consumer, at(node_uuid), resources, "p1", "u1"))
    return consumer


def _release(core: Books, consumer: str) -> None:
    core.db.write(lambda connection: allocations.release(connection, consumer))


# --- reports ---------------------------------------------------------------------------------
def test_first_report_creates_the_node_and_publishes_its_state(hosts: Books) -> None:
    [made] = _report(hosts, node("h1", uptime="1 day"))
    assert made.uuid == made.provider.uuid
    assert made.id > 0
    [delta] = hosts.sent.take()
    [state] = delta.states
    assert state == _state(hosts, made.uuid)
    assert (state.host, state.node, state.up, state.disabled, state.availability_zone) == (
        "h1", "h1", True, False, "nova")
    assert state.inventories["VCPU"] == Inventory(total=8, ratio=4.0, max_unit=8)
    assert state.traits == ["COMPUTE_NODE", "HW_ARCH_X86_64"]
    assert state.supported_instances == [("x86_64", "kvm", "hvm")]


def test_unchanged_report_only_reads(hosts: Books) -> None:
    [first] = _report(hosts, node("h1"))
    hosts.sent.take()
    hosts.statements()
    [again] = _report(hosts, node("h1"))
    assert (again.uuid, again.id, again.generation) == (first.uuid, first.id, first.generation)
    assert {statement.split()[0] for statement in hosts.statements()} == {"SELECT"}
    assert hosts.sent.take() == []


def _tables(core: Books) -> list[str]:
    """Return the tables of nodes and inventories in the order of locks and writes."""
    held = list[str]()
    for statement in core.statements():
        words = statement.split()
        if words[0] == "SELECT":
            held += ["compute_nodes"] if words[1] == "compute_nodes.id" and "IN" in words else []
        else:  # PostgreSQL may write several tables by one statement
            held += re.findall(r"\b(?:INSERT INTO|DELETE FROM|UPDATE) (\w+)", statement)
    return [table for table in held if table in ("compute_nodes", "inventories")]


@pytest.mark.parametrize("change", [{"vcpus": 16}, {"ratio": 2.0}])
def test_report_locks_the_node_before_its_inventories(hosts: Books, change: dict[str, Any]) -> None:
    [made] = _report(hosts, node("h1"))
    hosts.statements()
    _claim(hosts, made.uuid, VCPU=1)
    claims = _tables(hosts)
    _report(hosts, node("h1", **change))
    reports = _tables(hosts)
    assert claims[0] == reports[0] == "compute_nodes"
    assert "inventories" in claims
    assert "inventories" in reports


def test_removal_locks_the_node_before_its_inventories(hosts: Books) -> None:
    _report(hosts, node("h1"), node("h1", "other"))
    hosts.statements()
    _report(hosts, node("h1"))
    assert _tables(hosts)[:2] == ["compute_nodes", "compute_nodes"]
    hosts.db.write(lambda connection: compute_nodes.remove_host(connection, "h1"))
    assert _tables(hosts)[0] == "compute_nodes"


@pytest.mark.parametrize("change", [{"vcpus": 16}, {"ratio": 2.0}, {"memory_mb": 1024}])
def test_changed_inventory_increments_the_generation_and_is_published(hosts: Books, change: dict[str, Any]) -> None:
    [first] = _report(hosts, node("h1"))
    hosts.sent.take()
    [again] = _report(hosts, node("h1", **change))
    assert again.generation == first.generation + 1
    [delta] = hosts.sent.take()
    [state] = delta.states
    assert state.generation == again.generation
    wanted = node("h1", **change).provider.inventories
    assert {name: (one.total, one.ratio) for name, one in state.inventories.items()} == {
        name: (one.total, one.ratio) for name, one in wanted.items()}


def test_change_of_display_only_fields_is_stored_but_not_published(hosts: Books) -> None:
    [first] = _report(hosts, node("h1", uptime="1 day", disk_available_least=50))
    hosts.sent.take()
    [again] = _report(hosts, node("h1", uptime="2 days", disk_available_least=40))
    assert again.generation == first.generation
    assert hosts.sent.take() == []
    shown = Hypervisors(hosts).get(ctx(), first.uuid)
    assert (shown.uptime, shown.disk_available_least) == ("2 days", 40)


def test_traits_are_compared_independently_of_their_order(hosts: Books) -> None:
    [first] = _report(hosts, node("h1"))
    hosts.sent.take()
    same = node("h1")
    same.provider.traits.reverse()
    _report(hosts, same)
    assert hosts.sent.take() == []
    other = node("h1")
    other.provider.traits.append("CUSTOM_FAST")
    _report(hosts, other)
    assert "CUSTOM_FAST" in _state(hosts, first.uuid).traits


def test_claims_survive_reports(hosts: Books) -> None:
    [first] = _report(hosts, node("h1"))
    consumer = _claim(hosts, first.uuid, VCPU=3, DISK_GB=10)
    [again] = _report(hosts, node("h1", vcpus=16))
    assert again.provider.inventories["VCPU"].used == 3
    assert again.num_instances == 1
    assert _state(hosts, first.uuid).inventories["VCPU"].used == 3
    without = node("h1")
    del without.provider.inventories["VCPU"]
    _report(hosts, without)
    kept = _state(hosts, first.uuid).inventories["VCPU"]
    assert (kept.total, kept.used) == (0, 3), "claims on a removed resource class must remain, with total 0"
    _report(hosts, node("h1"))
    assert _state(hosts, first.uuid).inventories["VCPU"].used == 3
    _release(hosts, consumer)
    assert _state(hosts, first.uuid).inventories["VCPU"].used == 0


def test_removed_resource_class_without_claims_is_deleted(hosts: Books) -> None:
    [first] = _report(hosts, node("h1"))
    without = node("h1")
    del without.provider.inventories["DISK_GB"]
    _report(hosts, without)
    assert set(_state(hosts, first.uuid).inventories) == {"VCPU", "MEMORY_MB"}


def test_missing_nodes_are_removed_unless_claimed(hosts: Books) -> None:
    one, two, three = _report(hosts, node("h1", "n1"), node("h1", "n2"), node("h1", "n3"))
    consumer = _claim(hosts, two.uuid, VCPU=1)
    hosts.sent.take()
    _report(hosts, node("h1", "n1"))
    assert [delta.removed for delta in hosts.sent.take()] == [[three.uuid]]
    _release(hosts, consumer)
    _report(hosts, node("h1", "n1"))
    assert [found.uuid for found in Hypervisors(hosts).index(ctx())] == [one.uuid]


def test_report_without_nodes_removes_no_node(hosts: Books) -> None:
    _report(hosts, node("h1"))
    _report(hosts)
    assert len(Hypervisors(hosts).index(ctx())) == 1


def test_child_providers_are_added_and_removed(hosts: Books) -> None:
    with_gpu = node("h1")
    with_gpu.children = [Provider(uuid=new_uuid(), name="h1_gpu", inventories={"VGPU": Inventory(total=4)})]
    [made] = _report(hosts, with_gpu)
    [child] = Hypervisors(hosts).get(ctx(), made.uuid).children
    assert (child.name, child.parent_uuid, child.inventories["VGPU"].total) == ("h1_gpu", made.uuid, 4)
    hosts.statements()
    _report(hosts, copy.deepcopy(with_gpu))
    assert {statement.split()[0] for statement in hosts.statements()} == {"SELECT"}
    _report(hosts, node("h1"))
    assert Hypervisors(hosts).get(ctx(), made.uuid).children == []


def test_driver_chooses_node_uuid_but_existing_node_keeps_its_uuid(hosts: Books) -> None:
    chosen = new_uuid()
    [made] = _report(hosts, node("h1", uuid=chosen))
    assert made.uuid == chosen
    [again] = _report(hosts, node("h1", uuid=new_uuid()))
    assert again.uuid == chosen


def test_node_moves_to_another_host_only_under_its_name(hosts: Books) -> None:
    chosen = new_uuid()
    _report(hosts, node("h1", "metal", uuid=chosen))
    with pytest.raises(exception.InvalidInput, match="already registered as metal of host h1"):
        _report(hosts, node("h2", "h2", uuid=chosen), host="h2")
    [moved] = _report(hosts, node("h2", "metal", uuid=chosen), host="h2")
    assert _state(hosts, moved.uuid).host == "h2"


def test_node_with_claims_cannot_move_to_another_host(hosts: Books) -> None:
    """Otherwise another host with the same node id or name would take over the claims of the servers."""
    [made] = _report(hosts, node("h1", "metal", uuid=new_uuid()))
    consumer = _claim(hosts, made.uuid, VCPU=1)
    with pytest.raises(exception.NodeOfAnotherHost, match="registered as metal of host h1") as refused:
        _report(hosts, node("h2", "metal", uuid=made.uuid), host="h2")
    assert refused.value.kwargs["host"] == "h2"
    assert _state(hosts, made.uuid).host == "h1"
    _report(hosts, node("h1", "metal", uuid=made.uuid))
    _release(hosts, consumer)
    _report(hosts, node("h2", "metal", uuid=made.uuid), host="h2")
    assert _state(hosts, made.uuid).host == "h2"


def test_report_of_an_unregistered_host_is_refused(hosts: Books) -> None:
    with pytest.raises(exception.HostBinaryNotFound):
        _report(hosts, node("h9"), host="h9")


def test_concurrent_first_reports_create_a_single_node(hosts: Books) -> None:
    made: list[ComputeNode] = []
    threads = [threading.Thread(target=lambda: made.extend(_report(hosts, node("h1")))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(made) == 6
    assert len({found.uuid for found in made}) == 1
    assert len(Hypervisors(hosts).index(ctx())) == 1


def test_concurrent_reports_and_claims_lose_no_update(hosts: Books) -> None:
    [made] = _report(hosts, node("h1", vcpus=1000))
    failures: list[Exception] = []

    def run(work: Any) -> None:
        try:
            for number in range(10):
                work(number)
        except Exception as error:
            failures.append(error)

    work = [lambda number: _report(hosts, node("h1", vcpus=1000 + number)),
            lambda number: _report(hosts, node("h1", vcpus=2000 + number)),
            lambda _number: _claim(hosts, made.uuid, VCPU=1), lambda _number: _claim(hosts, made.uuid, VCPU=1)]
    threads = [threading.Thread(target=run, args=(one,)) for one in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert failures == []
    state = _state(hosts, made.uuid)
    assert (state.inventories["VCPU"].used, state.num_instances) == (20, 20)


# --- states, usages and hypervisors ------------------------------------------------------------
def test_node_states_are_paged_with_four_statements_per_page(hosts: Books) -> None:
    _report(hosts, *(node("h1", f"n{number}") for number in range(5)))
    _report(hosts, node("h2"), host="h2")
    hosts.statements()
    seen: list[HostState] = []
    marker = None
    for _page in range(4):
        page = Fleet(hosts).page(ctx(), marker, 2)
        assert len(hosts.statements()) <= 4
        seen += page.states
        marker = page.marker
        if marker is None:
            break
    assert [state.node_uuid for state in seen] == sorted({state.node_uuid for state in seen})
    assert len(seen) == 6


def test_node_state_contains_zone_aggregates_and_service_status(hosts: Books) -> None:
    [made] = _report(hosts, node("h1"))
    aggregates = Aggregates(hosts)
    zone, other = aggregates.create(ctx(), "rack", "z1"), aggregates.create(ctx(), "ssd")
    aggregates.set_metadata(ctx(), other.id, {"ssd": "true"})
    for aggregate in (zone, other):
        aggregates.add_host(ctx(), aggregate.id, "h1")
    Services(hosts).update_by_host(ctx(), "h1", "nova-compute", disabled=True, forced_down=True)
    state = _state(hosts, made.uuid)
    assert state.availability_zone == "z1"
    assert state.aggregates == [{"availability_zone": "z1"}, {"ssd": "true"}]
    assert state.aggregate_ids == [zone.id, other.id]
    assert (state.up, state.disabled) == (False, True)


def test_usage_of_nodes_takes_a_single_statement(hosts: Books) -> None:
    one, two = _report(hosts, node("h1", "n1"), node("h1", "n2"))
    _claim(hosts, one.uuid, VCPU=2, MEMORY_MB=512)
    hosts.statements()
    found = {usage.node_uuid: usage for usage in hosts.db.read(
        lambda connection: compute_nodes.usage(connection, [one.uuid, two.uuid, "gone"]))}
    assert len(hosts.statements()) == 1
    assert found[one.uuid].used == {"VCPU": 2, "MEMORY_MB": 512, "DISK_GB": 0}
    assert found[one.uuid].num_instances == 1
    assert found[two.uuid].used == {"VCPU": 0, "MEMORY_MB": 0, "DISK_GB": 0}
    assert set(found) == {one.uuid, two.uuid}


def test_hypervisors_are_listed_by_pattern_and_page(hosts: Books) -> None:
    made = _report(hosts, *(node("h1", name) for name in ("alpha", "beta_1", "beta%2", "Gamma")))
    hypervisors = Hypervisors(hosts)
    assert [found.hypervisor_hostname for found in hypervisors.index(ctx(), "a_")] == ["beta_1"]
    assert [found.hypervisor_hostname for found in hypervisors.index(ctx(), "gam")] == ["Gamma"]
    assert hypervisors.index(ctx(), "nothing") == []
    first = hypervisors.index(ctx(), limit=3)
    assert [found.uuid for found in first] == [found.uuid for found in made[:3]]
    for marker in (first[-1].uuid, str(first[-1].id)):
        assert [found.uuid for found in hypervisors.index(ctx(), limit=3, marker=marker)] == [made[3].uuid]
    for marker in ("gone", "99999", "9" * 40):
        with pytest.raises(exception.MarkerNotFound):
            hypervisors.index(ctx(), marker=marker)


def test_hypervisor_contains_its_service(hosts: Books) -> None:
    [made] = _report(hosts, node("h1"))
    Services(hosts).update_by_host(ctx(), "h1", "nova-compute", disabled=True, reason="fan")
    hosts.statements()
    [found] = Hypervisors(hosts).index(ctx())
    assert len(hosts.statements()) == 5
    assert found.service is not None
    assert (found.service.host, found.service.disabled_reason, found.service.up) == ("h1", "fan", True)
    assert Hypervisors(hosts).get(ctx(), str(found.id)) == Hypervisors(hosts).get(ctx(), made.uuid) == found
    with pytest.raises(exception.ComputeHostNotFound):
        Hypervisors(hosts).get(ctx(), "gone")


def test_hypervisor_servers_are_listed_by_host(hosts: Books) -> None:
    mine, _other = server(hosts, "h1"), server(hosts, "h2")
    assert [found.uuid for found in Hypervisors(hosts).servers(ctx(), ["h1"])] == [mine.uuid]
    assert Hypervisors(hosts).servers(ctx(), []) == []


# --- the publisher -----------------------------------------------------------------------------
def test_deltas_of_concurrent_threads_are_sent_in_order_of_sequence(core: Books) -> None:
    def publish() -> None:
        for _ in range(50):
            core.fleet.reload()

    threads = [threading.Thread(target=publish) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [delta.seq for delta in core.sent.take()] == list(range(1, 401))


def test_failed_publication_leaves_a_sequence_gap_and_no_error(core: Books) -> None:
    core.sent.broken = True
    core.fleet.removed(["x"])
    core.sent.broken = False
    core.fleet.reload()
    assert [(delta.seq, delta.reload) for delta in core.sent.take()] == [(2, True)]


def test_empty_delta_is_not_published(core: Books) -> None:
    core.fleet.usage([])
    core.fleet.states([])
    core.fleet.services({})
    core.fleet.removed([])
    assert core.sent.take() == []


@pytest.mark.parametrize("named", ["child", "root", "twice", "name"])
def test_report_with_conflicting_uuids_or_names_is_refused_without_retry(hosts: Books, named: str) -> None:
    """The conflict is permanent, so the report must be refused without retries."""
    [other] = _report(hosts, node("h2"), host="h2")
    gpu = new_uuid()
    _report(hosts, node("h2", children=[Provider(uuid=gpu, name="gpu")]), host="h2")
    mine = {
        "child": [node("h1", children=[Provider(uuid=other.uuid, name="x")])],
        "root": [node("h1", uuid=gpu)],
        "twice": [node("h1", children=[Provider(uuid=new_uuid(), name="x")] * 2)],
        "name": [node("h1"), node("h1")],
    }[named]
    hosts.statements()
    with pytest.raises(exception.InvalidInput):
        _report(hosts, *mine)
    assert len(hosts.statements()) < 10
    assert [each.uuid for each in hosts.db.read(compute_nodes.index)] == [other.uuid]


@pytest.mark.parametrize("said", [
    {"total": -1}, {"total": 1 << 31}, {"reserved": -5}, {"ratio": float("inf")}, {"ratio": float("nan")},
    {"ratio": 0.0}, {"step_size": 0}, {"min_unit": 0}, {"max_unit": 1 << 63}], ids=str)
def test_invalid_inventory_is_refused(hosts: Books, said: dict[str, Any]) -> None:
    told = node("h1")
    told.provider.inventories["VCPU"] = Inventory(**{"total": 4, **said})
    with pytest.raises(exception.InvalidInput, match="inventory of 'VCPU'"):
        _report(hosts, told)
    assert hosts.db.read(compute_nodes.index) == []


@pytest.mark.parametrize("many", ["providers", "cells", "devices", "guests", "classes", "traits"])
def test_node_report_with_too_many_items_is_refused(hosts: Books, many: str) -> None:
    """Every scheduler would store the oversized report and process it for every server."""
    told = node("h1")
    match many:
        case "providers":
            told.children = [Provider(uuid=new_uuid(), name=str(number)) for number in range(1001)]
        case "cells":
            told.numa_topology = HostTopology(cells=[HostCell(id=number) for number in range(129)])
        case "devices":
            told.pci_devices = [PciDevice(address="0000:00:00.0", vendor_id="8086", product_id="1520")] * 10_001
        case "guests":
            told.supported_instances = [("x86_64", "qemu", "hvm")] * 201
        case "classes":
            told.provider.inventories = {f"CUSTOM_{number}": Inventory(total=1) for number in range(201)}
        case "traits":
            told.provider.traits = [f"CUSTOM_{number}" for number in range(1001)]
    with pytest.raises(exception.InvalidInput, match="at most may be reported"):
        _report(hosts, told)
    assert hosts.db.read(compute_nodes.index) == []


@pytest.mark.parametrize("what", ["cpu_info", "traits", "children"])
def test_node_report_that_is_too_large_is_refused(hosts: Books, what: str) -> None:
    """A page of the list of hypervisors holds a thousand nodes."""
    told = node("h1")
    match what:
        case "cpu_info":
            told.cpu_info = {"model": "x" * (1 << 20)}
        case "traits":
            told.provider.traits = [f"CUSTOM_{number}_" + "X" * 2000 for number in range(900)]
        case "children":
            told.children = [Provider(uuid=new_uuid(), name="x" * 3000) for _number in range(900)]
    with pytest.raises(exception.InvalidInput, match="exceeds"):
        _report(hosts, told)
    assert hosts.db.read(compute_nodes.index) == []


def test_number_of_nodes_of_an_untrusted_host_is_limited(hosts: Books, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit applies to all pages of the reports together."""
    monkeypatch.setattr("nova.objects.hosts.node.NODES", 3)

    def report(first: int, count: int, trusted: bool) -> None:
        uuids = [str(uuid.UUID(int=number)) for number in range(first, first + count)]
        nodes = [node("h1", name=f"n{number}", uuid=each) for number, each in enumerate(uuids, first)]
        hosts.db.write(lambda connection: compute_nodes.report(
            connection, "h1", nodes, str(uuid.UUID(int=first - 1)), uuids[-1], trusted))

    report(1, 2, trusted=False)
    report(1, 2, trusted=False)
    report(3, 1, trusted=False)
    with pytest.raises(exception.InvalidInput, match="more than 3 nodes"):
        report(4, 1, trusted=False)
    report(4, 1, trusted=True)
    assert len(hosts.db.read(compute_nodes.index)) == 4
