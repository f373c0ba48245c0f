"""Hosts with NUMA cells and PCI devices: filters, weighers, and usage."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from nova.exception import NoValidHost
from nova.objects.accounts.flavor import Flavor
from nova.objects.dedicated_resources.fitting import NodeDedicatedResources
from nova.objects.dedicated_resources.numa import HostCell, HostTopology, Pages
from nova.objects.dedicated_resources.pci import PciPool, PciRequest
from nova.objects.hosts.scheduling import HostState, NodeUsage, RequestSpec
from nova.objects.requirements.guest_numa import guest_topology
from nova.scheduler.filters.parts import NUMATopologyFilter, PciPassthroughFilter
from nova.scheduler.hosts import Fleet
from nova.scheduler.select import Planner
from nova.scheduler.weighers.usage import PCIWeigher
from tests.unit.scheduler import builders


def cells(count: int = 2, pinned: int = 0) -> HostTopology:
    """Return cells of four dedicated CPUs each, of which the first ``pinned`` are claimed."""
    return HostTopology(cells=[HostCell(
        id=number, pcpus=list(range(number * 4, number * 4 + 4)), cpus=[100 + number], memory_mb=1024,
        pages=[Pages(size_kb=4, total=256 * 1024)], pinned=list(range(pinned)) if not number else [])
        for number in range(count)])


def gpus(count: int, node: int | None = None) -> list[PciPool]:
    return [PciPool(vendor_id="10de", product_id="20b0", numa_node=node, count=count)] if count else []


def host(name: str, topology: HostTopology | None = None, pools: list[PciPool] | None = None,
         **values: Any) -> HostState:
    free = NodeDedicatedResources(numa_topology=topology, pci_pools=pools or [])
    return builders.node(name, dedicated_resources=free, **values)


def asking(extra_specs: dict[str, str] | None = None, devices: int = 0, count: int = 1, policy: str = "legacy",
           **values: Any) -> RequestSpec:
    flavor = Flavor(flavorid="1", name="f", vcpus=values.pop("vcpus", 2), memory_mb=64, extra_specs=extra_specs or {})
    wanted = [PciRequest(alias="gpu", count=devices, specs=[{"vendor_id": "10de"}], numa_policy=policy)]
    return builders.spec(count, numa_topology=guest_topology(flavor, None), pci_requests=wanted if devices else [],
                         **values)


PINNED = {"hw:cpu_policy": "dedicated"}


def test_numa_filter_refuses_hosts_without_room_in_their_cells() -> None:
    states = [builders.node("plain"), host("empty", cells()), host("small", cells(1, pinned=3)),
              host("one", cells(1)), host("devices only", None, gpus(1))]
    assert builders.passing(NUMATopologyFilter(), states, asking(PINNED)) == ["empty", "one"]
    assert builders.passing(NUMATopologyFilter(), states, asking({**PINNED, "hw:numa_nodes": "2"})) == ["empty"]
    assert builders.passing(NUMATopologyFilter(), states, asking()) == [state.node for state in states]


def test_pci_filter_refuses_hosts_without_enough_devices() -> None:
    states = [builders.node("plain"), host("one", None, gpus(1)), host("two", None, gpus(2))]
    assert builders.passing(PciPassthroughFilter(), states, asking(devices=2)) == ["two"]
    assert builders.passing(PciPassthroughFilter(), states, asking()) == ["plain", "one", "two"]


def test_required_pci_numa_affinity_refuses_distant_devices() -> None:
    # Only cell 1 has free CPUs.
    states = [host("far", cells(2, pinned=4), gpus(1, node=0)), host("near", cells(2, pinned=4), gpus(1, node=1))]
    assert builders.passing(PciPassthroughFilter(), states, asking(PINNED, 1, policy="required")) == ["near"]
    assert builders.passing(PciPassthroughFilter(), states, asking(PINNED, 1, policy="preferred")) == ["far", "near"]


def test_servers_of_a_request_consume_dedicated_resources_in_turn() -> None:
    planner = Planner([NUMATopologyFilter(), PciPassthroughFilter()], [])
    made = builders.fleet(host("a", cells()), host("b", cells(1)))
    chosen = builders.choose(made, asking(PINNED, count=6, resources={"VCPU": 1}), planner)
    assert sorted(found[0] for found in chosen) == ["a"] * 4 + ["b"] * 2
    with pytest.raises(NoValidHost):
        builders.choose(made, asking(PINNED, resources={"VCPU": 1}), planner)


def test_chosen_devices_count_until_a_newer_state_or_expiry() -> None:
    planner = Planner([PciPassthroughFilter()], [])
    made = builders.fleet(host("a", None, gpus(1)))
    builders.choose(made, asking(devices=1), planner)
    with pytest.raises(NoValidHost):
        builders.choose(made, asking(devices=1), planner)
    assert made.expire(0) == 1
    builders.choose(made, asking(devices=1), planner)
    made.apply(NodeUsage(node_uuid="a", generation=2, dedicated_resources=NodeDedicatedResources(pci_pools=gpus(1))))
    builders.choose(made, asking(devices=1), planner)
    made.upsert(host("a", None, gpus(0), generation=3))
    with pytest.raises(NoValidHost):
        builders.choose(made, asking(devices=1), planner)


def test_usage_without_devices_releases_chosen_devices() -> None:
    planner = Planner([PciPassthroughFilter()], [])
    made = builders.fleet(host("a", None, gpus(1)))
    builders.choose(made, asking(devices=1), planner)
    made.apply(NodeUsage(node_uuid="a", generation=2))
    builders.choose(made, asking(devices=1), planner)


def test_packing_strategy_prefers_cells_in_use(settings: Callable[..., None]) -> None:
    settings("compute", packing_host_numa_cells_allocation_strategy=True)
    made = builders.fleet(host("a", cells(pinned=1)))
    builders.choose(made, asking(PINNED, resources={"VCPU": 1}), Planner([NUMATopologyFilter()], []))
    state = made.state("a")
    assert state is not None
    assert state.dedicated_resources is not None
    assert state.dedicated_resources.numa_topology is not None
    assert [len(cell.pinned) for cell in state.dedicated_resources.numa_topology.cells] == [3, 0]


def test_pci_weigher_prefers_hosts_with_few_free_devices() -> None:
    states = [host("none", cells()), host("one", None, gpus(1)), host("many", None, gpus(500))]
    assert builders.scores(PCIWeigher(), states) == {"none": 100, "one": 99, "many": 1}


def _names(weighers: list[Any], made: Fleet) -> list[str]:
    with made.view() as view:
        asked = builders.request(builders.spec())
        return [each.name for each in weighers if each.multipliers(view, asked.settings) != 0.0]


def test_pci_weigher_is_inactive_in_a_fleet_without_devices() -> None:
    assert _names([PCIWeigher()], builders.fleet(builders.node("a"))) == []
    assert _names([PCIWeigher()], builders.fleet(host("a", None, gpus(1)))) == ["PCIWeigher"]


def test_removed_node_leaves_no_dedicated_resources() -> None:
    made = builders.fleet(host("a", None, gpus(1)))
    made.remove("a")
    made.upsert(builders.node("b"))
    with made.view() as view:
        assert not view.any_dedicated_resources
