"""images/{id}/metadata: the extra properties of an image (2.1 to 2.38)."""

from collections.abc import Mapping
from typing import Any

from nova import exception, image
from nova.api.compute.images import images
from nova.api.errors import RequestMismatch
from nova.api.request import Request
from nova.api.router import accepts
from nova.api.validation.types import ALL_METADATA, ALL_METADATA_ANSWER, ANY_QUERY, METADATA_ITEM, METADATA_ITEM_ANSWER
from nova.image.base import check_property_count


def _properties(req: Request) -> dict[str, str]:
    return dict(images.get(req, req.params["image_id"]).properties)


def _set(req: Request, properties: Mapping[str, str | None], replace: bool) -> dict[str, str]:
    """Change properties of an image and return all of them. Raises QuotaLimit if the image would have too many."""
    adds = any(value is not None for value in properties.values())
    changed = image.store().set_properties(req.ctx, req.params["image_id"], properties, replace,
                                           token=req.ctx.auth_token, max_properties=_limit(req) if adds else -1)
    return changed.properties


def check_quota(req: Request, properties: Mapping[str, str]) -> None:
    """Raise QuotaLimit for an image with too many properties set by its user."""
    check_property_count(properties, _limit(req))


def _limit(req: Request) -> int:
    return req.clients.quotas.get(req.ctx, req.ctx.project_id or "").limits.get("metadata_items", -1)


@accepts(query=ANY_QUERY, answer=ALL_METADATA_ANSWER)
def index(req: Request) -> dict[str, Any]:
    """List the metadata of an image."""
    return {"metadata": _properties(req)}


@accepts(query=ANY_QUERY, answer=METADATA_ITEM_ANSWER)
def show(req: Request) -> dict[str, Any]:
    """Show a metadata item of an image."""
    key, properties = req.params["id"], _properties(req)
    if key not in properties:
        raise exception.MetadataNotFound()
    return {"meta": {key: properties[key]}}


@accepts(body=ALL_METADATA, answer=ALL_METADATA_ANSWER)
def create(req: Request) -> dict[str, Any]:
    """Add or change metadata items of an image; its other items are kept."""
    return {"metadata": _set(req, req.body["metadata"], replace=False)}


@accepts(body=ALL_METADATA, answer=ALL_METADATA_ANSWER)
def update_all(req: Request) -> dict[str, Any]:
    """Replace the metadata of an image."""
    return {"metadata": _set(req, req.body["metadata"], replace=True)}


@accepts(body=METADATA_ITEM, answer=METADATA_ITEM_ANSWER)
def update(req: Request) -> dict[str, Any]:
    """Set a metadata item of an image."""
    meta = req.body["meta"]
    if req.params["id"] not in meta:
        raise RequestMismatch()
    _set(req, meta, replace=False)
    return {"meta": meta}


@accepts()
def delete(req: Request) -> None:
    """Delete a metadata item of an image."""
    if req.params["id"] not in _properties(req):
        raise exception.MetadataNotFound()
    _set(req, {req.params["id"]: None}, replace=False)
