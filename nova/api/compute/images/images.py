"""images: images of the image service (2.1 to 2.35; newer clients query the image service itself)."""

from typing import Any

from oslo_utils import strutils

from nova import exception, image
from nova.api.request import Request, whole
from nova.api.router import accepts
from nova.api.validation import formats
from nova.api.validation.fields import ABSENT, Array, Object, Out, Plain, Query, View, single
from nova.api.validation.types import ANY, ANY_QUERY, INTEGER, INTEGER_OR_NULL, LINKS, OPEN, STRING, STRING_OR_NULL
from nova.conf import CONF
from nova.objects.images.image import Image

_LIMIT = Plain(type=["integer", "string"], pattern="^[0-9]*$", minimum=1, minLength=1)
INDEX_QUERY = Query({
    "name": ANY, "status": ANY, "changes-since": ANY, "server": ANY, "type": ANY, "minRam": ANY, "minDisk": ANY,
    "limit": _LIMIT, "page_size": _LIMIT, "marker": ANY, "offset": _LIMIT,
}, strict=None, patterns={"^property-.*$": ANY})

# Status in the image service -> status and progress in responses.
_STATES = {
    "active": ("ACTIVE", 100), "queued": ("SAVING", 25), "saving": ("SAVING", 50), "importing": ("SAVING", 50),
    "uploading": ("SAVING", 50), "killed": ("ERROR", 0), "error": ("ERROR", 0), "deleted": ("DELETED", 0),
    "pending_delete": ("DELETED", 0)}
# Query parameter -> filter of the image service.
_FILTERS = {"name": "name", "type": "image_type", "minRam": "min_ram", "minDisk": "min_disk"}
_PROPERTY = "property-"


def _links(shown: Image, req: Request) -> list[dict[str, str]]:
    base = (CONF.api.glance_link_prefix or req.host_url).rstrip("/")
    return [*req.links("images", shown.id), {
        "rel": "alternate", "type": "application/vnd.openstack.image", "href": f"{base}/images/{shown.id}"}]


def _server(shown: Image, req: Request) -> Any:
    """Return the server of which the image is a snapshot."""
    uuid = shown.properties.get("instance_uuid")
    return {"id": uuid, "links": req.links("servers", uuid)} if uuid else ABSENT


def _disk_config(shown: Image, _req: Request) -> Any:
    value = shown.properties.get("auto_disk_config")
    if value is None:
        return ABSENT
    return "AUTO" if strutils.bool_from_string(value) else "MANUAL"


_NAMED = [Out("id", STRING), Out("name", STRING_OR_NULL), Out("links", LINKS, _links)]
LISTED = View(_NAMED)
IMAGE = View([
    *_NAMED, Out("status", STRING, lambda shown, _req: _STATES.get(shown.status, ("UNKNOWN", 0))[0]),
    Out("progress", INTEGER, lambda shown, _req: _STATES.get(shown.status, ("UNKNOWN", 0))[1]),
    Out("minDisk", INTEGER, "min_disk"), Out("minRam", INTEGER, "min_ram"),
    Out("created", STRING_OR_NULL, "created_at"),
    Out("updated", STRING_OR_NULL, lambda shown, _req: shown.updated_at or shown.created_at),
    Out("metadata", OPEN, "properties"), Out("server", OPEN, _server),
    Out("OS-EXT-IMG-SIZE:size", INTEGER_OR_NULL, "size"), Out("OS-DCF:diskConfig", STRING, _disk_config)])


@accepts(query=INDEX_QUERY, answer=Object({"images": Array(LISTED), "images_links": LINKS}))
def index(req: Request) -> dict[str, Any]:
    """List images."""
    return _list(req, LISTED, "images")


@accepts(query=INDEX_QUERY, answer=Object({"images": Array(IMAGE), "images_links": LINKS}))
def detail(req: Request) -> dict[str, Any]:
    """List images with details."""
    return _list(req, IMAGE, "images/detail")


def _list(req: Request, view: View, path: str) -> dict[str, Any]:
    limit, marker = req.page()
    size = req.arg("page_size")
    if size:
        limit = min(limit, whole(size))
    images = image.store().index(req.ctx, _filters(req), limit=limit, marker=marker, token=req.ctx.auth_token)
    answer = {"images": [view.render(item, req) for item in images]}
    return req.with_next(answer, "images_links", path, images, limit, "id")


def _filters(req: Request) -> dict[str, str]:
    """Return the filters of the request in terms of the image service."""
    wanted: dict[str, str] = {}
    for name, values in req.query.items():
        value = values[-1]
        if name in _FILTERS:
            wanted[_FILTERS[name]] = value
        elif name.startswith(_PROPERTY):
            wanted[name.removeprefix(_PROPERTY)] = value
        elif name == "status":
            wanted["status"] = next((state for state, (shown, _) in _STATES.items() if shown == value.upper()), value)
        elif name == "server":
            wanted["instance_uuid"] = value.rstrip("/").rpartition("/")[2]
        elif name == "changes-since":
            wanted["updated_at"] = "gte:" + _time(value)
    for name in ("min_ram", "min_disk"):
        if name in wanted and not wanted[name].isdecimal():
            raise exception.Invalid(f"Invalid {name} filter [{wanted[name]}]")
    return wanted


def _time(value: str) -> str:
    try:
        return formats.parse_time(value).strftime("%Y-%m-%dT%H:%M:%SZ")
    except ValueError:
        raise exception.Invalid(f"Invalid changes-since filter [{value}]") from None


@accepts(query=ANY_QUERY, answer=single("image", IMAGE))
def show(req: Request) -> Image:
    """Show an image."""
    return get(req, req.params["id"])


def get(req: Request, ident: str) -> Image:
    """Return an image. Raises ImageNotFound."""
    return image.store().show(req.ctx, ident, token=req.ctx.auth_token)


@accepts()
def delete(req: Request) -> None:
    """Delete an image."""
    image.store().delete(req.ctx, req.params["id"], token=req.ctx.auth_token)
