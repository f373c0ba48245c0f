"""Dedicated resources (NUMA cells, CPUs, pages, PCI devices): exclusive and atomic assignment under the node lock."""

from __future__ import annotations

import threading
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nova import exception
from nova.conductor import announcer
from nova.db import audit, tables
from nova.db.hosts import allocations, claims, compute_nodes, dedicated_resources, services
from nova.objects.base import new_uuid
from nova.objects.dedicated_resources import fitting
from nova.objects.dedicated_resources.fitting import GuestDedicatedResources, NodeDedicatedResources
from nova.objects.dedicated_resources.numa import HostCell, HostTopology, Pages
from nova.objects.dedicated_resources.pci import PF, VF, PciDevice, PciRequest
from nova.objects.hosts.node import Inventory, Provider
from nova.objects.hosts.scheduling import RequestGroup, RequestSpec, Selection
from nova.objects.requirements.guest_numa import guest_topology
from nova.objects.servers.instance import Instance
from tests.unit.conductor.books import Books, flavor, node, server

# Two NUMA cells with two cores of two threads, 1 GiB of small pages and four huge pages per cell.
TOPOLOGY = HostTopology(cells=[
    HostCell(id=number, cpus=[number * 6, number * 6 + 1], pcpus=list(range(number * 6 + 2, number * 6 + 6)),
             siblings=[[number * 6 + 2, number * 6 + 3], [number * 6 + 4, number * 6 + 5]], memory_mb=1032,
             pages=[Pages(size_kb=4, total=1024 * 256), Pages(size_kb=2048, total=4)], socket=number)
    for number in range(2)])
DEVICES = [
    PciDevice(address="0000:01:00.0", vendor_id="10de", product_id="20b0", numa_node=0),
    PciDevice(address="0000:02:00.0", vendor_id="10de", product_id="20b0", numa_node=1),
    PciDevice(address="0000:03:00.0", vendor_id="8086", product_id="1572", dev_type=PF, numa_node=0),
    *(PciDevice(address=f"0000:03:00.{number}", vendor_id="8086", product_id="1572", dev_type=VF, numa_node=0,
                parent="0000:03:00.0") for number in (1, 2))]


def device(kind: str, count: int = 1, **changes: Any) -> PciRequest:
    spec = {"gpu": {"vendor_id": "10de"}, "pf": {"dev_type": PF}, "vf": {"dev_type": VF}}[kind]
    return PciRequest(alias=kind, count=count, specs=[spec], **changes)


def asking(extra_specs: dict[str, str] | None = None, devices: list[PciRequest] | None = None,
           **size: Any) -> RequestSpec:
    wanted = flavor(extra_specs=extra_specs or {}, **{"vcpus": 2, "memory_mb": 4, **size})
    return RequestSpec(instance_uuids=["x"], project_id="p1", flavor=wanted, resources={"MEMORY_MB": 1},
                       numa_topology=guest_topology(wanted, None), pci_requests=devices or [])


PINNED = {"hw:cpu_policy": "dedicated"}


@pytest.fixture
def host(core: Books) -> Selection:
    core.db.write(lambda connection: services.register(connection, "a", "nova-compute", "compute", 1))
    [made] = announcer.report_nodes(core, "a", [node("a", numa_topology=TOPOLOGY, pci_devices=DEVICES)])
    return Selection(node_uuid=made.uuid, host="a", node="a")


def claim(core: Books, selection: Selection, spec: RequestSpec, consumer: str = "") -> GuestDedicatedResources:
    instance = Instance(uuid=consumer or new_uuid(), project_id="p1", user_id="u1", display_name="vm", hostname="vm",
                        flavor=spec.flavor, created_at=server(core).created_at)
    return core.db.write(lambda connection: claims.claim(connection, instance, selection, spec))


def everything(core: Books) -> Any:
    return core.db.read(lambda connection: [
        connection.execute(sa.select(table).order_by(*table.primary_key.columns)).all()
        for table in (tables.compute_nodes, tables.allocations, tables.inventories)])


def free(core: Books, selection: Selection) -> NodeDedicatedResources:
    """Return the free resources as published to schedulers, in states and in usages."""
    [state] = core.db.read(lambda connection: compute_nodes.states_of(connection, [selection.node_uuid]))
    [usage] = core.db.read(lambda connection: compute_nodes.usage(connection, [selection.node_uuid]))
    assert usage.dedicated_resources in (None, state.dedicated_resources)
    assert state.dedicated_resources is not None
    return state.dedicated_resources


