"""Bodies of requests. Errors name the field as a path such as $.inventories."""

import re
import uuid
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from nova import exception
from nova.objects.hosts.node import Inventory
from nova.objects.hosts.placement import ConsumerChange

T = TypeVar("T")

LARGEST = 2147483647  # maximum of amounts
_UUID = r"^[0-9a-fA-F]{8}-?([0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12}\Z"
# Project and user of consumers that a request created without these fields (before 1.8).
_NOBODY = "00000000-0000-0000-0000-000000000000"

Name = Annotated[str, Meta(min_length=1, max_length=200)]
Owner = Annotated[str, Meta(min_length=1, max_length=255)]
Uuid = Annotated[str, Meta(pattern=_UUID)]
ClassName = Annotated[str, Meta(pattern=r"^[A-Z0-9_]+\Z", max_length=255)]
CustomName = Annotated[str, Meta(pattern=r"^CUSTOM_[A-Z0-9_]+\Z", max_length=255)]
Generation = Annotated[int, Meta(ge=0)]
Amount = Annotated[int, Meta(ge=1, le=LARGEST)]
Count = Annotated[int, Meta(ge=0, le=LARGEST)]
Ratio = Annotated[float, Meta(gt=0, le=1_000_000)]


class Strict(Struct, forbid_unknown_fields=True):
    """The base of bodies: unknown fields are errors."""


class Provider(Strict):
    name: Name
    uuid: Uuid | UnsetType = UNSET
    parent_provider_uuid: Uuid | UnsetType | None = UNSET


class InventoryFields(Strict, kw_only=True):
    total: Amount
    reserved: Count = 0
    min_unit: Amount = 1
    max_unit: Amount = LARGEST
    step_size: Amount = 1
    allocation_ratio: Ratio = 1.0

    def inventory(self, field: str, version: int) -> Inventory:
        """Return the inventory of a body. Raises Invalid if reserved exceeds total (before 1.26: or equals it)."""
        if self.reserved > self.total or (self.reserved == self.total and version < 26):
            raise exception.Invalid(f"{field}: reserved {self.reserved} must be less than total {self.total}.")
        return Inventory(total=self.total, reserved=self.reserved, min_unit=self.min_unit, max_unit=self.max_unit,
                         step_size=self.step_size, ratio=self.allocation_ratio)


class OneInventory(InventoryFields, kw_only=True):
    resource_provider_generation: Generation


class NewInventory(OneInventory, kw_only=True):
    resource_class: ClassName


class Inventories(Strict):
    resource_provider_generation: Generation
    inventories: dict[ClassName, InventoryFields]


class Traits(Strict):
    resource_provider_generation: Generation
    traits: list[ClassName]


class Aggregates(Strict):
    resource_provider_generation: Generation
    aggregates: list[Uuid]


class ClassBody(Strict):
    name: CustomName


class _FromProvider(Strict):
    resources: Annotated[dict[ClassName, Amount], Meta(min_length=1)]
    generation: Generation | UnsetType = UNSET


class _ProviderId(Strict):
    uuid: Uuid


class _Listed(Strict):
    resource_provider: _ProviderId
    resources: Annotated[dict[ClassName, Amount], Meta(min_length=1)]


class Consumer(Strict):
    allocations: dict[Uuid, _FromProvider] | Annotated[list[_Listed], Meta(min_length=1)]
    project_id: Owner | UnsetType = UNSET
    user_id: Owner | UnsetType = UNSET
    consumer_generation: Generation | UnsetType | None = UNSET
    consumer_type: ClassName | UnsetType = UNSET
    mappings: dict[str, list[Uuid]] | UnsetType = UNSET


# Fields of a consumer, with the version of their introduction; all but mappings are required.
_SINCE = {"project_id": 8, "user_id": 8, "consumer_generation": 28, "mappings": 34, "consumer_type": 38}
_DICTIONARIES = 12  # first version in which allocations are an object instead of a list


def parse(body: Any, kind: type[T]) -> T:
    """Return the body as ``kind``. Raises Invalid."""
    try:
        return msgspec.convert(body, kind)
    except msgspec.ValidationError as error:
        raise exception.Invalid(f"JSON does not validate: {error}") from None


def uuid_of(value: str) -> str | None:
    """Return a UUID in canonical form, or None."""
    return str(uuid.UUID(value)) if re.match(_UUID, value) else None


def consumer_change(ident: str, body: Any, version: int, many: bool = False) -> ConsumerChange:
    """Return the change of a consumer. ``many``: the request changes several consumers. Raises Invalid."""
    canonical = uuid_of(ident)
    if canonical is None:
        raise exception.Invalid(f"Malformed consumer_uuid: expected a UUID, got {ident[:100]!a}.")
    fields = parse(body, Consumer)
    for name, since in _SINCE.items():
        given = getattr(fields, name) is not UNSET
        if given != (version >= since) and not (name == "mappings" and not given):
            raise exception.Invalid(f"JSON does not validate: $.{name} is " + (
                "required" if version >= since else f"not supported before microversion 1.{since}") + ".")
    if isinstance(fields.allocations, dict) != (version >= _DICTIONARIES):
        raise exception.Invalid("JSON does not validate: $.allocations must be " + (
            "an object by resource provider." if version >= _DICTIONARIES else "a list."))
    if not fields.allocations and version < 28 and not many:
        raise exception.Invalid("JSON does not validate: $.allocations is empty, which is not supported before "
                                "microversion 1.28.")
    pairs = [(provider, given.resources) for provider, given in fields.allocations.items()] if isinstance(
        fields.allocations, dict) else [(item.resource_provider.uuid, item.resources) for item in fields.allocations]
    allocations = {str(uuid.UUID(provider)): amounts for provider, amounts in pairs}
    if len(allocations) != len(pairs):
        raise exception.Invalid("JSON does not validate: $.allocations names a resource provider twice.")
    return ConsumerChange(
        uuid=canonical, allocations=allocations, project_id=fields.project_id or _NOBODY,
        user_id=fields.user_id or _NOBODY, type=fields.consumer_type or None,
        generation=fields.consumer_generation if version >= 28 else None,  # type: ignore[arg-type]
        checked=version >= 28)
