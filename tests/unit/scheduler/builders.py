"""Small fleets and requests for tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from nova.conf import CONF
from nova.objects.accounts.flavor import Flavor
from nova.objects.hosts.node import Inventory
from nova.objects.hosts.scheduling import GroupSpec, HostState, RequestSpec
from nova.objects.images.image import Image
from nova.scheduler.filters import Filter
from nova.scheduler.filters.affinity import ServerGroupAffinityFilter, ServerGroupAntiAffinityFilter
from nova.scheduler.filters.capabilities import ComputeCapabilitiesFilter
from nova.scheduler.filters.image import ImagePropertiesFilter
from nova.scheduler.filters.service import ComputeFilter
from nova.scheduler.hosts import Fleet
from nova.scheduler.options import SchedulerOptions
from nova.scheduler.request import Request
from nova.scheduler.select import Planner
from nova.scheduler.weighers import Weigher
from nova.scheduler.weighers.affinity import ServerGroupSoftAffinityWeigher, ServerGroupSoftAntiAffinityWeigher
from nova.scheduler.weighers.metrics import MetricsWeigher
from nova.scheduler.weighers.usage import (
    BuildFailureWeigher,
    CPUWeigher,
    DiskWeigher,
    HypervisorVersionWeigher,
    IoOpsWeigher,
    NumInstancesWeigher,
    RAMWeigher,
)


def node(name: str, *, host: str | None = None, vcpus: int = 8, ram: int = 8192, disk: int = 100,
         used: tuple[int, int, int] = (0, 0, 0), ratio: float = 1.0, **values: Any) -> HostState:
    """Return a node whose uuid equals its name."""
    inventories = values.pop("inventories", None) or {
        "VCPU": Inventory(total=vcpus, ratio=ratio, used=used[0]),
        "MEMORY_MB": Inventory(total=ram, used=used[1]),
        "DISK_GB": Inventory(total=disk, used=used[2])}
    values.setdefault("generation", 1)
    return HostState(node_uuid=name, host=host or name, node=name, inventories=inventories, **values)


def spec(count: int = 1, *, resources: dict[str, int] | None = None, extra_specs: dict[str, str] | None = None,
         properties: dict[str, str] | None = None, group: GroupSpec | None = None, **values: Any) -> RequestSpec:
    flavor = Flavor(flavorid="1", name="small", memory_mb=1024, vcpus=1, root_gb=10, extra_specs=extra_specs or {})
    image = Image(id="image", disk_format="qcow2", properties=properties or {})
    return RequestSpec(
        instance_uuids=[f"server-{index}" for index in range(count)], project_id="project", flavor=flavor, image=image,
        resources={"VCPU": 1, "MEMORY_MB": 1024, "DISK_GB": 10} if resources is None else resources, group=group,
        **values)


def request(asked: RequestSpec) -> Request:
    """Return the request with the current options."""
    return Request(asked, SchedulerOptions.from_conf(CONF))


def filters() -> list[Filter]:
    """Return the default filters."""
    return [ComputeFilter(), ComputeCapabilitiesFilter(), ImagePropertiesFilter(), ServerGroupAntiAffinityFilter(),
            ServerGroupAffinityFilter()]


def weighers() -> list[Weigher]:
    """Return all weighers."""
    return [RAMWeigher(), CPUWeigher(), DiskWeigher(), IoOpsWeigher(), NumInstancesWeigher(), BuildFailureWeigher(),
            HypervisorVersionWeigher(), MetricsWeigher(), ServerGroupSoftAffinityWeigher(),
            ServerGroupSoftAntiAffinityWeigher()]


def fleet(*states: HostState) -> Fleet:
    made = Fleet()
    made.upsert_all(states)
    return made


def choose(made: Fleet, asked: RequestSpec, planner: Planner | None = None) -> list[list[str]]:
    """Return the nodes per server (the chosen node, then the alternates), and commit the choices."""
    this = request(asked)
    with made.view() as view:
        choices = (planner or Planner(filters(), weighers())).plan(view, this)
        made.commit(view.planned, sorted({choice.row for choice in choices}))
        return [[made.selection(row).node for row in (choice.row, *choice.alternates)] for choice in choices]


def passing(each: Filter, states: Sequence[HostState], asked: RequestSpec) -> list[str]:
    """Return the nodes that pass a filter."""
    made, this = fleet(*states), request(asked)
    with made.view() as view:
        if not each.applies(this):
            return [state.node for state in states]
        mask = each.mask(view, this)
        assert len(mask) == len(states)
        return [view.text("node", position) for position in range(len(view)) if mask[position]]


def scores(each: Weigher, states: Sequence[HostState], asked: RequestSpec | None = None) -> dict[str, float]:
    made, this = fleet(*states), request(asked or spec())
    with made.view() as view:
        column = each.scores(view, this)
        return {view.text("node", position): float(column[position]) for position in range(len(view))}


def changed(state: HostState, **values: Any) -> HostState:
    """Return a newer state of the same node."""
    values.setdefault("generation", state.generation + 1)
    return msgspec.structs.replace(state, **values)