def wishes() -> st.SearchStrategy[RequestSpec]:
    cpus = st.sampled_from([
        {}, PINNED, {**PINNED, "hw:cpu_thread_policy": "isolate"}, {**PINNED, "hw:cpu_thread_policy": "require"},
        {**PINNED, "hw:numa_nodes": "2"}, {"hw:numa_nodes": "2"}, {"hw:cpu_policy": "mixed",
                                                                  "hw:cpu_dedicated_mask": "0"}])
    pages = st.sampled_from([{}, {"hw:mem_page_size": "large"}, {"hw:mem_page_size": "any"}])
    devices = st.lists(st.sampled_from([device("gpu"), device("gpu", 2), device("vf"), device("pf"),
                                        device("gpu", numa_policy="required")]), max_size=2)
    return st.builds(lambda one, two, three: asking({**one, **two}, three), cpus, pages, devices)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(st.one_of(wishes(), st.integers(0, 5)), min_size=3, max_size=12))
def test_dedicated_resources_are_never_assigned_twice(core: Books, steps: list[RequestSpec | int]) -> None:
    core.reset()
    core.db.write(lambda connection: services.register(connection, "a", "nova-compute", "compute", 1))
    [made] = announcer.report_nodes(core, "a", [node("a", numa_topology=TOPOLOGY, pci_devices=DEVICES)])
    selection = Selection(node_uuid=made.uuid, host="a", node="a")
    empty, holders = free(core, selection), []
    for step in steps:
        if isinstance(step, RequestSpec):
            before, consumer = everything(core), new_uuid()
            expected = fitting.take(free(core, selection), step.dedicated_request, fitting.AllocationRatios(cpu=4.0))
            try:
                claim(core, selection, step, consumer)
                holders.append(consumer)
                # The claim may be refused although the scheduler expects a fit: a PF also takes its VFs.
                assert expected is not None
            except exception.ClaimLost:
                assert everything(core) == before
        elif holders:
            gone = holders.pop(step % len(holders))
            core.db.write(lambda connection, gone=gone: allocations.release(connection, gone))
        held = core.db.read(lambda connection: dedicated_resources.held(connection, [made.uuid])).get(made.uuid, [])
        assert fitting.conflicts(TOPOLOGY, held) == []
    for consumer in holders:
        core.db.write(lambda connection, consumer=consumer: allocations.release(connection, consumer))
    assert free(core, selection) == empty


