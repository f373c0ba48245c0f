"""servers/{server_id}/tags: the tags of a server (from 2.26)."""

import re
from typing import Any
from urllib.parse import quote

from nova import exception
from nova.api import microversion
from nova.api.compute.servers import servers
from nova.api.request import Request, Response
from nova.api.router import accepts
from nova.api.validation.fields import Array, Field, Object, Plain
from nova.api.validation.types import ANY_QUERY, STRING, TAG

_POLICY = "os_compute_api:os-server-tags:"
_ANSWER = Object({"tags": Array(STRING)})
_VALID = re.compile(r"[^,/]{1,60}")


def _missing_tag(req: Request) -> exception.NotFound:
    return exception.NotFound(f"Server {servers.server_id(req)} has no tag '{req.params['tag']}'")


def _change(req: Request, tags: list[str], mode: str) -> list[str]:
    """Change the tags of the server; return its previous tags."""
    return req.clients.servers.set_tags(req.ctx, servers.server_id(req), tags, mode=mode, project_id=req.scope)


@accepts(query=ANY_QUERY, answer=_ANSWER)
def index(req: Request) -> dict[str, Any]:
    """List the tags of a server."""
    return {"tags": servers.authorized_get(req, _POLICY + "index").tags}


@accepts(query=ANY_QUERY)
def show(req: Request) -> None:
    """Check whether the server has this tag."""
    if req.params["tag"] not in servers.authorized_get(req, _POLICY + "show").tags:
        raise _missing_tag(req)


@accepts(body=Object({"tags": Field(Array(TAG, maxItems=50), required=True)}), answer=_ANSWER, errors=(409,))
def update_all(req: Request) -> dict[str, Any]:
    """Replace all tags of a server."""
    servers.authorize(req, _POLICY + "update_all")
    tags = list(dict.fromkeys(req.body["tags"]))
    _change(req, tags, "replace")
    return {"tags": sorted(tags)}


@accepts(body=Plain(type="null"), errors=(409,), statuses=(201, 204), located=microversion.MAX)
def update(req: Request) -> Response:
    """Add a tag to a server."""
    servers.authorize(req, _POLICY + "update")
    tag = req.params["tag"]
    if not _VALID.fullmatch(tag):
        raise exception.InvalidInput(
            f"Tag '{tag}' is invalid. It must be 1 to 60 characters long, without '/' and ','.")
    if tag in _change(req, [tag], "add"):
        return Response(status=204)
    return Response(status=201, headers={
        "Location": req.self_link("servers", servers.server_id(req)) + f"/tags/{quote(tag)}"})


@accepts(errors=(409,))
def delete_all(req: Request) -> None:
    """Remove all tags of a server."""
    servers.authorize(req, _POLICY + "delete_all")
    _change(req, [], "clear")


@accepts(errors=(409,))
def delete(req: Request) -> None:
    """Remove a tag of a server."""
    servers.authorize(req, _POLICY + "delete")
    if req.params["tag"] not in _change(req, [req.params["tag"]], "remove"):
        raise _missing_tag(req)
