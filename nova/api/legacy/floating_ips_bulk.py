"""os-floating-ips-bulk: the pools of floating addresses (2.1 to 2.35)."""

from typing import Any

from nova import exception
from nova.api.errors import RouteNotFound
from nova.api.request import Request
from nova.api.router import accepts
from nova.api.validation.fields import Array, Field, Object, Out, View, string
from nova.api.validation.types import ANY_QUERY, STRING, STRING_OR_NULL
from nova.conf import CONF

_RANGE = string(minLength=1, maxLength=64)
_POOL = "nova"

CREATE = Object({"floating_ips_bulk_create": Field(Object({
    "ip_range": Field(_RANGE, required=True), "pool": string(minLength=1, maxLength=255),
    "interface": string(minLength=1, maxLength=255),
}), required=True)})
DELETE = Object({"ip_range": Field(_RANGE, required=True)})
_MADE = Object({"floating_ips_bulk_create": Object({"ip_range": STRING, "pool": STRING, "interface": STRING_OR_NULL})})

FLOATING_IP = View([
    Out("address", STRING), Out("pool", STRING),
    Out("interface", STRING_OR_NULL, lambda _shown, _req: CONF.network.uplink_interface),
    Out("project_id", STRING_OR_NULL), Out("instance_uuid", STRING_OR_NULL),
    Out("fixed_ip", STRING_OR_NULL, "fixed_address"),
])
_MANY = Object({"floating_ip_info": Array(FLOATING_IP)})


@accepts(query=ANY_QUERY, answer=_MANY)
def index(req: Request) -> dict[str, Any]:
    """List the floating addresses of all pools."""
    floating_ips = req.clients.floating_ips.index(req.ctx)
    return {"floating_ip_info": [FLOATING_IP.render(floating_ip, req) for floating_ip in floating_ips]}


@accepts(query=ANY_QUERY, answer=_MANY)
def show(req: Request) -> dict[str, Any]:
    """List the floating addresses that lead to servers of a host."""
    floating_ips = req.clients.floating_ips.on_host(req.ctx, req.params["id"])
    if not floating_ips:
        raise exception.FloatingIpNotFoundForHost(host=req.params["id"])
    return {"floating_ip_info": [FLOATING_IP.render(floating_ip, req) for floating_ip in floating_ips]}


@accepts(body=CREATE, answer=_MADE, errors=(409,))
def create(req: Request) -> dict[str, Any]:
    """Put the addresses of a range into a pool."""
    given = req.body["floating_ips_bulk_create"]
    ours, pool = CONF.network.uplink_interface, given.get("pool", _POOL)
    if ours and given.get("interface", ours) != ours:
        raise exception.InvalidInput(reason=f"interface {given['interface']}: floating IPs are on {ours} "
                                            "([network]uplink_interface)")
    req.clients.floating_ips.create(req.ctx, pool, given["ip_range"])
    return {"floating_ips_bulk_create": {
        "ip_range": given["ip_range"], "pool": pool, "interface": given.get("interface", ours)}}


@accepts(body=DELETE, answer=Object({"floating_ips_bulk_delete": STRING}), errors=(409,))
def delete(req: Request) -> dict[str, Any]:
    """Remove the unallocated addresses of a range from their pools."""
    if req.params["id"] != "delete":  # the only thing that can be done with a PUT
        raise RouteNotFound()
    req.clients.floating_ips.delete(req.ctx, req.body["ip_range"])
    return {"floating_ips_bulk_delete": req.body["ip_range"]}
