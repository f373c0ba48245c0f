"""Compute nodes, their resources (providers, inventories, allocations) and metrics."""

import datetime
import math
import re
from collections.abc import Sized
from typing import Any

import msgspec

from nova import exception
from nova.objects.base import Object
from nova.objects.dedicated_resources.numa import HostTopology
from nova.objects.dedicated_resources.pci import PciDevice
from nova.objects.hosts.service import Service

VCPU, MEMORY_MB, DISK_GB = "VCPU", "MEMORY_MB", "DISK_GB"

PERCENT = ".percent"  # suffix of metrics in percent
_METRIC_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,63}")
_METRIC_SOURCE = 255
_METRIC_LARGEST = 1 << 63

# Limits of the data that a host may report about a node: several times the numbers of real machines. Every scheduler
# stores this data and reads it for every server.
CHILDREN, _CLASSES, _TRAITS, _METRICS = 1000, 200, 1000, 100
_CELLS, _DEVICES, _GUESTS = 128, 10_000, 200
_SIZE = 1 << 20  # maximum size in bytes of the data of a node without its devices
NODES = 10_000  # maximum number of nodes of one host (a bare metal host has many nodes)
_LARGEST = (1 << 31) - 1
_RATIO = 1_000_000.0
_encode = msgspec.msgpack.Encoder().encode


class Inventory(Object, kw_only=True):
    """The inventory of a resource class. Room for a claim: (total - reserved) * ratio - used."""

    total: int
    reserved: int = 0
    ratio: float = 1.0
    min_unit: int = 1
    max_unit: int = 2147483647
    step_size: int = 1
    used: int = 0

    @property
    def capacity(self) -> int:
        return int((self.total - self.reserved) * self.ratio)


class Provider(Object, kw_only=True):
    """A resource provider in the provider tree of a host."""

    uuid: str
    name: str
    parent_uuid: str | None = None
    inventories: dict[str, Inventory] = {}
    traits: list[str] = []


class Metric(Object, kw_only=True):
    """A metric, for example cpu.user.time or cpu.idle.percent. Times in ns, frequencies in MHz, percents from 0 to 100.
    ``source``: name of the monitor; ``timestamp``: by the clock of the host."""

    name: str
    value: int
    source: str = ""
    timestamp: datetime.datetime


def possible(metric: Metric) -> bool:
    """Return True if the metric is valid for schedulers and consumers of notifications."""
    return (_METRIC_NAME.fullmatch(metric.name) is not None and len(metric.source) <= _METRIC_SOURCE
            and -_METRIC_LARGEST <= metric.value < _METRIC_LARGEST
            and (not metric.name.endswith(PERCENT) or 0 <= metric.value <= 100)
            # in UTC the year must stay in the range of datetime
            and metric.timestamp.tzinfo is not None and 1970 <= metric.timestamp.year < 9999)


class ComputeNode(Object, kw_only=True):
    """A hypervisor node as reported by its driver and shown by the API. ``provider`` is the root provider and has the
    node's uuid; ``children``: its sub-providers (GPUs, ...). ``disk_available_least`` and other disk sizes in GiB,
    memory in MiB."""

    id: int = 0
    uuid: str = ""
    host: str
    hypervisor_hostname: str
    hypervisor_type: str
    hypervisor_version: int
    host_ip: str = ""
    cpu_info: dict[str, Any] = {}
    # (architecture, hypervisor type, vm mode) triples
    supported_instances: list[tuple[str, str, str]] = []
    disk_available_least: int | None = None
    uptime: str | None = None
    provider: Provider
    children: list[Provider] = []
    # None: the driver reports no topology, so nothing can be pinned on the node.
    numa_topology: HostTopology | None = None
    pci_devices: list[PciDevice] | None = None  # the devices that may be assigned to guests
    metrics: list[Metric] | None = None  # None: nothing is measured
    # Maintained by the conductor, not reported:
    service_id: int = 0
    num_instances: int = 0
    num_io_ops: int = 0
    failed_builds: int = 0
    generation: int = 0
    service: Service | None = None

    def inventory(self, resource_class: str) -> Inventory:
        return self.provider.inventories.get(resource_class, Inventory(total=0))


# --- limits ----------------------------------------------------------------------------------
def check_limits(node: ComputeNode) -> None:
    """Check the limits and the ranges of a reported node. Raises InvalidInput."""
    _bound("providers", node.children, CHILDREN)
    _bound("NUMA cells", node.numa_topology.cells if node.numa_topology else (), _CELLS)
    _bound("PCI devices", node.pci_devices or (), _DEVICES)
    _bound("kinds of guests", node.supported_instances, _GUESTS)
    _bound("metrics", node.metrics or (), _METRICS)
    for metric in node.metrics or ():
        if not possible(metric):
            raise exception.InvalidInput(reason=f"the metric {metric.name[:100]!a} is invalid")
    for provider in (node.provider, *node.children):
        _check_provider(provider)
    if len(_encode(msgspec.structs.replace(node, pci_devices=None))) > _SIZE:
        raise exception.InvalidInput(reason=f"the report of a node exceeds {_SIZE} bytes")


def _check_provider(provider: Provider) -> None:
    _bound("resource classes of a provider", provider.inventories, _CLASSES)
    _bound("traits of a provider", provider.traits, _TRAITS)
    for name, inventory in provider.inventories.items():
        if not _valid(inventory):
            raise exception.InvalidInput(reason=f"the inventory of {name[:100]!a} is invalid")


def _valid(inventory: Inventory) -> bool:
    units = (inventory.min_unit, inventory.max_unit, inventory.step_size)
    return (all(0 <= amount <= _LARGEST for amount in (inventory.total, inventory.reserved))
            and all(1 <= unit <= _LARGEST for unit in units)
            and math.isfinite(inventory.ratio) and 0 < inventory.ratio <= _RATIO)


def _bound(what: str, values: Sized, most: int) -> None:
    if len(values) > most:
        raise exception.InvalidInput(reason=f"a node has {len(values)} {what}, and {most} at most may be reported")
