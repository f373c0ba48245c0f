"""Parser of [pci]device_spec: the devices of a host that may be assigned to guests, with the operator's tags."""

import dataclasses
import fnmatch
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import msgspec

from nova import exception
from nova.objects.dedicated_resources.pci import PciDevice

# Tags that an operator may set on devices. Aliases and networks request them.
TAGS = ("physical_network", "trusted", "remote_managed", "managed", "live_migratable", "one_time_use", "resource_class",
        "traits")
_ADDRESS_FIELDS = {"domain": r"[0-9a-f]{4}", "bus": r"[0-9a-f]{2}", "slot": r"[0-9a-f]{2}", "function": r"[0-7]"}


@dataclasses.dataclass(frozen=True)
class DeviceSpec:
    """A rule that selects devices. ``address`` and ``name`` (of a network interface): None selects any."""

    vendor_id: str | None
    product_id: str | None
    address: re.Pattern[str] | None
    name: str | None
    tags: dict[str, str]

    def matches(self, device: PciDevice, names: Collection[str]) -> bool:
        # A rule for a physical function also selects its virtual functions.
        addresses = [device.address, *([device.parent] if device.parent else [])]
        return (self.vendor_id in (None, device.vendor_id.lower())
                and self.product_id in (None, device.product_id.lower())
                and (self.address is None or any(self.address.fullmatch(address.lower()) for address in addresses))
                and (self.name is None or self.name in names))


def parse(options: Iterable[str]) -> list[DeviceSpec]:
    """Parse the values of [pci]device_spec. Raises InvalidInput, which names the option and the problem."""
    specs: list[DeviceSpec] = []
    for option in options:
        try:
            given = msgspec.json.decode(option)
        except msgspec.DecodeError as error:
            raise _bad(option, "it is not valid JSON") from error
        specs += [_spec(option, value) for value in (given if isinstance(given, list) else [given])]
    return specs


def given_out(devices: Iterable[PciDevice], specs: Iterable[DeviceSpec],
              names: Mapping[str, Collection[str]] | None = None) -> list[PciDevice]:
    """Return the devices that may be assigned to guests, with the tags of the first spec that selects them. ``names``:
    the network interfaces by PCI address."""
    specs, selected = list(specs), []
    for device in devices:
        spec = next((spec for spec in specs if spec.matches(device, (names or {}).get(device.address, ()))), None)
        if spec is not None:
            selected.append(msgspec.structs.replace(device, tags={**device.tags, **spec.tags}))
    return selected


def _spec(option: str, given: Any) -> DeviceSpec:
    if not isinstance(given, dict):
        raise _bad(option, "it is not a JSON object")
    unknown = given.keys() - {"vendor_id", "product_id", "address", "devname", *TAGS}
    if unknown:
        raise _bad(option, f"{sorted(unknown)[0]} is not a known key")
    if "address" in given and "devname" in given:
        raise _bad(option, "address and devname are mutually exclusive")
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
    """Return the pattern for a glob of an address (fields may be omitted: ``*:81:00.*``, ``:81:``), or for a regular
    expression per field."""
    if isinstance(given, dict):
        unknown = given.keys() - _ADDRESS_FIELDS
        if unknown:
            raise _bad(option, f"{sorted(unknown)[0]} is not a field of an address")
        fields = {name: str(given.get(name, ".*")) for name in _ADDRESS_FIELDS}
        try:
            return re.compile("({domain}):({bus}):({slot})\\.({function})".format(**fields), re.IGNORECASE)
        except re.error as error:
            raise _bad(option, f"its address is not a regular expression: {error}") from error
    before, dot, function = str(given).lower().partition(".")
    numbers = before.split(":")
    if len(numbers) > 3:
        raise _bad(option, f"{given} is not a PCI address")
    numbers = [number or "*" for number in ["*"] * (3 - len(numbers)) + numbers]
    globs = [*numbers, function if dot and function else "*"]
    if any(not re.fullmatch(r"[0-9a-f*?]+", glob) for glob in globs):
        raise _bad(option, f"{given} is not a PCI address")
    domain, bus, slot, last = (fnmatch.translate(glob).removesuffix(r"\Z").removesuffix(r"\z") for glob in globs)
    return re.compile(f"{domain}:{bus}:{slot}\\.{last}")


def _bad(option: str, problem: str) -> exception.InvalidInput:
    return exception.InvalidInput(reason=f"[pci]device_spec = {option}: {problem}")
