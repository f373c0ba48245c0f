"""Resource providers, their inventories, usages, traits and aggregates."""

from typing import Any

from msgspec import UNSET

from nova import exception
from nova.objects.hosts.node import Inventory
from nova.objects.hosts.placement import ProviderView
from nova.placement import bodies, queries
from nova.placement.request import PREFIX, Answer, Request

_NESTED = 14
_LINKS = {"self": ("", 0), "inventories": ("/inventories", 0), "usages": ("/usages", 0),
          "aggregates": ("/aggregates", 1), "traits": ("/traits", 6), "allocations": ("/allocations", 11)}


def requested_provider(req: Request) -> ProviderView:
    """Return the provider in the URL. Raises ProviderNotFound."""
    return req.conductor.get(req.ctx, provider_id(req))


def provider_id(req: Request) -> str:
    """Return the uuid in the URL. Raises ProviderNotFound if it is not a UUID."""
    uuid = bodies.uuid_of(req.params["uuid"])
    if uuid is None:
        raise exception.ProviderNotFound(uuid=req.params["uuid"])
    return uuid


def _rendered(provider: ProviderView, version: int) -> dict[str, Any]:
    path = f"{PREFIX}/resource_providers/{provider.uuid}"
    body = {"uuid": provider.uuid, "name": provider.name, "generation": provider.generation,
            "links": [{"rel": name, "href": path + end} for name, (end, since) in _LINKS.items() if version >= since]}
    if version >= _NESTED:
        body.update(parent_provider_uuid=provider.parent_uuid, root_provider_uuid=provider.root_uuid)
    return body


# --- providers ---------------------------------------------------------------------------------
def index(req: Request) -> Answer:
    providers = req.conductor.index(req.ctx, queries.provider_filter(req.query, req.version))
    return req.shown({"resource_providers": [_rendered(item, req.version) for item in providers]})


def show(req: Request) -> Answer:
    return req.shown(_rendered(requested_provider(req), req.version))


def create(req: Request) -> Answer:
    body = bodies.parse(req.body, bodies.Provider)
    _check_parent(body, req.version)
    made = req.conductor.create(req.ctx, body.name, bodies.uuid_of(body.uuid) if body.uuid else None,
                                bodies.uuid_of(body.parent_provider_uuid) if body.parent_provider_uuid else None)
    location = req.location(f"/resource_providers/{made.uuid}")
    return Answer(None, 201, location) if req.version < 20 else req.shown(_rendered(made, req.version), 200, location)


def update(req: Request) -> Answer:
    body = bodies.parse(req.body, bodies.Provider)
    _check_parent(body, req.version)
    if body.uuid is not UNSET:
        raise exception.Invalid("JSON does not validate: $.uuid cannot be changed.")
    changed = req.conductor.update(
        req.ctx, provider_id(req), body.name,
        bodies.uuid_of(body.parent_provider_uuid) if body.parent_provider_uuid else None,
        reparent=body.parent_provider_uuid is not UNSET, move=req.version >= 37)
    return req.shown(_rendered(changed, req.version))


def delete(req: Request) -> Answer:
    req.conductor.delete(req.ctx, provider_id(req))
    return Answer(None, 204)


def _check_parent(body: bodies.Provider, version: int) -> None:
    if body.parent_provider_uuid is not UNSET and version < _NESTED:
        raise exception.Invalid(f"JSON does not validate: $.parent_provider_uuid is not supported before microversion "
                                f"1.{_NESTED}.")


# --- inventories and usages ------------------------------------------------------------------------
def _inventory(inventory: Inventory) -> dict[str, Any]:
    return {"total": inventory.total, "reserved": inventory.reserved, "min_unit": inventory.min_unit,
            "max_unit": inventory.max_unit, "step_size": inventory.step_size, "allocation_ratio": inventory.ratio}


def _inventories(req: Request, provider: ProviderView) -> Answer:
    return req.shown({"resource_provider_generation": provider.generation, "inventories": {
        name: _inventory(inventory) for name, inventory in sorted(provider.inventories.items())}})


