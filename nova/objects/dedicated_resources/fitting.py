"""What a node has for single guests, NUMA cells and PCI devices, and whether a guest finds its share of them.

Pure functions: schedulers ask them about the free devices that they count, a conductor decides by them while it has the
node's row.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Sequence

from nova.objects.base import Object
from nova.objects.dedicated_resources import numa, pci
from nova.objects.dedicated_resources.numa import GuestTopology, HostTopology
from nova.objects.dedicated_resources.pci import GuestDevice, PciDevice, PciPool, PciRequest


class NodeDedicatedResources(Object, kw_only=True, weakref=True):
    """The cells of a node with what is used of them (None: it tells of none), and its free devices."""

    numa_topology: HostTopology | None = None
    pci_pools: list[PciPool] = []

    @property
    def free_devices(self) -> int:
        return sum(pool.count for pool in self.pci_pools)


class GuestDedicatedResources(Object, kw_only=True):
    """What a claim has of a node's cells and devices; None: nothing for itself."""

    numa_topology: GuestTopology | None = None
    pci_devices: list[GuestDevice] | None = None


@dataclasses.dataclass(frozen=True)
class DedicatedRequest:
    """What a server asks for."""

    topology: GuestTopology | None
    devices: Sequence[PciRequest]

    def __bool__(self) -> bool:
        return self.topology is not None or bool(self.devices)


@dataclasses.dataclass(frozen=True)
class AllocationRatios:
    """How often the CPUs and the memory of a cell may be promised, and whether the fullest cell comes first."""

    cpu: float = 1.0
    memory: float = 1.0
    packing: bool = False


# Whether (and how) a request for devices is fulfilled on these cells of the host (None: the guest is on all of them).
_Devices = Callable[[Collection[int] | None, Collection[int]], object]


def available(topology: HostTopology | None, devices: Iterable[PciDevice] | None,
              held: Sequence[GuestDedicatedResources]) -> NodeDedicatedResources | None:
    """Return the dedicated resources of a node that are free beside ``held``, or None for a node without any."""
    if topology is None and not devices:
        return None
    return NodeDedicatedResources(
        numa_topology=numa.used(topology, _topologies(held)) if topology is not None else None,
        pci_pools=pci.pools(pci.free(devices or (), _addresses(held))))


def choose(topology: HostTopology | None, devices: Iterable[PciDevice] | None, held: Sequence[GuestDedicatedResources],
           request: DedicatedRequest, ratios: AllocationRatios) -> GuestDedicatedResources | None:
    """Cells, CPUs, pages and devices for ``request`` beside what is ``held`` of the node; None: it does not fit."""
    free = pci.free(devices or (), _addresses(held))
    host = numa.used(topology, _topologies(held)) if topology is not None else None
    fitted = _fit(host, request, ratios, {device.numa_node for device in free},
                  lambda cells, near: pci.choose(free, request.devices, cells, near))
    if fitted is None:
        return None
    return GuestDedicatedResources(
        numa_topology=fitted.topology,
        pci_devices=pci.choose(free, request.devices, fitted.cells, fitted.near) if request.devices else None)


def take(free: NodeDedicatedResources, request: DedicatedRequest,
         ratios: AllocationRatios) -> NodeDedicatedResources | None:
    """Return what stays free after ``request`` is fulfilled, or None if the node cannot fulfil it."""
    pools, host = free.pci_pools, free.numa_topology
    fitted = _fit(host, request, ratios, {pool.numa_node for pool in pools},
                  lambda cells, near: pci.take(pools, request.devices, cells, near))
    if fitted is None:
        return None
    return NodeDedicatedResources(
        numa_topology=numa.plus(host, fitted.topology) if host is not None and fitted.topology is not None else host,
        pci_pools=(pci.take(pools, request.devices, fitted.cells, fitted.near) or []) if request.devices else pools)


@dataclasses.dataclass(frozen=True)
class _Fitted:
    """Where a guest is: on ``cells`` of the host (None: on all), with ``near`` on the same sockets."""

    topology: GuestTopology | None
    cells: Collection[int] | None
    near: Collection[int]


def _fit(host: HostTopology | None, request: DedicatedRequest, ratios: AllocationRatios,
         with_devices: Collection[int | None], devices: _Devices) -> _Fitted | None:
    if request.topology is None:
        return _Fitted(None, None, ()) if not request.devices or devices(None, ()) is not None else None
    if host is None:
        return None

    def near(cells: Sequence[int]) -> bool:
        return devices(cells, host.sockets(cells)) is not None

    fitted = numa.fit(host, request.topology, numa.Rules(
        cpu_ratio=ratios.cpu, memory_ratio=ratios.memory, packing=ratios.packing,
        near=near if request.devices else None,
        with_devices=frozenset(cell for cell in with_devices if cell is not None)))
    if fitted is None:
        return None
    return _Fitted(fitted, fitted.host_cells, host.sockets(fitted.host_cells))


def _topologies(held: Iterable[GuestDedicatedResources]) -> Iterable[GuestTopology]:
    return (each.numa_topology for each in held if each.numa_topology is not None)


def _addresses(held: Iterable[GuestDedicatedResources]) -> set[str]:
    return {one.device.address for each in held for one in each.pci_devices or ()}


# --- looking --------------------------------------------------------------------------------------
def conflicts(topology: HostTopology | None, held: Sequence[GuestDedicatedResources]) -> list[str]:
    """What two of these have at the same time, or more than there is, in words."""
    found = []
    addresses = [one.device.address for each in held for one in each.pci_devices or ()]
    found += [f"device {address} is given out {addresses.count(address)} times"
              for address in sorted({each for each in addresses if addresses.count(each) > 1})]
    for cell in numa.used(topology, _topologies(held)).cells if topology is not None else ():
        twice = sorted({cpu for cpu in cell.pinned if cell.pinned.count(cpu) > 1})
        if twice:
            found.append(f"CPUs {', '.join(map(str, twice))} of cell {cell.id} are given out more than once")
        found += [f"{pages.used} pages of {pages.size_kb} KiB are given out of {pages.total - pages.reserved} in cell "
                  f"{cell.id}" for pages in cell.pages if pages.used > pages.total - pages.reserved]
    return found
