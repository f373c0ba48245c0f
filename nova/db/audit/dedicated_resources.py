"""NUMA cells and PCI devices: no two claims share one, and servers have the resources of their claims."""

import collections
from collections.abc import Iterator, Sequence
from typing import Any

import sqlalchemy as sa

from nova.db import tables
from nova.db.audit.base import Check, Finding, alive
from nova.objects.dedicated_resources import fitting
from nova.objects.dedicated_resources.fitting import GuestDedicatedResources

NODES = tables.compute_nodes
CLAIMS = tables.allocations
INSTANCES = tables.instances
MIGRATIONS = tables.migrations


class DedicatedResources(Check):
    """Check the NUMA cells and devices of the claims on a node. Subjects: nodes."""

    page_size = 50
    table = NODES

    def subjects(self) -> Sequence[sa.Select[Any]]:
        return (sa.select(NODES.c.uuid).where(NODES.c.fitted == sa.true()),)

    def examine(self, connection: sa.Connection, keys: Sequence[str]) -> Iterator[Finding]:
        nodes = {row.uuid: row for row in connection.execute(
            sa.select(NODES.c.uuid, NODES.c.numa_topology).where(NODES.c.uuid.in_(keys)))}
        claims = connection.execute(
            sa.select(CLAIMS.c.root_uuid, CLAIMS.c.consumer_uuid, CLAIMS.c.numa_topology, CLAIMS.c.pci_devices)
            .where(CLAIMS.c.root_uuid.in_(keys),
                   sa.or_(CLAIMS.c.numa_topology.is_not(None), CLAIMS.c.pci_devices.is_not(None)))
            .order_by(CLAIMS.c.consumer_uuid)).all()
        held: dict[str, list[GuestDedicatedResources]] = collections.defaultdict(list)
        for row in claims:
            held[row.root_uuid].append(
                GuestDedicatedResources(numa_topology=row.numa_topology, pci_devices=row.pci_devices))
        for uuid, node in nodes.items():
            for conflict in fitting.conflicts(node.numa_topology, held[uuid]):
                yield Finding("parts", uuid, conflict)
        yield from _wrong_servers(connection, claims)


def _wrong_servers(connection: sa.Connection, claims: Sequence[Any]) -> Iterator[Finding]:
    """Return servers whose resources differ from their claim (during a move it may be the claim of the migration)."""
    uuids = [row.consumer_uuid for row in claims]
    moving = set(connection.scalars(sa.select(MIGRATIONS.c.instance_uuid).where(
        MIGRATIONS.c.instance_uuid.in_(uuids), MIGRATIONS.c.open == sa.true())))
    servers = alive(connection, uuids, INSTANCES.c.numa_topology, INSTANCES.c.pci_devices)
    for row in claims:
        server = servers.get(row.consumer_uuid)
        if server is not None and row.consumer_uuid not in moving and (
                server.numa_topology, server.pci_devices) != (row.numa_topology, row.pci_devices):
            yield Finding("parts", row.root_uuid, "the server has other cells or devices than its claim",
                          subject=row.consumer_uuid)
