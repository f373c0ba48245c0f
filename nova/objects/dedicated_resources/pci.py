"""PCI devices: what hosts have, what servers ask for by aliases, and which device goes to whom.

Pure functions, for schedulers (which count devices that are alike) and conductors (which choose them).
"""

from __future__ import annotations

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
    """``parent`` is the address of the physical function of a virtual one; ``tags`` come from the operator."""

    address: str
    vendor_id: str
    product_id: str
    dev_type: str = PCI
    numa_node: int | None = None
    parent: str | None = None
    tags: dict[str, str] = {}


class PciPool(Object, kw_only=True):
    """Free devices of a host that are alike."""

    vendor_id: str
    product_id: str
    dev_type: str = PCI
    numa_node: int | None = None
    tags: dict[str, str] = {}
    count: int = 0


class PciRequest(Object, kw_only=True):
    """``count`` devices that match one of ``specs`` (vendor_id, product_id, dev_type, and tags)."""

    alias: str
    count: int
    specs: list[dict[str, str]]
    numa_policy: str = LEGACY


class GuestDevice(Object, kw_only=True):
    """A device of a host that a guest has, and the alias by which it was asked for."""

    alias: str
    device: PciDevice


# --- what is asked for ---------------------------------------------------------------------------
def parse_aliases(options: Iterable[str]) -> dict[str, PciRequest]:
    """[pci]alias: name -> a request for one. Several of one name are alternatives. Raises InvalidInput."""
    aliases: dict[str, PciRequest] = {}
    for option in options:
        try:
            given: dict[str, Any] = msgspec.json.decode(option, type=dict[str, Any])
            name, policy = str(given["name"]), str(given.get("numa_policy", LEGACY))
        except (msgspec.DecodeError, KeyError) as error:
            raise exception.InvalidInput(reason=f"[pci]alias = {option} is no JSON object with a name") from error
        if policy not in NUMA_POLICIES:
            raise exception.InvalidInput(reason=f"numa_policy {policy} of [pci]alias {name}: "
                                                f"must be one of {', '.join(NUMA_POLICIES)}")
        spec = {key: str(value).lower() for key, value in given.items() if key in ("vendor_id", "product_id")}
        if "device_type" in given:
            spec["dev_type"] = str(given["device_type"])
        spec |= {key: str(given[key]) for key in ("resource_class", "traits") if key in given}
        known = aliases.setdefault(name, PciRequest(alias=name, count=1, specs=[], numa_policy=policy))
        if known.numa_policy != policy:
            raise exception.InvalidInput(reason=f"[pci]alias {name} has two numa_policies")
        known.specs.append(spec)
    return aliases


def requests(asked: str, policy: str | None, aliases: dict[str, PciRequest]) -> list[PciRequest]:
    """What ``alias:count,...`` (pci_passthrough:alias) asks for; ``policy`` goes before the aliases' own.

    Raises InvalidInput for unknown aliases and for what is no such list.
    """
    counts: collections.Counter[str] = collections.Counter()
    for part in filter(None, (part.strip() for part in asked.split(","))):
        name, colon, number = part.rpartition(":")
        count = whole(number.strip())
        if not colon or count is None:
            raise exception.InvalidInput(reason=f"pci_passthrough:alias must be alias:count, not '{part}'.")
        if name.strip() not in aliases:
            raise exception.InvalidInput(reason=f"PCI alias {name.strip()} is not defined")
        counts[name.strip()] += count
    return [msgspec.structs.replace(aliases[name], count=count, numa_policy=policy or aliases[name].numa_policy)
            for name, count in counts.items() if count]


# --- what is there -------------------------------------------------------------------------------
def free(devices: Iterable[PciDevice], held: Collection[str]) -> list[PciDevice]:
    """The devices that nobody has: a physical function goes with all its virtual ones, or they without it."""
    devices = list(devices)
    split = {device.parent for device in devices if device.parent and device.address in held}
    return sorted((device for device in devices if device.address not in held and device.address not in split
                   and (device.parent is None or device.parent not in held)), key=lambda device: device.address)


