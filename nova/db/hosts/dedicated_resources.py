"""NUMA cells and PCI devices of claims, stored with the allocation of the root provider. They are assigned while the
row of the node is locked. Every claim and release locks this row first."""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from nova import exception
from nova.conf import CONF
from nova.db import tables
from nova.objects.dedicated_resources import fitting
from nova.objects.dedicated_resources.fitting import GuestDedicatedResources, NodeDedicatedResources
from nova.objects.hosts.node import MEMORY_MB, VCPU

NODES = tables.compute_nodes
ALLOCATIONS = tables.allocations
INVENTORIES = tables.inventories


def claim(connection: sa.Connection, consumer: str, root: str,
          request: fitting.DedicatedRequest) -> GuestDedicatedResources:
    """Assign NUMA cells and PCI devices of a node to the new claim of ``consumer``. Raises ClaimLost: none fit."""
    node = connection.execute(_NODES, {"roots": [root]}).one()
    chosen = fitting.choose(node.numa_topology, node.pci_devices, held(connection, [root]).get(root, []), request,
                            _ratios(connection, root))
    if chosen is None:
        raise exception.ClaimLost(node=root, reason="not enough free NUMA cells or PCI devices for the server")
    connection.execute(sa.update(ALLOCATIONS).where(
        ALLOCATIONS.c.consumer_uuid == consumer, ALLOCATIONS.c.provider_uuid == root).values(
        numa_topology=chosen.numa_topology, pci_devices=chosen.pci_devices))
    note(connection, root)
    return chosen


def note(connection: sa.Connection, root: str) -> None:
    """Set ``fitted`` of a node: messages to schedulers then contain its free NUMA cells, devices and sub-providers."""
    connection.execute(sa.update(NODES).where(NODES.c.uuid == root, NODES.c.fitted == sa.false()).values(fitted=True))


def of_claim(connection: sa.Connection, consumer: str) -> GuestDedicatedResources:
    """Return the NUMA cells and PCI devices that ``consumer`` has on its node."""
    row = connection.execute(sa.select(ALLOCATIONS.c.numa_topology, ALLOCATIONS.c.pci_devices).where(
        ALLOCATIONS.c.consumer_uuid == consumer, _HAS_SOME).limit(1)).first()
    if row is None:
        return GuestDedicatedResources()
    return GuestDedicatedResources(numa_topology=row.numa_topology, pci_devices=row.pci_devices)


def held(connection: sa.Connection, roots: Sequence[str]) -> dict[str, list[GuestDedicatedResources]]:
    """Return node uuid -> NUMA cells and PCI devices of its claims, without claims that have none."""
    claims: dict[str, list[GuestDedicatedResources]] = {}
    for row in connection.execute(_HELD, {"roots": list(roots)}):
        claims.setdefault(row.root_uuid, []).append(
            GuestDedicatedResources(numa_topology=row.numa_topology, pci_devices=row.pci_devices))
    return claims


def of_nodes(connection: sa.Connection, nodes: Sequence[Any]) -> dict[str, NodeDedicatedResources]:
    """Return uuid -> free NUMA cells and PCI devices, for nodes that have any. ``nodes``: rows of ``_NODES``."""
    having = [node for node in nodes if node.numa_topology is not None or node.pci_devices]
    fitted = [node.uuid for node in having if node.fitted]
    guests = held(connection, fitted) if fitted else {}
    available = ((node.uuid, fitting.available(node.numa_topology, node.pci_devices, guests.get(node.uuid, [])))
                 for node in having)
    return {uuid: free for uuid, free in available if free is not None}


def of_fitted(connection: sa.Connection, uuids: Sequence[str]) -> dict[str, NodeDedicatedResources]:
    """Return the same as :func:`of_nodes`, for the nodes with these uuids."""
    return of_nodes(connection, connection.execute(_NODES, {"roots": list(uuids)}).all())


def _ratios(connection: sa.Connection, root: str) -> fitting.AllocationRatios:
    ratios = dict(connection.execute(_RATIOS, {"root": root}).all())
    return fitting.AllocationRatios(cpu=ratios.get(VCPU, 1.0), memory=ratios.get(MEMORY_MB, 1.0),
                                    packing=CONF.compute.packing_host_numa_cells_allocation_strategy)


# --- statements: built once -----------------------------------------------------------------------
_ROOTS: sa.BindParameter[Any] = sa.bindparam("roots", expanding=True)
_HAS_SOME = sa.or_(ALLOCATIONS.c.numa_topology.is_not(None), ALLOCATIONS.c.pci_devices.is_not(None))
_NODES = sa.select(NODES.c.uuid, NODES.c.fitted, NODES.c.numa_topology, NODES.c.pci_devices).where(
    NODES.c.uuid.in_(_ROOTS))
_HELD = sa.select(ALLOCATIONS.c.root_uuid, ALLOCATIONS.c.numa_topology, ALLOCATIONS.c.pci_devices).where(
    ALLOCATIONS.c.root_uuid.in_(_ROOTS), _HAS_SOME)
_RATIOS = sa.select(INVENTORIES.c.resource_class, INVENTORIES.c.ratio).where(
    INVENTORIES.c.provider_uuid == sa.bindparam("root"), INVENTORIES.c.resource_class.in_([VCPU, MEMORY_MB]))
