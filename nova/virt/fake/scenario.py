"""Scenarios of the fake driver: [fake] scenario names a YAML file with groups of virtual hosts.

::

    groups:
      - name: rack                 # the hosts are rack-000, rack-001, ...
        hosts: 80
        nodes: 100                 # of each host: rack-000-00000, rack-000-00001, ...
        vcpus: 64                  # of each node; also memory_mb, disk_gb
        inventories: {CUSTOM_FPGA: 2, PCPU: {total: 8, ratio: 1.0}}
        traits: [HW_CPU_X86_AVX2, CUSTOM_SSD]
        aggregates: [ssd]
        cells: {count: 2, threads: 2, dedicated: 8, pages: {2048: 512}}   # NUMA cells; CPUs and pages are per cell
        devices:                   # PCI devices of each node, or of each of the listed NUMA cells
          - {vendor_id: "10de", product_id: "20b0", count: 4, cells: [0]}
          - {vendor_id: "8086", product_id: "1572", count: 1, functions: 4}   # with 4 virtual functions per device
        children: {gpu: {inventories: {VGPU: 4}, traits: [CUSTOM_FAST]}}  # providers below each node
        latency: {prepare: 0.1, spawn: 0.5, "*": 0.01}      # seconds that a verb takes
        failure: {spawn: 0.01}                              # fraction of calls that fail
    aggregates:
      ssd: {availability_zone: zone-1, metadata: {ssd: "true"}}

Only ``groups`` is required, and a ``name`` in each group. Missing sizes are those of [fake]. nova-compute
does not create the aggregates, which belong to the operator: ``tools/bench/scale`` creates them with the API.
"""

import pathlib
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec
import yaml

from nova import exception
from nova.conf import CONF

Positive = Annotated[int, msgspec.Meta(ge=1, le=2147483647)]
Amount = Annotated[int, msgspec.Meta(ge=0, le=2147483647)]
Ratio = Annotated[float, msgspec.Meta(gt=0)]
Seconds = Annotated[float, msgspec.Meta(ge=0)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=200)]
ResourceClass = Annotated[str, msgspec.Meta(pattern=r"^[A-Z0-9_]+$", max_length=255)]
Trait = Annotated[str, msgspec.Meta(pattern=r"^[A-Z0-9_]+$", max_length=255)]
Id = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{4}$")]
# Calls of a driver whose latency and failures can be configured; "*" stands for all other calls.
Verb = Literal["prepare", "spawn", "destroy", "rebuild", "power_on", "power_off", "reboot", "pause", "unpause",
               "suspend", "resume", "rescue", "unrescue", "set_password", "trigger_crash_dump", "console_address",
               "snapshot", "discard_snapshot", "quiesce", "unquiesce", "attach_volume", "detach_volume",
               "extend_volume", "is_extended", "swap_volume", "cancel_swap", "volume_files", "snapshot_volume",
               "merge_volume", "cancel_merge", "attach_interface", "detach_interface", "check_resize", "open_disks",
               "close_disks", "receive_disks", "finish_move", "confirm_move", "revert_move", "check_migration_source",
               "prepare_migration", "live_migrate", "finish_migration", "rollback_migration", "*"]

# Maximum number of nodes in a scenario, since a typing error in the file could exhaust the memory of the machine.
_MOST_NODES = 1_000_000


