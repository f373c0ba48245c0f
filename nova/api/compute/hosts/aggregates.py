"""os-aggregates: groups of hosts with metadata. Aggregates with a zone define the availability zones."""

from nova import exception
from nova.api.request import Request, iso_precise
from nova.api.router import accepts
from nova.api.validation.fields import Array, Changing, Combined, Field, Object, Out, Plain, View, listed, only, single
from nova.api.validation.types import HOSTNAME, INTEGER, NAME, NAME_SPACES, OPEN, STRING, STRING_OR_NULL, TRUTH, UUID
from nova.image import lookup
from nova.objects.hosts.aggregate import Aggregate
from nova.objects.images.image import Image

ZONE = "availability_zone"

_ZONE = Changing({since: Combined("oneOf", Plain(type="string", format=name, minLength=1, maxLength=255),
                                  Plain(type="null"))
                  for since, name in ((0, "az_name_with_leading_trailing_spaces"), (1, "az_name"))})
CREATE = Object({"aggregate": Field(Object({"name": Field(NAME, required=True), ZONE: _ZONE}), required=True)})
UPDATE = Object({"aggregate": Field(Object({"name": NAME_SPACES, ZONE: _ZONE}, anyOf=[
    {"required": ["name"]}, {"required": [ZONE]}]), required=True)})
_HOST = Object({"host": Field(HOSTNAME, required=True)})
SET_METADATA = only("set_metadata", Object({"metadata": Field(Object(patterns={
    "^[a-zA-Z0-9-_:. ]{1,255}$": Plain(type=["string", "null"], maxLength=255)}), required=True)}))

# Maximum number of images that one request may cache.
_MOST_IMAGES = 100
CACHE_IMAGES = Object({"cache": Field(
    Array(Object({"id": Field(UUID, required=True)}), minItems=1, maxItems=_MOST_IMAGES), required=True)})

_CREATED = [
    Out("id", INTEGER), Out("uuid", UUID, since=41), Out("name", STRING),
    Out(ZONE, STRING_OR_NULL, lambda aggregate, _req: aggregate.metadata.get(ZONE)),
    Out("created_at", STRING_OR_NULL, lambda aggregate, _req: iso_precise(aggregate.created_at)),
    Out("updated_at", STRING_OR_NULL, lambda aggregate, _req: iso_precise(aggregate.updated_at)),
    Out("deleted_at", STRING_OR_NULL, lambda _aggregate, _req: None),
    Out("deleted", TRUTH, lambda _aggregate, _req: False)]
AGGREGATE = View([*_CREATED, Out("hosts", Array(STRING)), Out("metadata", OPEN)])
_SINGLE_AGGREGATE = single("aggregate", AGGREGATE)


def _id(req: Request) -> int:
    ident = req.params["id"]
    # No aggregate has a negative id.
    if not ident.removeprefix("-").isdecimal():
        raise exception.Invalid(f"Aggregate id must be an integer, not '{ident}'.")
    if len(ident) > 18 or ident.startswith("-"):
        raise exception.AggregateNotFound(aggregate_id=ident)
    return int(ident)


@accepts(answer=listed("aggregates", AGGREGATE))
def index(req: Request) -> list[Aggregate]:
    """List host aggregates."""
    return req.clients.aggregates.index(req.ctx)


@accepts(answer=_SINGLE_AGGREGATE)
def show(req: Request) -> Aggregate:
    """Show a host aggregate."""
    return req.clients.aggregates.get(req.ctx, _id(req))


@accepts(body=CREATE, answer=single("aggregate", View(_CREATED)), errors=(409,))
def create(req: Request) -> Aggregate:
    """Create a host aggregate."""
    wanted = req.body["aggregate"]
    return req.clients.aggregates.create(req.ctx, wanted["name"], _stripped(wanted.get(ZONE)))


def _stripped(zone: str | None) -> str | None:
    return None if zone is None else zone.strip()


@accepts(body=UPDATE, answer=_SINGLE_AGGREGATE, errors=(409,))
def update(req: Request) -> Aggregate:
    """Rename a host aggregate or change its zone (null removes the zone)."""
    wanted, ident = req.body["aggregate"], _id(req)
    name, zone = wanted.get("name"), _stripped(wanted.get(ZONE))
    changed = req.clients.aggregates.update(req.ctx, ident, None if name is None else name.strip(), zone)
    if ZONE in wanted and zone is None:
        changed = req.clients.aggregates.set_metadata(req.ctx, ident, {ZONE: None})
    return changed


@accepts()
def delete(req: Request) -> None:
    """Delete a host aggregate that is empty."""
    req.clients.aggregates.delete(req.ctx, _id(req))


@accepts(body=only("add_host", _HOST), answer=_SINGLE_AGGREGATE, errors=(409,))
def add_host(req: Request) -> Aggregate:
    """Add a host to an aggregate."""
    return req.clients.aggregates.add_host(req.ctx, _id(req), req.body["add_host"]["host"])


@accepts(body=only("remove_host", _HOST), answer=_SINGLE_AGGREGATE, errors=(409,))
def remove_host(req: Request) -> Aggregate:
    """Remove a host from an aggregate."""
    return req.clients.aggregates.remove_host(req.ctx, _id(req), req.body["remove_host"]["host"])


@accepts(body=SET_METADATA, answer=_SINGLE_AGGREGATE)
def set_metadata(req: Request) -> Aggregate:
    """Change the metadata of an aggregate; null deletes a key."""
    metadata = req.body["set_metadata"]["metadata"]
    zone = metadata.get(ZONE)
    if zone is not None and (not zone.strip() or ":" in zone):
        raise exception.Invalid(f"'{zone}' is not a valid availability zone name: must not be empty or contain ':'.")
    return req.clients.aggregates.set_metadata(req.ctx, _id(req), metadata)


@accepts(body=CACHE_IMAGES)
def cache_images(req: Request) -> None:
    """Cache images on the hosts of an aggregate before servers need them."""
    wanted = [image["id"].lower() for image in req.body["cache"]]
    if len(set(wanted)) < len(wanted):
        raise exception.Invalid("cache: the same image is named twice.")
    ident = _id(req)
    req.clients.aggregates.get(req.ctx, ident)
    req.clients.aggregates.cache_images(req.ctx, ident, [_image(req, image_id) for image_id in wanted])


def _image(req: Request, image_id: str) -> Image:
    """Return the image, as visible to the caller, for the hosts that fetch it."""
    try:
        return lookup.find(req.ctx, image_id)
    except exception.InvalidInput as error:
        raise exception.Invalid(f"Image {image_id} could not be found.") from error
