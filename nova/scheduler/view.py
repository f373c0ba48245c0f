"""The view of filters and weighers: some rows of the fleet as columns.

All columns of a view have one element per node, in the same order. A view is valid during planning only; plugins must
not keep references to it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from nova.objects.dedicated_resources import fitting
from nova.objects.dedicated_resources.fitting import AllocationRatios, DedicatedRequest, NodeDedicatedResources
from nova.objects.hosts.node import MEMORY_MB, VCPU, Inventory, Provider
from nova.objects.hosts.scheduling import HostState
from nova.scheduler.columns import BoolColumn, Column, FloatColumn, IntColumn, Table
from nova.scheduler.request import Request


class Planned:
    """Usage columns including the planned usage, copied at the first write."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.used: dict[str, FloatColumn] = {}
        self.num_instances: IntColumn | None = None
        self.num_io_ops: IntColumn | None = None
        self.dedicated_resources: dict[int, NodeDedicatedResources] = {}
        self.children: dict[int, list[Provider]] = {}

    def consume(self, row: int, resources: Mapping[str, int]) -> None:
        """Add the usage of one server to this row."""
        size = self.table.size
        for name, amount in resources.items():
            if name not in self.used:
                self.used[name] = self.table.inventory(name)["used"][:size].copy()
            self.used[name][row] += amount
        if self.num_instances is None or self.num_io_ops is None:
            self.num_instances = self.table.nodes["num_instances"][:size].copy()
            self.num_io_ops = self.table.nodes["num_io_ops"][:size].copy()
        self.num_instances[row] += 1
        self.num_io_ops[row] += 1

    def fit(self, row: int, dedicated_request: DedicatedRequest, ratios: AllocationRatios) -> None:
        """Add dedicated resources to this row. A forced node may lack them: its claim then fails."""
        free = self.dedicated_resources.get(row) or self.table.dedicated_resources.get(row)
        taken = fitting.take(free, dedicated_request, ratios) if free is not None else None
        if taken is not None:
            self.dedicated_resources[row] = taken


def _column(name: str) -> Any:
    """Return a property: the column of the nodes' table with this name."""
    return property(lambda view: view._node(name))


