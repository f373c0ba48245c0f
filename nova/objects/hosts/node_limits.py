"""Limits of the data that a host may report about a node. Every scheduler stores this data and reads it for every
server."""

import math
from collections.abc import Sized

import msgspec

from nova import exception
from nova.objects.hosts.node import ComputeNode, Inventory, Provider, possible

# Limits: several times the numbers of real machines.
_CHILDREN = 1000
_CLASSES = 200
_TRAITS = 1000
_CELLS = 128
_DEVICES = 10_000
_GUESTS = 200
_METRICS = 100
_SIZE = 1 << 20  # maximum size in bytes of the data of a node without its devices
# Maximum number of nodes of one host (a bare metal host has many nodes).
NODES = 10_000
_LARGEST = (1 << 31) - 1
_RATIO = 1_000_000.0
_encode = msgspec.msgpack.Encoder().encode


def check(node: ComputeNode) -> None:
    """Check the limits and the ranges of a reported node. Raises InvalidInput."""
    _bound("providers", node.children, _CHILDREN)
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
