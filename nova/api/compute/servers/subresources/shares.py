"""servers/{server_id}/shares: the shares of a server."""

from typing import Any

import msgspec

from nova import exception
from nova.api.compute.servers.servers import authorize, authorized_get, operate
from nova.api.request import Request
from nova.api.router import accepts
from nova.api.validation.fields import Field, Object, Out, Query, View, listed, string
from nova.api.validation.types import STRING, STRING_OR_NULL, UUID
from nova.objects.servers.instance import Instance
from nova.objects.volumes.share import ShareMapping

POLICY = "os_compute_api:os-server-shares:"

QUERY = Query(strict=97)
CREATE = Object({"share": Field(Object({
    "share_id": Field(UUID, required=True), "tag": string(pattern="^[a-zA-Z0-9-]*$", minLength=1, maxLength=255),
}), required=True)})

_BASIC = [Out("share_id", STRING), Out("status", STRING), Out("tag", STRING)]
BASIC = View(_BASIC)
# Fields for administrators.
SHARE = View([Out("uuid", STRING), *_BASIC, Out("export_location", STRING_OR_NULL)])
EITHER = Object({"share": SHARE})


def _rendered(req: Request, mapping: ShareMapping) -> dict[str, Any]:
    return (SHARE if req.ctx.is_admin else BASIC).render(mapping, req)


def _shown(server: Instance) -> list[ShareMapping]:
    return [msgspec.structs.replace(mapping, status=server.status_of(mapping)) for mapping in server.shares or ()]


@accepts(query=QUERY, answer=listed("shares", BASIC))
def index(req: Request) -> list[ShareMapping]:
    """List the shares of a server."""
    return _shown(authorized_get(req, POLICY + "index"))


@accepts(query=QUERY, answer=EITHER)
def show(req: Request) -> dict[str, Any]:
    """Show a share of a server."""
    server = authorized_get(req, POLICY + "show")
    for mapping in _shown(server):
        if mapping.share_id == req.params["id"]:
            return {"share": _rendered(req, mapping)}
    raise exception.ShareNotAttached(instance_uuid=server.uuid, share_id=req.params["id"])


@accepts(body=CREATE, answer=EITHER, errors=(409,))
def create(req: Request) -> dict[str, Any]:
    """Attach a share to a stopped server. After its next start the guest can mount the tag (default: the share id)."""
    authorize(req, POLICY + "create")
    wanted = req.body["share"]
    accepted = operate(req, "attach_share", {"share_id": wanted["share_id"], "tag": wanted.get("tag")})
    return {"share": _rendered(req, msgspec.convert(accepted.answer, ShareMapping))}


@accepts(errors=(409,))
def delete(req: Request) -> None:
    """Detach a share from a stopped server."""
    authorize(req, POLICY + "delete")
    operate(req, "detach_share", {"share_id": req.params["id"]})
