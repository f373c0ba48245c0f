"""PCI devices: devices of hosts, requests by alias, and the assignment of devices to guests. Pure functions for
schedulers, which count similar devices in pools, and for conductors, which choose single devices."""

import collections
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import msgspec

from nova import exception
from nova.objects.base import Object, whole

PCI, PF, VF = "type-PCI", "type-PF", "type-VF"
REQUIRED, PREFERRED, LEGACY, SOCKET = "required", "preferred", "legacy", "socket"
NUMA_POLICIES = (LEGACY, PREFERRED, REQUIRED, SOCKET)


class PciDevice(Object, kw_only=True):
    """A PCI device. ``parent``: address of a virtual function's physical function; ``tags``: set by the operator."""

    address: str
    vendor_id: str
    product_id: str
    dev_type: str = PCI
    numa_node: int | None = None
    parent: str | None = None
    tags: dict[str, str] = {}


class PciPool(Object, kw_only=True):
    """The number of free devices of a host with the same properties."""

    vendor_id: str
    product_id: str
    dev_type: str = PCI
    numa_node: int | None = None
    tags: dict[str, str] = {}
    count: int = 0


class PciRequest(Object, kw_only=True):
    """A request for ``count`` devices that match one of ``specs`` (vendor_id, product_id, dev_type, and tags)."""

    alias: str
    count: int
    specs: list[dict[str, str]]
    numa_policy: str = LEGACY


class GuestDevice(Object, kw_only=True):
    """A device of the host assigned to a guest, and the alias by which it was requested."""

    alias: str
    device: PciDevice


# --- requests ---------------------------------------------------------------------------
def parse_aliases(options: Iterable[str]) -> dict[str, PciRequest]:
    """Return alias name -> request for one device (equal names: alternatives) from [pci]alias. Raises InvalidInput."""
    aliases: dict[str, PciRequest] = {}
    for option in options:
        try:
            given: dict[str, Any] = msgspec.json.decode(option, type=dict[str, Any])
            name, policy = str(given["name"]), str(given.get("numa_policy", LEGACY))
        except (msgspec.DecodeError, KeyError) as error:
            raise exception.InvalidInput(reason=f"[pci]alias = {option} is not a JSON object with a name") from error
        if policy not in NUMA_POLICIES:
            raise exception.InvalidInput(reason=f"numa_policy {policy} of [pci]alias {name}: "
                                                f"must be one of {', '.join(NUMA_POLICIES)}")
        spec = {key: str(value).lower() for key, value in given.items() if key in ("vendor_id", "product_id")}
        if "device_type" in given:
            spec["dev_type"] = str(given["device_type"])
        spec |= {key: str(given[key]) for key in ("resource_class", "traits") if key in given}
        alias = aliases.setdefault(name, PciRequest(alias=name, count=1, specs=[], numa_policy=policy))
        if alias.numa_policy != policy:
            raise exception.InvalidInput(reason=f"[pci]alias {name} has two different numa_policy values")
        alias.specs.append(spec)
    return aliases


def requests(value: str, policy: str | None, aliases: dict[str, PciRequest]) -> list[PciRequest]:
    """Parse ``alias:count,...`` (pci_passthrough:alias). ``policy`` overrides the policies of the aliases. Raises
    InvalidInput for unknown aliases and malformed lists."""
    counts: collections.Counter[str] = collections.Counter()
    for part in filter(None, (part.strip() for part in value.split(","))):
        name, colon, number = part.rpartition(":")
        count = whole(number.strip())
        if not colon or count is None:
            raise exception.InvalidInput(reason=f"pci_passthrough:alias must be alias:count, not '{part}'.")
        if name.strip() not in aliases:
            raise exception.InvalidInput(reason=f"PCI alias {name.strip()} is not defined")
        counts[name.strip()] += count
    return [msgspec.structs.replace(aliases[name], count=count, numa_policy=policy or aliases[name].numa_policy)
            for name, count in counts.items() if count]


# --- inventory -------------------------------------------------------------------------------
def free(devices: Iterable[PciDevice], held: Collection[str]) -> list[PciDevice]:
    """Return the free devices. A physical function is free only if all its virtual functions are, and vice versa."""
    devices = list(devices)
    split = {device.parent for device in devices if device.parent and device.address in held}
    return sorted((device for device in devices if device.address not in held and device.address not in split
                   and (device.parent is None or device.parent not in held)), key=lambda device: device.address)