class FleetView:
    """The nodes in ``rows``. Memory is in MiB, disk in GiB, both as floats."""

    def __init__(self, table: Table, rows: slice | IntColumn, planned: Planned) -> None:
        self._table, self.rows, self.planned = table, rows, planned

    @classmethod
    def whole(cls, table: Table) -> FleetView:
        return cls(table, slice(0, table.size), Planned(table))

    def __len__(self) -> int:
        return self.rows.stop - self.rows.start if isinstance(self.rows, slice) else len(self.rows)

    def take(self, positions: IntColumn) -> FleetView:
        """Return the view of the nodes at these positions of this view."""
        rows: IntColumn = positions + self.rows.start if isinstance(self.rows, slice) else self.rows[positions]
        return FleetView(self._table, rows, self.planned)

    def at(self, row: int) -> FleetView:
        """Return the view of one row of the table."""
        return FleetView(self._table, slice(row, row + 1), self.planned)

    def _node(self, name: str) -> Column:
        column: Column = self._table.nodes[name][self.rows]
        return column

    # --- plain columns -----------------------------------------------------------------------------
    alive: BoolColumn = _column("alive")  # False for rows of the table without a node
    up: BoolColumn = _column("up")
    disabled: BoolColumn = _column("disabled")
    failed_builds: IntColumn = _column("failed_builds")
    hypervisor_version: IntColumn = _column("hypervisor_version")

    @property
    def num_instances(self) -> IntColumn:
        planned = self.planned.num_instances
        return self._node("num_instances") if planned is None else planned[self.rows]

    @property
    def num_io_ops(self) -> IntColumn:
        planned = self.planned.num_io_ops
        return self._node("num_io_ops") if planned is None else planned[self.rows]

    # --- resources ---------------------------------------------------------------------------------
    def inventory(self, resource_class: str, field: str) -> Column:
        """Return a column of :data:`~nova.scheduler.columns.INVENTORY_FIELDS`; 0 if there is no such resource."""
        block = self._table.classes.get(resource_class)
        if block is None:
            return np.zeros(len(self))
        if field == "used" and resource_class in self.planned.used:
            return self.planned.used[resource_class][self.rows]
        column: Column = block[field][self.rows]
        return column

    def used(self, resource_class: str) -> FloatColumn:
        return self.inventory(resource_class, "used")

    def free(self, resource_class: str, overcommit: bool = True) -> FloatColumn:
        """Return the free amount, with or without the allocation ratio (without: may be negative)."""
        if overcommit:
            return self.inventory(resource_class, "capacity") - self.used(resource_class)
        return (self.inventory(resource_class, "total") - self.inventory(resource_class, "reserved")
                - self.used(resource_class))

    # --- dedicated resources -------------------------------------------------------------------------
    @property
    def any_dedicated_resources(self) -> bool:
        """Return True if any node has dedicated resources."""
        return bool(self._table.dedicated_resources)

    def dedicated_resources(self, position: int) -> NodeDedicatedResources | None:
        """Return the free dedicated resources of a node; None: it has none."""
        row = self._row(position)
        return self.planned.dedicated_resources.get(row) or self._table.dedicated_resources.get(row)

    def ratios(self, position: int, packing: bool) -> AllocationRatios:
        """Return the allocation ratios of a node's NUMA cells."""
        node = self.at(self._row(position))
        cpu, memory = (float(node.inventory(name, "ratio")[0]) for name in (VCPU, MEMORY_MB))
        return AllocationRatios(cpu=cpu or 1.0, memory=memory or 1.0, packing=packing)

    def free_devices(self) -> FloatColumn:
        """Return the number of free PCI devices of each node."""
        column = np.zeros(self._table.size)
        for row, free in {**self._table.dedicated_resources, **self.planned.dedicated_resources}.items():
            column[row] = free.free_devices
        return column[self.rows]

    # --- trees of providers ------------------------------------------------------------------------
    def any_children(self, classes: Collection[str]) -> bool:
        """Return True if any node has a child provider with an inventory of one of these resource classes."""
        return any(self._table.rows_by_class.get(name) for name in classes)

    def has_children(self, classes: Collection[str]) -> BoolColumn:
        """Return the mask of nodes with child providers that have an inventory of one of these resource classes."""
        column = np.zeros(self._table.size, np.bool_)
        for name in classes:
            column[list(self._table.rows_by_class.get(name, ()))] = True
        mask: BoolColumn = column[self.rows]
        return mask

    def has_children_at(self, position: int, classes: Collection[str]) -> bool:
        row = self._row(position)
        return any(row in self._table.rows_by_class.get(name, ()) for name in classes)

    def tree(self, position: int) -> list[Provider]:
        """Return the providers of a node including planned usage, the root first."""
        row, state = self._row(position), self.state(position)
        root = Provider(uuid=state.node_uuid, name=state.node, inventories=state.inventories, traits=state.traits)
        return [root, *(self.planned.children.get(row) or self._table.children.get(row, []))]

    def root_gives(self, position: int, request: Request) -> bool:
        """Return True if the root provider alone provides all requested resources."""
        return not request.amounts.groups and not self.has_children_at(position, request.resources)

    # --- interned fields ---------------------------------------------------------------------------
    def lift(self, field: str, function: Callable[[Any], Any], dtype: Any = np.bool_) -> Column:
        """Return the column of ``function(value)``, evaluated once per distinct value of an interned field. Fields:
        host, node, zone, host_ip, hypervisor_type (str), traits (list[str]), aggregates (a list of metadata dicts),
        cpu_info, metrics (dict), supported_instances (triples)."""
        return self._table.pools[field].lift(self._node(field), function, dtype)

    def metadata_keys(self) -> frozenset[str]:
        """Return all metadata keys of the fleet's aggregates. For other keys the nodes need not be checked."""
        return self._table.metadata_keys()

    def by_host(self, amounts: Mapping[str, float]) -> FloatColumn:
        """Return for each node the amount of its host in ``amounts``, or 0 if its host is missing there."""
        pool = self._table.pools["host"]
        lookup = np.zeros(max(len(pool.values), 1))
        for host, amount in amounts.items():
            code = pool.code(host)
            if code is not None:
                lookup[code] = amount
        column: FloatColumn = lookup[self._node("host")]
        return column

    def on_hosts(self, hosts: Collection[str]) -> BoolColumn:
        """Return the mask of nodes on one of these hosts."""
        return self.by_host(dict.fromkeys(hosts, 1.0)) > 0

    # --- single nodes ------------------------------------------------------------------------------
    def _row(self, position: int) -> int:
        return int(self.rows.start + position if isinstance(self.rows, slice) else self.rows[position])

    def uuid(self, position: int) -> str:
        return self._table.uuids[self._row(position)]

    def text(self, field: str, position: int) -> Any:
        """Return the value of an interned field of one node."""
        return self._table.pools[field].values[int(self._table.nodes[field][self._row(position)])]

    def state(self, position: int) -> HostState:
        """Return one node as an object including planned usage, for plugins that check single hosts."""
        row, nodes, node = self._row(position), self._table.nodes, self.at(self._row(position))
        inventories = {
            name: Inventory(
                total=int(block["total"][row]), reserved=int(block["reserved"][row]), ratio=float(block["ratio"][row]),
                min_unit=int(block["min_unit"][row]), max_unit=int(block["max_unit"][row]),
                step_size=int(block["step_size"][row]), used=int(node.used(name)[0]))
            for name, block in self._table.classes.items() if block["offered"][row]}
        aggregates = self.text("aggregates", position)
        return HostState(
            node_uuid=self._table.uuids[row], host=self.text("host", position), node=self.text("node", position),
            up=bool(nodes["up"][row]), disabled=bool(nodes["disabled"][row]), inventories=inventories,
            traits=self.text("traits", position), availability_zone=self.text("zone", position) or None,
            aggregates=aggregates, num_instances=int(node.num_instances[0]), num_io_ops=int(node.num_io_ops[0]),
            failed_builds=int(nodes["failed_builds"][row]), hypervisor_type=self.text("hypervisor_type", position),
            hypervisor_version=int(nodes["hypervisor_version"][row]), host_ip=self.text("host_ip", position),
            cpu_info=self.text("cpu_info", position), metrics=self.text("metrics", position),
            supported_instances=self.text("supported_instances", position),
            generation=int(nodes["usage_generation"][row]), dedicated_resources=self.dedicated_resources(position))
