"""servers/{server_id}/metadata: key-value pairs of users."""

from typing import Any

from nova import exception
from nova.api.compute.servers import servers
from nova.api.request import Request
from nova.api.router import accepts
from nova.api.validation.types import ALL_METADATA, ALL_METADATA_ANSWER, METADATA_ITEM, METADATA_ITEM_ANSWER

_POLICY = "os_compute_api:server-metadata:"


@accepts(answer=ALL_METADATA_ANSWER)
def index(req: Request) -> dict[str, Any]:
    """List the metadata of a server."""
    return {"metadata": servers.authorized_get(req, _POLICY + "index").metadata}


@accepts(answer=METADATA_ITEM_ANSWER)
def show(req: Request) -> dict[str, Any]:
    """Show a metadata item of a server."""
    metadata = servers.authorized_get(req, _POLICY + "show").metadata
    key = req.params["key"]
    if key not in metadata:
        raise exception.MetadataNotFound()
    return {"meta": {key: metadata[key]}}


def _set(req: Request, metadata: dict[str, str], replace: bool) -> dict[str, str]:
    return req.clients.servers.set_metadata(
        req.ctx, servers.server_id(req), metadata, replace=replace, project_id=req.scope)


@accepts(body=ALL_METADATA, answer=ALL_METADATA_ANSWER, errors=(409,))
def create(req: Request) -> dict[str, Any]:
    """Add or change metadata items of a server."""
    servers.authorize(req, _POLICY + "create")
    return {"metadata": _set(req, req.body["metadata"], replace=False)}


@accepts(body=ALL_METADATA, answer=ALL_METADATA_ANSWER, errors=(409,))
def update_all(req: Request) -> dict[str, Any]:
    """Replace all metadata of a server."""
    servers.authorize(req, _POLICY + "update_all")
    return {"metadata": _set(req, req.body["metadata"], replace=True)}


@accepts(body=METADATA_ITEM, answer=METADATA_ITEM_ANSWER, errors=(409,))
def update(req: Request) -> dict[str, Any]:
    """Set a metadata item of a server."""
    servers.authorize(req, _POLICY + "update")
    item = req.body["meta"]
    if req.params["key"] not in item:
        raise exception.InvalidInput("Request body and URI mismatch")
    _set(req, item, replace=False)
    return {"meta": item}


@accepts(errors=(409,))
def delete(req: Request) -> None:
    """Delete a metadata item of a server."""
    servers.authorize(req, _POLICY + "delete")
    req.clients.servers.delete_metadata(req.ctx, servers.server_id(req), req.params["key"], project_id=req.scope)
