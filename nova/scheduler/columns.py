"""The fleet as NumPy columns: one row per node, grown in chunks; rows are reused.

Text and structures (zones, trait sets, aggregate metadata, ...) are interned: a row holds an integer code, and a
predicate is evaluated once per distinct value, however many nodes share it."""

import weakref
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from nova.objects.dedicated_resources.fitting import NodeDedicatedResources
from nova.objects.hosts.node import Provider

BoolColumn = npt.NDArray[np.bool_]
FloatColumn = npt.NDArray[np.float64]
IntColumn = npt.NDArray[np.int64]
Column = npt.NDArray[Any]

_CHUNK = 1024  # minimum number of rows by which the columns grow
_ENCODE = msgspec.msgpack.Encoder(order="deterministic").encode
_FREE = object()


class Pool:
    """Distinct values with the number of rows that hold each value. Codes of unused values are reused."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self.version = 0  # changes with the set of values
        self._codes: dict[Any, int] = {}
        self._uses: list[int] = []
        self._unused: list[int] = []

    @staticmethod
    def _key(value: Any) -> Any:
        return value if isinstance(value, str) else _ENCODE(value)

    def take(self, value: Any) -> int:
        """Return the code of ``value`` and increment its use count."""
        key = self._key(value)
        code = self._codes.get(key)
        if code is None:
            if self._unused:
                code = self._unused.pop()
                self.values[code] = value
            else:
                code = len(self.values)
                self.values.append(value)
                self._uses.append(0)
            self._codes[key] = code
            self.version += 1
        self._uses[code] += 1
        return code

    def drop(self, code: int) -> None:
        """Record that one row less holds the value of this code. The code of a value without rows can be reused."""
        self._uses[code] -= 1
        if not self._uses[code]:
            del self._codes[self._key(self.values[code])]
            self.values[code] = _FREE
            self._unused.append(code)
            self.version += 1

    def code(self, value: Any) -> int | None:
        return self._codes.get(self._key(value))

    def distinct(self) -> list[Any]:
        """Return the values in use."""
        return [value for value in self.values if value is not _FREE]

    def lift(self, codes: Column, function: Callable[[Any], Any], dtype: Any) -> Column:
        """Return the column of ``function(value)``, evaluated once per distinct value."""
        if not codes.size:
            return np.zeros(0, dtype)
        table = np.zeros(len(self.values), dtype)
        if codes.size < len(self.values):
            for code in np.unique(codes).tolist():
                if self.values[code] is not _FREE:
                    table[code] = function(self.values[code])
        else:
            for code, value in enumerate(self.values):
                if value is not _FREE:
                    table[code] = function(value)
        lifted: Column = table[codes]
        return lifted


class Block:
    """Columns of equal length that grow together."""

    def __init__(self, fields: dict[str, Any], rows: int) -> None:
        self.columns: dict[str, Column] = {name: np.zeros(rows, dtype) for name, dtype in fields.items()}

    def __getitem__(self, name: str) -> Column:
        return self.columns[name]

    def grow(self, rows: int) -> None:
        for name, column in self.columns.items():
            larger = np.zeros(rows, column.dtype)
            larger[:len(column)] = column
            self.columns[name] = larger

    def clear(self, row: int) -> None:
        for column in self.columns.values():
            column[row] = 0


# "known_" columns have the newest reported values; columns without this prefix also count selections not reported yet.
_NODE_FIELDS: dict[str, Any] = {
    "alive": np.bool_, "up": np.bool_, "disabled": np.bool_,
    "num_instances": np.int64, "known_num_instances": np.int64,
    "num_io_ops": np.int64, "known_num_io_ops": np.int64,
    "failed_builds": np.int64, "hypervisor_version": np.int64,
    "state_generation": np.int64, "usage_generation": np.int64,
    # Monotonic time of the newest selection that no usage report has confirmed yet; 0: none.
    "pending_since": np.float64}

INVENTORY_FIELDS: dict[str, Any] = {"offered": np.bool_, "total": np.float64, "reserved": np.float64,
                                    "ratio": np.float64, "capacity": np.float64, "min_unit": np.float64,
                                    "max_unit": np.float64, "step_size": np.float64, "used": np.float64,
                                    "known_used": np.float64}

# Interned fields of a host state.
POOLED = ("host", "node", "zone", "host_ip", "hypervisor_type", "traits", "aggregates", "cpu_info",
          "supported_instances", "metrics")


class Table:
    """The columns of the fleet. Not thread-safe; the owner holds a lock."""

    def __init__(self) -> None:
        self.size = 0  # number of rows that were ever used; only these are valid
        self._rows = _CHUNK
        self.nodes = Block({**_NODE_FIELDS, **dict.fromkeys(POOLED, np.int32)}, self._rows)
        self.classes: dict[str, Block] = {}
        self.pools = {name: Pool() for name in POOLED}
        self.uuids: list[str] = []
        # Free dedicated resources by row: the reported ones minus later selections; the reported ones.
        self.dedicated_resources: dict[int, NodeDedicatedResources] = {}
        self.reported_resources: dict[int, NodeDedicatedResources] = {}
        # Child providers by row: with the reported usage plus later selections; with the reported usage.
        self.children: dict[int, list[Provider]] = {}
        self.reported_children: dict[int, list[Provider]] = {}
        self.rows_by_class: dict[str, set[int]] = {}  # rows with a child that has an inventory of a resource class
        self._shared: weakref.WeakValueDictionary[bytes, NodeDedicatedResources] = weakref.WeakValueDictionary()
        self._metadata_keys: tuple[int, frozenset[str]] = (-1, frozenset())
        self._unused: list[int] = []

    def new_row(self, uuid: str) -> int:
        """Return an empty row. Its interned fields must be set with :meth:`intern`."""
        if self._unused:
            row = self._unused.pop()
            self.uuids[row] = uuid
        else:
            row = self.size
            if row == self._rows:
                self._rows += max(_CHUNK, self._rows // 4)
                for block in (self.nodes, *self.classes.values()):
                    block.grow(self._rows)
            self.size += 1
            self.uuids.append(uuid)
        return row

    def free_row(self, row: int) -> None:
        for name in POOLED:
            self.pools[name].drop(int(self.nodes[name][row]))
        for block in (self.nodes, *self.classes.values()):
            block.clear(row)
        self.set_dedicated_resources(row, None)
        self.set_children(row, [])
        self._unused.append(row)

    def set_dedicated_resources(self, row: int, reported: NodeDedicatedResources | None) -> None:
        """Store the reported dedicated resources of a node. Nodes with equal resources share one object."""
        if reported is None:
            self.dedicated_resources.pop(row, None)
            self.reported_resources.pop(row, None)
        else:
            shared = self._shared.setdefault(_ENCODE(reported), reported)
            self.dedicated_resources[row] = self.reported_resources[row] = shared

    def set_children(self, row: int, children: list[Provider]) -> None:
        """Store the reported child providers of a node."""
        before = {name for child in self.reported_children.get(row, ()) for name in child.inventories}
        now = {name for child in children for name in child.inventories}
        for name in now - before:
            self.rows_by_class.setdefault(name, set()).add(row)
        for name in before - now:
            self.rows_by_class[name].remove(row)
        if children:
            self.children[row] = self.reported_children[row] = children
        else:
            self.children.pop(row, None)
            self.reported_children.pop(row, None)

    def metadata_keys(self) -> frozenset[str]:
        """Return all metadata keys of the aggregates of all nodes."""
        pool = self.pools["aggregates"]
        if self._metadata_keys[0] != pool.version:
            keys = frozenset(key for aggregates in pool.distinct() for metadata in aggregates for key in metadata)
            self._metadata_keys = (pool.version, keys)
        return self._metadata_keys[1]

    def inventory(self, resource_class: str) -> Block:
        """Return the columns of a resource class, created at the first call."""
        block = self.classes.get(resource_class)
        if block is None:
            block = self.classes[resource_class] = Block(INVENTORY_FIELDS, self._rows)
        return block

    def intern(self, row: int, name: str, value: Any, fresh: bool) -> None:
        """Store an interned field. ``fresh``: the row had no value before."""
        pool, column = self.pools[name], self.nodes[name]
        code = pool.take(value)
        if not fresh:
            pool.drop(int(column[row]))
        column[row] = code