class _Spec(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    pass


class Size(_Spec):
    """An inventory; a plain number in its place is the ``total``. ``ratio``: None for that of nova.conf, or 1."""

    total: Positive
    reserved: Amount = 0
    ratio: Ratio | None = None
    min_unit: Positive = 1
    max_unit: Positive | None = None
    step_size: Positive = 1


class Cells(_Spec):
    """The NUMA cells of a node, with equal shares of its CPUs and memory. ``dedicated``: dedicated CPUs per cell;
    ``pages``: size in KiB -> huge pages per NUMA cell."""

    count: Positive = 1
    threads: Positive = 1
    dedicated: Amount = 0
    pages: dict[Positive, Positive] = {}


class Devices(_Spec):
    """Identical PCI devices. ``functions``: if not 0, each is a physical function with so many virtual functions."""

    vendor_id: Id
    product_id: Id
    count: Positive = 1
    functions: Amount = 0
    cells: list[Amount] = []
    tags: dict[str, str] = {}


class Child(_Spec):
    """A child provider of each node."""

    inventories: dict[ResourceClass, Positive | Size] = {}
    traits: list[Trait] = []


class Group(_Spec):
    """Identical hosts."""

    name: Name
    hosts: Positive = 1
    nodes: Positive = 1
    vcpus: Positive | None = None
    memory_mb: Positive | None = None
    disk_gb: Positive | None = None
    inventories: dict[ResourceClass, Positive | Size] = {}
    traits: list[Trait] = []
    aggregates: list[str] = []
    cells: Cells | None = None
    devices: list[Devices] = []
    children: dict[Name, Child] = {}
    latency: dict[Verb, Seconds] = {}
    failure: dict[Verb, Share] = {}

    def host_names(self) -> Iterator[str]:
        """Return the host names. A group of one host has the name of the group."""
        if self.hosts == 1:
            return iter([self.name])
        return (f"{self.name}-{index:03d}" for index in range(self.hosts))


class Aggregate(_Spec):
    """An aggregate of the group's hosts."""

    availability_zone: str | None = None
    metadata: dict[str, str] = {}


class Scenario(_Spec):
    groups: Annotated[list[Group], msgspec.Meta(min_length=1)]
    aggregates: dict[str, Aggregate] = {}

    def hosts(self) -> dict[str, Group]:
        """Return every host with its group, in the order of the file."""
        return {host: group for group in self.groups for host in group.host_names()}

    def hosts_of_aggregate(self, name: str) -> list[str]:
        return [host for host, group in self.hosts().items() if name in group.aggregates]


def load(path: str) -> Scenario:
    """Read a scenario. Raises InvalidInput, which names the file, the field and the problem."""
    try:
        content = yaml.safe_load(pathlib.Path(path).read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise _bad(path, f"it cannot be read: {error}") from error
    except yaml.YAMLError as error:
        raise _bad(path, f"it is not YAML: {error}") from error
    return parse(content, path)


def parse(content: Any, path: str = "scenario") -> Scenario:
    """Return the scenario described by plain values. Raises InvalidInput."""
    try:
        scenario = msgspec.convert(content, Scenario)
    except msgspec.ValidationError as error:
        # The message names the field: "Expected `int` >= 1 - at `$.groups[0].hosts`".
        raise _bad(path, str(error).replace("`$.", "`")) from error
    _check(scenario, path)
    return scenario


def configured() -> Scenario | None:
    """Return the scenario configured in [fake] scenario, or None."""
    return load(CONF.fake.scenario) if CONF.fake.scenario else None


def _check(scenario: Scenario, path: str) -> None:
    """Check rules that types cannot express."""
    if sum(group.hosts * group.nodes for group in scenario.groups) > _MOST_NODES:
        raise _bad(path, f"more than {_MOST_NODES} nodes in `groups`")
    seen: set[str] = set()
    for index, group in enumerate(scenario.groups):
        for host in group.host_names():
            if host in seen:
                raise _bad(path, f"the host {host} is described twice - at `groups[{index}].name`")
            seen.add(host)
        for name in group.aggregates:
            if name not in scenario.aggregates:
                raise _bad(path, f"the aggregate {name} is not described under `aggregates` - at "
                                 f"`groups[{index}].aggregates`")
        zones = {scenario.aggregates[name].availability_zone for name in group.aggregates} - {None}
        if len(zones) > 1:
            raise _bad(path, f"a host cannot be in the zones {' and '.join(sorted(map(str, zones)))} at once - at "
                             f"`groups[{index}].aggregates`")
        _check_cells(group, index, path)
        for name, size in group.inventories.items():
            if isinstance(size, Size) and size.reserved > size.total:
                raise _bad(path, f"reserved is more than total - at `groups[{index}].inventories.{name}.reserved`")


def _check_cells(group: Group, index: int, path: str) -> None:
    count = group.cells.count if group.cells else 0
    for number, devices in enumerate(group.devices):
        if any(cell >= count for cell in devices.cells):
            raise _bad(path, f"a NUMA cell that the node does not have - at `groups[{index}].devices[{number}].cells`")
    if group.cells is None:
        return
    cpus, memory = group.vcpus or CONF.fake.vcpus, group.memory_mb or CONF.fake.memory_mb
    if cpus % count or (cpus // count) % group.cells.threads or memory % count:
        raise _bad(path, f"CPUs, threads and memory cannot be divided evenly - at `groups[{index}].cells`")
    if group.cells.dedicated > cpus // count:
        raise _bad(path, f"more dedicated CPUs than a cell has CPUs - at `groups[{index}].cells.dedicated`")
    if sum(size * number for size, number in group.cells.pages.items()) > memory // count * 1024:
        raise _bad(path, f"huge pages need more memory than a cell has - at `groups[{index}].cells.pages`")


def _bad(path: str, problem: str) -> exception.InvalidInput:
    return exception.InvalidInput(reason=f"[fake] scenario {path}: {problem}")