def _single_inventory(req: Request, provider: ProviderView, resource_class: str, status: int = 200,
                   headers: dict[str, str] | None = None) -> Answer:
    inventory = provider.inventories.get(resource_class)
    if inventory is None:
        raise exception.NotFound(f"No inventory of class {resource_class} for resource provider {provider.uuid}")
    return req.shown({**_inventory(inventory), "resource_provider_generation": provider.generation}, status, headers)


def list_inventories(req: Request) -> Answer:
    return _inventories(req, requested_provider(req))


def show_inventory(req: Request) -> Answer:
    return _single_inventory(req, requested_provider(req), req.params["resource_class"])


def replace_inventories(req: Request) -> Answer:
    body = bodies.parse(req.body, bodies.Inventories)
    return _inventories(req, req.conductor.set_inventories(
        req.ctx, provider_id(req), {name: fields.inventory(f"$.inventories.{name}", req.version)
                                    for name, fields in body.inventories.items()}, body.resource_provider_generation))


def create_inventory(req: Request) -> Answer:
    body = bodies.parse(req.body, bodies.NewInventory)
    name = body.resource_class
    changed = req.conductor.set_inventories(req.ctx, provider_id(req), {name: body.inventory("$", req.version)},
                                            body.resource_provider_generation, "create")
    return _single_inventory(req, changed, name, 201,
                          req.location(f"/resource_providers/{changed.uuid}/inventories/{name}"))


def update_inventory(req: Request) -> Answer:
    body = bodies.parse(req.body, bodies.OneInventory)
    name = req.params["resource_class"]
    return _single_inventory(req, req.conductor.set_inventories(
        req.ctx, provider_id(req), {name: body.inventory("$", req.version)}, body.resource_provider_generation,
        "update"), name)


def delete_inventory(req: Request) -> Answer:
    req.conductor.set_inventories(req.ctx, provider_id(req), {req.params["resource_class"]: Inventory(total=1)},
                                  mode="delete")
    return Answer(None, 204)


def delete_inventories(req: Request) -> Answer:
    req.conductor.set_inventories(req.ctx, provider_id(req), {})
    return Answer(None, 204)


def usages(req: Request) -> Answer:
    provider = requested_provider(req)
    return req.shown({"resource_provider_generation": provider.generation, "usages": {
        name: inventory.used for name, inventory in sorted(provider.inventories.items())}})


# --- traits and aggregates ---------------------------------------------------------------------------
def _traits(req: Request, provider: ProviderView) -> Answer:
    return req.shown({"resource_provider_generation": provider.generation, "traits": provider.traits})


def list_traits(req: Request) -> Answer:
    return _traits(req, requested_provider(req))


def replace_traits(req: Request) -> Answer:
    body = bodies.parse(req.body, bodies.Traits)
    return _traits(req, req.conductor.set_traits(req.ctx, provider_id(req), body.traits,
                                                 body.resource_provider_generation))


def delete_traits(req: Request) -> Answer:
    req.conductor.set_traits(req.ctx, provider_id(req), [])
    return Answer(None, 204)


def _aggregates(req: Request, provider: ProviderView) -> Answer:
    generation = {"resource_provider_generation": provider.generation} if req.version >= 19 else {}
    return req.shown({"aggregates": provider.aggregates, **generation})


def list_aggregates(req: Request) -> Answer:
    return _aggregates(req, requested_provider(req))


def replace_aggregates(req: Request) -> Answer:
    generation: int | None = None
    if req.version >= 19:
        body = bodies.parse(req.body, bodies.Aggregates)
        uuids, generation = body.aggregates, body.resource_provider_generation
    else:
        uuids = bodies.parse(req.body, list[bodies.Uuid])
    return _aggregates(req, req.conductor.set_aggregates(
        req.ctx, provider_id(req), [bodies.uuid_of(uuid) or uuid for uuid in uuids], generation))
