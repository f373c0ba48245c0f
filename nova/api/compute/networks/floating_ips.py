"""os-floating-ips and os-floating-ip-pools (2.1 to 2.35), and the actions that associate them (to 2.43)."""

from typing import Any

from nova import exception
from nova.api.compute.servers.servers import authorize, server_id
from nova.api.request import Request
from nova.api.router import accepts
from nova.api.validation.fields import Array, Field, Object, Out, View, listed, only, single
from nova.api.validation.types import ANY_QUERY, IP, STRING, STRING_OR_NULL, UUID
from nova.common import plain_ip
from nova.objects.networks.network import FloatingIp

_POLICY = "os_compute_api:os-floating-ips:"

CREATE = Object({"pool": STRING_OR_NULL}, null=True, additional=True)
REMOVE = only("removeFloatingIp", Object({"address": Field(IP, required=True)}))

FLOATING_IP = View([
    Out("id", UUID, "uuid"), Out("ip", STRING, "address"), Out("pool", STRING),
    Out("instance_id", STRING_OR_NULL, "instance_uuid"), Out("fixed_ip", STRING_OR_NULL, "fixed_address")])
_SINGLE_FLOATING_IP = single("floating_ip", FLOATING_IP)


@accepts(query=ANY_QUERY, answer=Object({"floating_ip_pools": Array(Object({"name": STRING}))}))
def pools(req: Request) -> dict[str, Any]:
    """List the pools of floating addresses."""
    return {"floating_ip_pools": [{"name": name} for name in req.clients.floating_ips.pools(req.ctx)]}


@accepts(query=ANY_QUERY, answer=listed("floating_ips", FLOATING_IP))
def index(req: Request) -> list[FloatingIp]:
    """List the floating addresses of the project."""
    return req.clients.floating_ips.index(req.ctx, req.ctx.project_id)


@accepts(query=ANY_QUERY, answer=_SINGLE_FLOATING_IP)
def show(req: Request) -> FloatingIp:
    """Show a floating address of the project."""
    return req.clients.floating_ips.get(req.ctx, req.uuid(exception.FloatingIpNotFound, "id"), req.ctx.project_id)


@accepts(body=CREATE, answer=_SINGLE_FLOATING_IP, errors=(403, 404))
def create(req: Request) -> FloatingIp:
    """Allocate a floating address from a pool."""
    return req.clients.floating_ips.allocate(req.ctx, req.ctx.project_id or "", (req.body or {}).get("pool"))


@accepts(errors=(409,))
def delete(req: Request) -> None:
    """Release a floating address; it is disassociated from its server."""
    req.clients.floating_ips.release(req.ctx, req.uuid(exception.FloatingIpNotFound, "id"), req.ctx.project_id)


@accepts(body=only("addFloatingIp", Object({"address": Field(IP, required=True), "fixed_address": IP})), errors=(409,))
def add(req: Request) -> None:
    """Associate a floating address of the project with a server."""
    authorize(req, _POLICY + "add")
    wanted = req.body["addFloatingIp"]
    fixed = wanted.get("fixed_address")
    req.clients.floating_ips.give(req.ctx, server_id(req), _spelt(wanted["address"]), _spelt(fixed) if fixed else None,
                                  project_id=req.scope)


@accepts(body=REMOVE, errors=(409,))
def remove(req: Request) -> None:
    """Disassociate a floating address from a server; it stays allocated to the project."""
    authorize(req, _POLICY + "remove")
    req.clients.floating_ips.take(req.ctx, server_id(req), _spelt(req.body["removeFloatingIp"]["address"]),
                                  project_id=req.scope)


def _spelt(address: str) -> str:
    return str(plain_ip.address(address))