def _won(core: Books, selection: Selection, spec: RequestSpec) -> int:
    """Return how many of six simultaneous claims succeed."""
    begin, outcomes = threading.Barrier(6), []

    def run() -> None:
        begin.wait()
        try:
            claim(core, selection, spec)
            outcomes.append(True)
        except exception.ClaimLost:
            outcomes.append(False)

    threads = [threading.Thread(target=run) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes.count(True)


@pytest.mark.parametrize(("spec", "won"), [
    (asking(PINNED), 4), (asking({**PINNED, "hw:cpu_thread_policy": "isolate"}), 2),
    (asking({"hw:mem_page_size": "large"}), 4), (asking(devices=[device("gpu")]), 2)])
def test_concurrent_claims_of_dedicated_resources_respect_the_capacity(
        core: Books, host: Selection, spec: RequestSpec, won: int) -> None:
    assert _won(core, host, spec) == won
    held = core.db.read(lambda connection: dedicated_resources.held(connection, [host.node_uuid]))[host.node_uuid]
    assert fitting.conflicts(TOPOLOGY, held) == []
    assert len(held) == won


def test_claims_of_a_pf_and_of_its_vfs_exclude_each_other(core: Books, host: Selection) -> None:
    one = new_uuid()
    claim(core, host, asking(devices=[device("vf")]), one)
    with pytest.raises(exception.ClaimLost):
        claim(core, host, asking(devices=[device("pf")]))
    core.db.write(lambda connection: allocations.release(connection, one))
    claim(core, host, asking(devices=[device("pf")]))
    with pytest.raises(exception.ClaimLost):
        claim(core, host, asking(devices=[device("vf")]))


def test_required_numa_affinity_of_devices_is_enforced(core: Books, host: Selection) -> None:
    wanted = [device("gpu", numa_policy="required")]
    for _number in range(2):
        got = claim(core, host, asking(PINNED, wanted))
        assert got.numa_topology is not None
        assert got.pci_devices is not None
        assert [one.device.numa_node for one in got.pci_devices] == got.numa_topology.host_cells


def test_claim_of_dedicated_resources_on_a_plain_node_is_refused(core: Books) -> None:
    core.db.write(lambda connection: services.register(connection, "b", "nova-compute", "compute", 1))
    [made] = announcer.report_nodes(core, "b", [node("b")])
    plain = Selection(node_uuid=made.uuid, host="b", node="b")
    for spec in (asking({"hw:numa_nodes": "1"}), asking(devices=[device("gpu")])):
        with pytest.raises(exception.ClaimLost):
            claim(core, plain, spec)
    assert claim(core, plain, asking()) == GuestDedicatedResources()


def test_audit_reports_dedicated_resources_assigned_twice(core: Books, host: Selection) -> None:
    for _number in range(2):
        claim(core, host, asking(PINNED, [device("gpu")]))
    one = core.db.read(lambda connection: dedicated_resources.held(connection, [host.node_uuid]))[host.node_uuid][0]
    core.db.write(lambda connection: connection.execute(sa.update(tables.allocations).values(
        numa_topology=one.numa_topology, pci_devices=one.pci_devices)))
    found = [finding.detail for finding in audit.audit(core.db) if finding.kind == "dedicated resources"]
    assert len(found) == 2
    assert "assigned 2 times" in found[0]
    assert "assigned more than once" in found[1]


# --- child providers of a node ---------------------------------------------------------------------
@pytest.fixture
def gpus(core: Books) -> Selection:
    """Return the selection of a node with two child providers of GPUs, chosen by their inventories and traits."""
    core.db.write(lambda connection: services.register(connection, "g", "nova-compute", "compute", 1))
    [made] = announcer.report_nodes(core, "g", [node("g", children=[
        Provider(uuid=f"gpu{number}", name=f"gpu{number}", traits=["BIG"] if number else [],
                 inventories={"VGPU": Inventory(total=2)}) for number in range(2)])])
    return Selection(node_uuid=made.uuid, host="g", node="g", tree=True)


def used(core: Books) -> dict[str, int]:
    found = core.db.read(lambda connection: connection.execute(sa.select(
        tables.inventories.c.provider_uuid, tables.inventories.c.used).where(
        tables.inventories.c.resource_class == "VGPU")).all())
    return dict(found)


def test_claim_and_release_update_the_child_providers(core: Books, gpus: Selection) -> None:
    spec = msgspec.structs.replace(asking(), resources={"VCPU": 1, "VGPU": 2}, required_traits=["BIG"])
    one = new_uuid()
    claim(core, gpus, spec, one)
    assert used(core) == {"gpu0": 0, "gpu1": 2}
    [usage] = core.db.read(lambda connection: compute_nodes.usage(connection, [gpus.node_uuid]))
    assert usage.children == {"gpu0": {"VGPU": 0}, "gpu1": {"VGPU": 2}}
    before = everything(core)
    with pytest.raises(exception.ClaimLost):
        claim(core, gpus, spec)
    assert everything(core) == before
    core.db.write(lambda connection: allocations.release(connection, one))
    assert used(core) == {"gpu0": 0, "gpu1": 0}


def test_claim_enforces_isolated_request_groups(core: Books, gpus: Selection) -> None:
    group = RequestGroup(resources={"VGPU": 1})
    spec = msgspec.structs.replace(asking(), resources={"VCPU": 1}, groups=[group, group], group_policy="isolate")
    claim(core, gpus, spec)
    assert used(core) == {"gpu0": 1, "gpu1": 1}
    claim(core, gpus, msgspec.structs.replace(spec, groups=[group]))
    assert sorted(used(core).values()) == [1, 2]
    with pytest.raises(exception.ClaimLost):
        claim(core, gpus, spec)


def test_concurrent_claims_never_oversell_child_providers(core: Books, gpus: Selection) -> None:
    spec = msgspec.structs.replace(asking(), resources={}, groups=[RequestGroup(resources={"VGPU": 1})])
    assert _won(core, gpus, spec) == 4
    assert used(core) == {"gpu0": 2, "gpu1": 2}
