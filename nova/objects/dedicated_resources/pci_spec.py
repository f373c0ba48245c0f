"""[pci]device_spec: which devices of a host guests may get, and what the operator says of them."""

from __future__ import annotations

import dataclasses
import fnmatch
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import msgspec

from nova import exception
from nova.objects.dedicated_resources.pci import PciDevice

# What an operator may say of devices, which aliases (and networks) ask for.
TAGS = ("physical_network", "trusted", "remote_managed", "managed", "live_migratable", "one_time_use", "resource_class",
        "traits")
_PARTS = {"domain": r"[0-9a-f]{4}", "bus": r"[0-9a-f]{2}", "slot": r"[0-9a-f]{2}", "function": r"[0-7]"}


@dataclasses.dataclass(frozen=True)
class DeviceSpec:
    """Devices that are alike to the operator: ``address`` and ``names`` (of network interfaces) None: any."""

    vendor_id: str | None
    product_id: str | None
    address: re.Pattern[str] | None
    name: str | None
    tags: dict[str, str]

    def matches(self, device: PciDevice, names: Collection[str]) -> bool:
        # Virtual functions are spoken of by their physical one, too.
        addresses = [device.address, *([device.parent] if device.parent else [])]
        return (self.vendor_id in (None, device.vendor_id.lower())
                and self.product_id in (None, device.product_id.lower())
                and (self.address is None or any(self.address.fullmatch(each.lower()) for each in addresses))
                and (self.name is None or self.name in names))


def parse(options: Iterable[str]) -> list[DeviceSpec]:
    """Raises InvalidInput naming the option and what is wrong with it."""
    found: list[DeviceSpec] = []
    for option in options:
        try:
            given = msgspec.json.decode(option)
        except msgspec.DecodeError as error:
            raise _bad(option, "it is no JSON") from error
        found += [_spec(option, each) for each in (given if isinstance(given, list) else [given])]
    return found


def given_out(devices: Iterable[PciDevice], specs: Iterable[DeviceSpec],
              names: Mapping[str, Collection[str]] | None = None) -> list[PciDevice]:
    """The devices that guests may get, with the tags of the first of ``specs`` that names them.

    ``names``: the network interfaces of an address.
    """
    specs, found = list(specs), []
    for device in devices:
        spec = next((spec for spec in specs if spec.matches(device, (names or {}).get(device.address, ()))), None)
        if spec is not None:
            found.append(msgspec.structs.replace(device, tags={**device.tags, **spec.tags}))
    return found


def _spec(option: str, given: Any) -> DeviceSpec:
    if not isinstance(given, dict):
        raise _bad(option, "it is no JSON object")
    unknown = given.keys() - {"vendor_id", "product_id", "address", "devname", *TAGS}
    if unknown:
        raise _bad(option, f"{sorted(unknown)[0]} is not known")
    if "address" in given and "devname" in given:
        raise _bad(option, "address and devname exclude one another")
    tags = {key: ("true" if given[key] else "false") if isinstance(given[key], bool) else str(given[key])
            for key in TAGS if key in given}
    return DeviceSpec(_id(option, given, "vendor_id"), _id(option, given, "product_id"),
                      _address(option, given["address"]) if "address" in given else None,
                      str(given["devname"]) if "devname" in given else None, tags)


def _id(option: str, given: dict[str, Any], key: str) -> str | None:
    value = str(given.get(key, "*")).lower()
    if value != "*" and not re.fullmatch(r"[0-9a-f]{4}", value):
        raise _bad(option, f"{key} must be four hexadecimal digits")
    return None if value == "*" else value


def _address(option: str, given: Any) -> re.Pattern[str]:
    """A glob of an address (parts may be left out: ``*:81:00.*``, ``:81:``), or a regular expression for each part."""
    if isinstance(given, dict):
        unknown = given.keys() - _PARTS
        if unknown:
            raise _bad(option, f"{sorted(unknown)[0]} is no part of an address")
        parts = {name: str(given.get(name, ".*")) for name in _PARTS}
        try:
            return re.compile("({domain}):({bus}):({slot})\\.({function})".format(**parts), re.IGNORECASE)
        except re.error as error:
            raise _bad(option, f"its address is no regular expression: {error}") from error
    before, dot, function = str(given).lower().partition(".")
    numbers = before.split(":")
    if len(numbers) > 3:
        raise _bad(option, f"{given} is no address")
    numbers = [number or "*" for number in ["*"] * (3 - len(numbers)) + numbers]
    globs = [*numbers, function if dot and function else "*"]
    if any(not re.fullmatch(r"[0-9a-f*?]+", each) for each in globs):
        raise _bad(option, f"{given} is no address")
    domain, bus, slot, last = (fnmatch.translate(each).removesuffix(r"\Z").removesuffix(r"\z") for each in globs)
    return re.compile(f"{domain}:{bus}:{slot}\\.{last}")


def _bad(option: str, problem: str) -> exception.InvalidInput:
    return exception.InvalidInput(reason=f"[pci]device_spec = {option}: {problem}")
