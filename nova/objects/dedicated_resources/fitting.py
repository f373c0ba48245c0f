"""Assignment of dedicated resources (NUMA cells, CPUs, PCI devices) of a node to guests. Pure functions. Schedulers use
them to find nodes with free resources; a conductor uses them to assign resources while it holds the lock on the node's
row."""

import dataclasses
from collections.abc import Callable, Collection, Iterable, Sequence

from nova.objects.base import Object
from nova.objects.dedicated_resources import numa, pci
from nova.objects.dedicated_resources.numa import GuestTopology, HostTopology
from nova.objects.dedicated_resources.pci import GuestDevice, PciDevice, PciPool, PciRequest


class NodeDedicatedResources(Object, kw_only=True, weakref=True):
    """NUMA cells of a node with their usage (None: the node reports no cells), and its free PCI devices."""

    numa_topology: HostTopology | None = None
    pci_pools: list[PciPool] = []

    @property
    def free_devices(self) -> int:
        return sum(pool.count for pool in self.pci_pools)


class GuestDedicatedResources(Object, kw_only=True):
    """Dedicated resources of a claim; None: the claim has none."""

    numa_topology: GuestTopology | None = None
    pci_devices: list[GuestDevice] | None = None


@dataclasses.dataclass(frozen=True)
class DedicatedRequest:
    """The dedicated resources that a server requests."""

    topology: GuestTopology | None
    devices: Sequence[PciRequest]

    def __bool__(self) -> bool:
        return self.topology is not None or bool(self.devices)


@dataclasses.dataclass(frozen=True)
class AllocationRatios:
    """Overcommit ratios of CPUs and memory of a NUMA cell. ``packing``: prefer the cell with the least free memory."""

    cpu: float = 1.0
    memory: float = 1.0
    packing: bool = False


# A function (NUMA host cells of the guest or None for all, cells on the same sockets) that returns an assignment of the
# requested devices, or None if they are not available there.
_Devices = Callable[[Collection[int] | None, Collection[int]], object]


def available(topology: HostTopology | None, devices: Iterable[PciDevice] | None,
              held: Sequence[GuestDedicatedResources]) -> NodeDedicatedResources | None:
    """Return the free dedicated resources of a node, or None for a node without any. ``held``: those of its claims."""
    if topology is None and not devices:
        return None
    return NodeDedicatedResources(
        numa_topology=numa.used(topology, _topologies(held)) if topology is not None else None,
        pci_pools=pci.pools(pci.free(devices or (), _addresses(held))))


def choose(topology: HostTopology | None, devices: Iterable[PciDevice] | None, held: Sequence[GuestDedicatedResources],
           request: DedicatedRequest, ratios: AllocationRatios) -> GuestDedicatedResources | None:
    """Assign free NUMA cells, CPUs, pages and devices of a node to ``request``, or return None if it does not fit.
    ``held``: dedicated resources of the claims on the node."""
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
    """Return the resources that remain free after ``request`` is fulfilled, or None if the node cannot fulfil it."""
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
    """Assigned NUMA ``cells`` of the host (None: all cells); ``near``: the cells on the same sockets."""

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

    fitted = numa.fit(host, request.topology, numa.PlacementRules(
        cpu_ratio=ratios.cpu, memory_ratio=ratios.memory, packing=ratios.packing,
        near=near if request.devices else None,
        with_devices=frozenset(cell for cell in with_devices if cell is not None)))
    if fitted is None:
        return None
    return _Fitted(fitted, fitted.host_cells, host.sockets(fitted.host_cells))


def _topologies(held: Iterable[GuestDedicatedResources]) -> Iterable[GuestTopology]:
    return (guest.numa_topology for guest in held if guest.numa_topology is not None)


def _addresses(held: Iterable[GuestDedicatedResources]) -> set[str]:
    return {device.device.address for guest in held for device in guest.pci_devices or ()}


# --- audit --------------------------------------------------------------------------------------
def conflicts(topology: HostTopology | None, held: Sequence[GuestDedicatedResources]) -> list[str]:
    """Return messages about resources that are assigned more than once, or of which more are assigned than exist."""
    messages = []
    addresses = [device.device.address for guest in held for device in guest.pci_devices or ()]
    messages += [f"device {address} is assigned {addresses.count(address)} times"
              for address in sorted({address for address in addresses if addresses.count(address) > 1})]
    for cell in numa.used(topology, _topologies(held)).cells if topology is not None else ():
        twice = sorted({cpu for cpu in cell.pinned if cell.pinned.count(cpu) > 1})
        if twice:
            messages.append(f"CPUs {', '.join(map(str, twice))} of cell {cell.id} are assigned more than once")
        messages += [f"{pages.used} pages of {pages.size_kb} KiB are assigned in cell {cell.id}, which has only "
                     f"{free}" for pages in cell.pages if pages.used > (free := pages.total - pages.reserved)]
    return messages