def pools(devices: Iterable[PciDevice]) -> list[PciPool]:
    """Return one pool, with a count, for the devices with equal properties; pools are in a stable order."""
    counted: dict[bytes, PciPool] = {}
    for device in devices:
        pool = PciPool(vendor_id=device.vendor_id, product_id=device.product_id, dev_type=device.dev_type,
                       numa_node=device.numa_node, tags=device.tags)
        counted.setdefault(msgspec.json.encode(pool, order="deterministic"), pool).count += 1
    return [counted[key] for key in sorted(counted)]


def matches(device: PciDevice | PciPool, request: PciRequest) -> bool:
    """Return True if the device (or each device of the pool) fulfils the request."""
    have = {"vendor_id": device.vendor_id.lower(), "product_id": device.product_id.lower(), "dev_type": device.dev_type}
    return any(all({**device.tags, **have}.get(key) == value for key, value in spec.items()) for spec in request.specs)


# --- assignment -----------------------------------------------------------------------------
def take(have: Sequence[PciPool], wanted: Sequence[PciRequest], cells: Collection[int] | None = None,
         socket_cells: Collection[int] = ()) -> list[PciPool] | None:
    """Return the pools without the requested devices, or None if the requests cannot be fulfilled. ``cells``: host
    cells of the guest (None: the guest floats, distances do not matter); ``socket_cells``: cells on the same
    sockets."""
    counts = _distribute(have, wanted, cells, socket_cells)
    if counts is None:
        return None
    left = [msgspec.structs.replace(pool, count=pool.count - sum(of[index] for of in counts))
            for index, pool in enumerate(have)]
    return [pool for pool in left if pool.count]


def choose(devices: Sequence[PciDevice], wanted: Sequence[PciRequest], cells: Collection[int] | None = None,
           socket_cells: Collection[int] = ()) -> list[GuestDevice] | None:
    """Choose free devices (see :func:`free`) for all requests, or return None."""
    single = [PciPool(vendor_id=device.vendor_id, product_id=device.product_id, dev_type=device.dev_type,
                      numa_node=device.numa_node, tags=device.tags, count=1) for device in devices]
    counts = _distribute(single, wanted, cells, socket_cells)
    if counts is None:
        return None
    chosen = [GuestDevice(alias=request.alias, device=devices[index])
              for request, of in zip(wanted, counts, strict=True) for index, count in enumerate(of) if count]
    given = {device.device.address for device in chosen}
    # A physical function and one of its virtual functions cannot both be assigned.
    return None if any(device.device.parent in given for device in chosen) else chosen


def _distribute(have: Sequence[PciPool], wanted: Sequence[PciRequest], cells: Collection[int] | None,
           socket_cells: Collection[int]) -> list[list[int]] | None:
    """Return for each request the number of devices from each pool. Requests with the fewest pools are served first."""
    choices = [[index for index, pool in enumerate(have)
                if matches(pool, request) and _distance(pool, request, cells, socket_cells) is not None]
               for request in wanted]
    left = [pool.count for pool in have]
    shares = [[0] * len(have) for _ in wanted]
    for number in sorted(range(len(wanted)), key=lambda number: (len(choices[number]), number)):
        request, missing = wanted[number], wanted[number].count
        for index in sorted(choices[number], key=lambda index: (
                _distance(have[index], request, cells, socket_cells), index)):
            given = min(left[index], missing)
            shares[number][index] += given
            left[index] -= given
            missing -= given
        if missing:
            return None
    return shares


def _distance(pool: PciPool, request: PciRequest, cells: Collection[int] | None,
              socket_cells: Collection[int]) -> int | None:
    """Return the rank of a pool by its distance from the guest, 0 for the nearest. None: too far for the request's
    policy."""
    if cells is None or pool.numa_node in cells:
        return 0
    if request.numa_policy == SOCKET:
        return 1 if pool.numa_node in socket_cells else None
    if request.numa_policy == PREFERRED:
        return 1 if pool.numa_node is None else 2
    # The policy legacy also accepts a device whose NUMA cell the host has not reported.
    return 1 if pool.numa_node is None and request.numa_policy == LEGACY else None
