"""Attributes of a host by the names used in extra specs (capabilities:) and in the hint query, and the operators of
extra specs."""

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nova.objects.hosts.node import DISK_GB, MEMORY_MB, VCPU
from nova.scheduler.columns import BoolColumn, Column
from nova.scheduler.view import FleetView

MISSING = object()

_NUMBERS: dict[str, Callable[[FleetView], Column]] = {
    "vcpus_total": lambda view: view.inventory(VCPU, "total"),
    "vcpus": lambda view: view.inventory(VCPU, "total"),
    "vcpus_used": lambda view: view.used(VCPU),
    "cpu_allocation_ratio": lambda view: view.inventory(VCPU, "ratio"),
    "total_usable_ram_mb": lambda view: view.inventory(MEMORY_MB, "total"),
    "memory_mb": lambda view: view.inventory(MEMORY_MB, "total"),
    "memory_mb_used": lambda view: view.used(MEMORY_MB) + view.inventory(MEMORY_MB, "reserved"),
    "free_ram_mb": lambda view: view.free(MEMORY_MB, overcommit=False),
    "ram_allocation_ratio": lambda view: view.inventory(MEMORY_MB, "ratio"),
    "total_usable_disk_gb": lambda view: view.inventory(DISK_GB, "total"),
    "local_gb": lambda view: view.inventory(DISK_GB, "total"),
    "local_gb_used": lambda view: view.used(DISK_GB) + view.inventory(DISK_GB, "reserved"),
    "free_disk_gb": lambda view: view.free(DISK_GB, overcommit=False),
    "free_disk_mb": lambda view: view.free(DISK_GB, overcommit=False) * 1024,
    "disk_mb_used": lambda view: (view.used(DISK_GB) + view.inventory(DISK_GB, "reserved")) * 1024,
    "disk_allocation_ratio": lambda view: view.inventory(DISK_GB, "ratio"),
    "num_instances": lambda view: view.num_instances,
    "running_vms": lambda view: view.num_instances,
    "num_io_ops": lambda view: view.num_io_ops,
    "failed_builds": lambda view: view.failed_builds,
    "hypervisor_version": lambda view: view.hypervisor_version}
_INTERNED = {"host": "host", "hypervisor_hostname": "node", "nodename": "node", "host_ip": "host_ip",
             "hypervisor_type": "hypervisor_type", "cpu_info": "cpu_info", "metrics": "metrics",
             "supported_instances": "supported_instances", "aggregates": "aggregates", "availability_zone": "zone",
             "traits": "traits"}


def is_attribute(name: str) -> bool:
    return name in _NUMBERS or name in _INTERNED


def match(view: FleetView, path: Sequence[str], accepts: Callable[[Any], bool]) -> BoolColumn:
    """Return the mask of nodes that have an attribute at ``path`` for which ``accepts`` returns True."""
    name, inner = path[0], path[1:]
    if name in _INTERNED:
        def check(value: Any) -> bool:
            attribute = _descend(value, inner)
            return attribute is not MISSING and accepts(attribute)

        return view.lift(_INTERNED[name], check)
    if name in _NUMBERS and not inner:
        values, inverse = np.unique(_NUMBERS[name](view), return_inverse=True)
        mask: BoolColumn = np.fromiter((accepts(_plain(value)) for value in values), np.bool_, len(values))[inverse]
        return mask
    return np.zeros(len(view), np.bool_)


def values(view: FleetView, path: Sequence[str]) -> list[Any]:
    """Return the attribute at ``path`` of every node, or None for nodes without it."""
    name, inner = path[0], path[1:]
    if name in _INTERNED:
        nested: list[Any] = view.lift(_INTERNED[name], lambda value: _descend(value, inner, None), object).tolist()
        return nested
    if name in _NUMBERS and not inner:
        return [_plain(value) for value in _NUMBERS[name](view)]
    return [None] * len(view)


def _descend(value: Any, path: Sequence[str], missing: Any = MISSING) -> Any:
    for key in path:
        if not isinstance(value, dict) or key not in value:
            return missing
        value = value[key]
    return value


def _plain(value: Any) -> int | float:
    """Return an integer for a whole number: 16, not 16.0."""
    number = float(value)
    return int(number) if number.is_integer() else number


# --- operators of extra specs ----------------------------------------------------------------------------
_NUMERIC: dict[str, Callable[[float, float], bool]] = {"=": operator.ge, "==": operator.eq, "!=": operator.ne,
                                                       ">=": operator.ge, "<=": operator.le}
_TEXTUAL: dict[str, Callable[[str, str], bool]] = {"s==": operator.eq, "s!=": operator.ne, "s<": operator.lt,
                                                "s<=": operator.le, "s>": operator.gt, "s>=": operator.ge}


def satisfies(offered: Any, required: str) -> bool:
    """Return True if ``offered`` satisfies ``required``: an operator with an operand, or a plain text. ``=`` means "at
    least". An offered list satisfies ``<in>`` by one of its items, an offered text by a substring. Values that are not
    numbers satisfy no numeric operator."""
    words = required.split()
    if not words:
        return str(offered) == required
    first, rest = words[0], words[1:]
    if first == "<or>":
        return str(offered) in [item.strip() for item in required.split("<or>") if item.strip()]
    if first == "<in>":
        return _contains(offered, " ".join(rest))
    if first == "<all-in>":
        return all(_contains(offered, word) for word in rest)
    if first in _TEXTUAL:
        return _TEXTUAL[first](str(offered), " ".join(rest))
    if first in _NUMERIC:
        have, wanted = _as_number(offered), _as_number(" ".join(rest))
        return have is not None and wanted is not None and _NUMERIC[first](have, wanted)
    return str(offered) == required


def _contains(offered: Any, wanted: str) -> bool:
    if isinstance(offered, (list, tuple)):
        return any(str(item) == wanted for item in offered)
    return wanted in str(offered)


def _as_number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None
