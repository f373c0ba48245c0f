"""The fleet: the state of all nodes in this scheduler, updated by deltas. Thread-safe."""

import contextlib
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from nova.objects.hosts import trees
from nova.objects.hosts.scheduling import HostState, NodeUsage, Selection, ServiceFlags, metadata_digest
from nova.scheduler.columns import Table
from nova.scheduler.request import Request
from nova.scheduler.view import FleetView, Planned


class Fleet:
    """A table of nodes. Selected resources count as used immediately, until the conductor reports the real usage
    (absolute numbers, ordered by generation) or :meth:`expire` reverts the selection after a timeout."""

    def __init__(self, default_zone: str = "nova") -> None:
        self._default_zone = default_zone
        self._table = Table()
        self._rows: dict[str, int] = {}
        self._of_host: dict[str, set[int]] = {}
        self._flags: dict[str, ServiceFlags] = {}
        self._lock = threading.RLock()

    def __len__(self) -> int:
        return len(self._rows)

    @contextlib.contextmanager
    def view(self) -> Iterator[FleetView]:
        """Provide the whole table, which does not change inside the ``with`` block."""
        with self._lock:
            yield FleetView.whole(self._table)

    # --- changes -----------------------------------------------------------------------------------
    def upsert(self, state: HostState) -> None:
        """Store the state of a node. Ignores a state, or a usage in it, that is older than the stored one."""
        with self._lock:
            nodes = self._table.nodes
            row = self._rows.get(state.node_uuid)
            fresh = row is None
            if row is None:
                row = self._rows[state.node_uuid] = self._table.new_row(state.node_uuid)
            elif state.generation < nodes["state_generation"][row]:
                return
            self._describe(row, state, fresh)
            newer = state.generation > nodes["usage_generation"][row]
            for name, block in self._table.classes.items():
                inventory = state.inventories.get(name)
                if inventory is None and block["offered"][row]:
                    block.clear(row)
            for name, inventory in state.inventories.items():
                block = self._table.inventory(name)
                with_usage = fresh or newer or not block["offered"][row]
                block["offered"][row] = True
                for field in ("total", "reserved", "ratio", "min_unit", "max_unit", "step_size"):
                    block[field][row] = getattr(inventory, field)
                block["capacity"][row] = (inventory.total - inventory.reserved) * inventory.ratio
                if with_usage:
                    block["used"][row] = block["known_used"][row] = inventory.used
            if fresh or newer:
                self._table.set_dedicated_resources(row, state.dedicated_resources)
                self._table.set_children(row, state.children)
                self._usage(row, state.num_instances, state.num_io_ops, state.failed_builds, state.generation)

    def upsert_all(self, states: Iterable[HostState]) -> None:
        """Store several nodes while holding the lock once."""
        with self._lock:
            for state in states:
                self.upsert(state)

    def _describe(self, row: int, state: HostState, fresh: bool) -> None:
        """Store all fields of a node except its resources."""
        nodes = self._table.nodes
        if not fresh:
            self._of_host[self._host_of(row)].discard(row)
        interned = {"host": state.host, "node": state.node, "host_ip": state.host_ip,
                    "zone": state.availability_zone or self._default_zone, "hypervisor_type": state.hypervisor_type,
                    "traits": sorted(state.traits), "aggregates": state.aggregates, "cpu_info": state.cpu_info,
                    "supported_instances": state.supported_instances, "metrics": state.metrics}
        for name, value in interned.items():
            self._table.intern(row, name, value, fresh)
        self._of_host.setdefault(state.host, set()).add(row)
        nodes["alive"][row] = True
        flags = self._newest(state.host, ServiceFlags(
            up=state.up, disabled=state.disabled, generation=state.service_generation))
        nodes["up"][row] = flags.up
        nodes["disabled"][row] = flags.disabled
        nodes["hypervisor_version"][row] = state.hypervisor_version
        nodes["state_generation"][row] = state.generation

    def _usage(self, row: int, num_instances: int, num_io_ops: int, failed_builds: int, generation: int) -> None:
        nodes = self._table.nodes
        nodes["num_instances"][row] = nodes["known_num_instances"][row] = num_instances
        nodes["num_io_ops"][row] = nodes["known_num_io_ops"][row] = num_io_ops
        nodes["failed_builds"][row] = failed_builds
        nodes["usage_generation"][row] = generation
        nodes["pending_since"][row] = 0

    def apply(self, usage: NodeUsage) -> None:
        """Store the usage of a node. Ignored if it is not newer than the stored usage, or the node is unknown."""
        with self._lock:
            row = self._rows.get(usage.node_uuid)
            if row is None or usage.generation <= self._table.nodes["usage_generation"][row]:
                return
            for name, block in self._table.classes.items():
                if block["offered"][row]:
                    block["used"][row] = block["known_used"][row] = usage.used.get(name, block["known_used"][row])
            if row in self._table.reported_resources:
                self._table.set_dedicated_resources(
                    row, usage.dedicated_resources or self._table.reported_resources[row])
            if row in self._table.reported_children:
                self._table.set_children(row, trees.with_usage(self._table.reported_children[row], usage.children))
            self._usage(row, usage.num_instances, usage.num_io_ops, usage.failed_builds, usage.generation)

    def set_service(self, host: str, flags: ServiceFlags) -> None:
        """Store the state of a host's compute service, unless the stored one is newer."""
        with self._lock:
            if host not in self._of_host:
                return
            flags = self._newest(host, flags)
            for row in self._of_host[host]:
                self._table.nodes["up"][row] = flags.up
                self._table.nodes["disabled"][row] = flags.disabled

    def _newest(self, host: str, flags: ServiceFlags) -> ServiceFlags:
        newest = self._flags.get(host)
        if newest is None or not flags.generation or flags.generation >= newest.generation:
            newest = self._flags[host] = flags
        return newest

    def remove(self, node_uuid: str) -> None:
        """Remove a node. Unknown nodes are ignored."""
        with self._lock:
            row = self._rows.pop(node_uuid, None)
            if row is None:
                return
            host = self._host_of(row)
            self._of_host[host].discard(row)
            if not self._of_host[host]:
                del self._of_host[host]
                self._flags.pop(host, None)
            self._table.free_row(row)

    def retain(self, node_uuids: Iterable[str]) -> int:
        """Remove all nodes except these; return the number of removed nodes."""
        with self._lock:
            removed = self._rows.keys() - set(node_uuids)
            for node_uuid in removed:
                self.remove(node_uuid)
            return len(removed)

    # --- choices -----------------------------------------------------------------------------------
    def commit(self, planned: Planned, rows: Sequence[int]) -> None:
        """Count the planned usage of these rows as used. Must be called inside the same ``with view()``."""
        with self._lock:
            nodes, now = self._table.nodes, time.monotonic()
            touched = np.array(rows, np.int64)
            for name, used in planned.used.items():
                self._table.inventory(name)["used"][touched] = used[touched]
            for name, column in (("num_instances", planned.num_instances), ("num_io_ops", planned.num_io_ops)):
                if column is not None:
                    nodes[name][touched] = column[touched]
            self._table.dedicated_resources.update(
                (row, planned.dedicated_resources[row]) for row in rows if row in planned.dedicated_resources)
            self._table.children.update((row, planned.children[row]) for row in rows if row in planned.children)
            nodes["pending_since"][touched] = now

    def expire(self, older_than: float) -> int:
        """Release selections that no usage report confirmed in ``older_than`` seconds; return the number of nodes."""
        with self._lock:
            nodes, cutoff = self._table.nodes, time.monotonic() - older_than
            since = nodes["pending_since"]
            rows = np.flatnonzero((since > 0) & (since <= cutoff))
            if not rows.size:
                return 0
            for block in self._table.classes.values():
                block["used"][rows] = block["known_used"][rows]
            if self._table.dedicated_resources:
                self._table.dedicated_resources.update(
                    (row, self._table.reported_resources[row]) for row in rows.tolist()
                    if row in self._table.dedicated_resources)
            if self._table.children:
                self._table.children.update((row, self._table.reported_children[row]) for row in rows.tolist()
                                            if row in self._table.children)
            nodes["num_instances"][rows] = nodes["known_num_instances"][rows]
            nodes["num_io_ops"][rows] = nodes["known_num_io_ops"][rows]
            since[rows] = 0
            return len(rows)

    # --- reading -----------------------------------------------------------------------------------
    def _host_of(self, row: int) -> str:
        host: str = self._table.pools["host"].values[int(self._table.nodes["host"][row])]
        return host

    def selection(self, row: int, by_aggregates: bool = False, request: Request | None = None,
                  limits: Mapping[str, Any] = MappingProxyType({})) -> Selection:
        """Return the selection for a row. ``by_aggregates``: include the digest that the claim checks again.
        ``request``: the request, if child providers may have to provide resources. ``limits``: more fields to set."""
        nodes, pools = self._table.nodes, self._table.pools
        tree = False
        if request is not None and (request.amounts.groups or self._table.children):
            tree = not FleetView.whole(self._table).at(row).root_gives(0, request)
        digest = metadata_digest(pools["aggregates"].values[int(nodes["aggregates"][row])]) if by_aggregates else ""
        return Selection(node_uuid=self._table.uuids[row], host=self._host_of(row),
                         node=pools["node"].values[int(nodes["node"][row])],
                         availability_zone=pools["zone"].values[int(nodes["zone"][row])], aggregates=digest, tree=tree,
                         **limits)

    def state(self, node_uuid: str) -> HostState | None:
        """Return the current state of a node including unconfirmed selections, or None if the node is unknown."""
        with self._lock:
            row = self._rows.get(node_uuid)
            return None if row is None else FleetView.whole(self._table).at(row).state(0)