def pools(devices: Iterable[PciDevice]) -> list[PciPool]:
    """Counted by what makes them alike, in a certain order."""
    found: dict[bytes, PciPool] = {}
    for device in devices:
        pool = PciPool(vendor_id=device.vendor_id, product_id=device.product_id, dev_type=device.dev_type,
                       numa_node=device.numa_node, tags=device.tags)
        found.setdefault(msgspec.json.encode(pool, order="deterministic"), pool).count += 1
    return [found[key] for key in sorted(found)]


def matches(one: PciDevice | PciPool, request: PciRequest) -> bool:
    """Whether a device (or each of a pool) is what the request asks for."""
    have = {"vendor_id": one.vendor_id.lower(), "product_id": one.product_id.lower(), "dev_type": one.dev_type}
    return any(all({**one.tags, **have}.get(key) == value for key, value in spec.items()) for spec in request.specs)


# --- giving them out -----------------------------------------------------------------------------
def take(have: Sequence[PciPool], wanted: Sequence[PciRequest], cells: Collection[int] | None = None,
         socket_cells: Collection[int] = ()) -> list[PciPool] | None:
    """The pools without what the requests get, or None when they do not get all.

    ``cells`` are those of the host that the guest is on (None: it floats, nothing is near or far), ``socket_cells``
    those on the same sockets.
    """
    counts = _share(have, wanted, cells, socket_cells)
    if counts is None:
        return None
    left = [msgspec.structs.replace(pool, count=pool.count - sum(of[index] for of in counts))
            for index, pool in enumerate(have)]
    return [pool for pool in left if pool.count]


def choose(devices: Sequence[PciDevice], wanted: Sequence[PciRequest], cells: Collection[int] | None = None,
           socket_cells: Collection[int] = ()) -> list[GuestDevice] | None:
    """Free devices (see :func:`free`) for all requests, or None."""
    single = [PciPool(vendor_id=device.vendor_id, product_id=device.product_id, dev_type=device.dev_type,
                      numa_node=device.numa_node, tags=device.tags, count=1) for device in devices]
    counts = _share(single, wanted, cells, socket_cells)
    if counts is None:
        return None
    chosen = [GuestDevice(alias=request.alias, device=devices[index])
              for request, of in zip(wanted, counts, strict=True) for index, count in enumerate(of) if count]
    given = {one.device.address for one in chosen}
    # A physical function and one of its virtual ones cannot both be given out.
    return None if any(one.device.parent in given for one in chosen) else chosen


def _share(have: Sequence[PciPool], wanted: Sequence[PciRequest], cells: Collection[int] | None,
           socket_cells: Collection[int]) -> list[list[int]] | None:
    """For each request, how many of each pool. The request with the least choice chooses first."""
    choices = [[index for index, pool in enumerate(have)
                if matches(pool, request) and _distance(pool, request, cells, socket_cells) is not None]
               for request in wanted]
    left = [pool.count for pool in have]
    shares = [[0] * len(have) for _ in wanted]
    for number in sorted(range(len(wanted)), key=lambda each: (len(choices[each]), each)):
        request, missing = wanted[number], wanted[number].count
        for index in sorted(choices[number], key=lambda each: (
                _distance(have[each], request, cells, socket_cells), each)):
            given = min(left[index], missing)
            shares[number][index] += given
            left[index] -= given
            missing -= given
        if missing:
            return None
    return shares


def _distance(pool: PciPool, request: PciRequest, cells: Collection[int] | None,
              socket_cells: Collection[int]) -> int | None:
    """How far from the guest, the nearest first; None: too far for the request's policy."""
    if cells is None or pool.numa_node in cells:
        return 0
    if request.numa_policy == SOCKET:
        return 1 if pool.numa_node in socket_cells else None
    if request.numa_policy == PREFERRED:
        return 1 if pool.numa_node is None else 2
    # A device that tells no cell is near enough unless that is ruled out.
    return 1 if pool.numa_node is None and request.numa_policy == LEGACY else None
