"""os-networks and os-tenant-networks (2.1 to 2.35). Networks of Neutron have no fields but their id and label."""

import ipaddress
from typing import Any

from nova.api.request import Request, iso_precise
from nova.api.router import accepts
from nova.api.validation.fields import Array, Object, Out, View, listed, single
from nova.api.validation.types import ANY, ANY_QUERY, INTEGER, INTEGER_OR_NULL, STRING, STRING_OR_NULL, UUID
from nova.objects.networks.network import Network


def _subnet(network: Network, part: str) -> str | None:
    return str(getattr(ipaddress.IPv4Network(network.cidr, strict=False), part)) if network.cidr else None


def _dns(network: Network, number: int) -> str | None:
    return network.dns[number - 1] if len(network.dns) >= number else None


_CIDR = Out("cidr", STRING_OR_NULL, lambda network, _req: network.cidr or None)
_BASIC = [
    Out("id", UUID, "uuid"), Out("label", STRING), _CIDR,
    Out("netmask", STRING_OR_NULL, lambda network, _req: _subnet(network, "netmask")),
    Out("gateway", STRING_OR_NULL, lambda network, _req: network.gateway or None),
    Out("broadcast", STRING_OR_NULL, lambda network, _req: _subnet(network, "broadcast_address")),
    Out("dns1", STRING_OR_NULL, lambda network, _req: _dns(network, 1)),
    Out("dns2", STRING_OR_NULL, lambda network, _req: _dns(network, 2)), Out("cidr_v6", STRING_OR_NULL),
    Out("gateway_v6", STRING_OR_NULL),
    Out("netmask_v6", STRING_OR_NULL, lambda network, _req: network.cidr_v6 and network.cidr_v6.split("/")[1])]
BASIC = View(_BASIC)
# The fields of a network that administrators see.
NETWORK = View([
    *_BASIC,
    Out("bridge", STRING_OR_NULL), Out("bridge_interface", STRING_OR_NULL),
    Out("vlan", INTEGER_OR_NULL), Out("mtu", INTEGER), Out("dhcp_start", STRING_OR_NULL),
    Out("dhcp_server", STRING_OR_NULL, "gateway"), Out("host", STRING_OR_NULL),
    Out("enable_dhcp", ANY, lambda _network, _req: True),
    Out("project_id", STRING_OR_NULL),
    Out("created_at", STRING_OR_NULL, lambda network, _req: iso_precise(network.created_at)),
    # Fields of former releases: always null.
    *(Out(name, ANY, lambda _network, _req: None) for name in (
        "updated_at", "deleted", "deleted_at", "injected", "multi_host", "priority", "rxtx_base", "share_address",
        "vpn_private_address", "vpn_public_address", "vpn_public_port"))])
TENANT = View([Out("id", UUID, "uuid"), Out("label", STRING), _CIDR])


def _view(req: Request) -> View:
    return NETWORK if req.ctx.is_admin else BASIC


@accepts(query=ANY_QUERY, answer=Object({"networks": Array(NETWORK)}))
def index(req: Request) -> dict[str, Any]:
    """List the networks that the project may use."""
    view = _view(req)
    return {"networks": [view.render(network, req) for network in req.clients.networks.index(req.ctx, req.scope)]}


@accepts(query=ANY_QUERY, answer=Object({"network": NETWORK}))
def show(req: Request) -> dict[str, Any]:
    """Show a network."""
    return {"network": _view(req).render(req.clients.networks.get(req.ctx, req.params["id"], req.scope), req)}


@accepts(query=ANY_QUERY, answer=listed("networks", TENANT))
def tenant_index(req: Request) -> list[Network]:
    """List the networks of the project."""
    return req.clients.networks.index(req.ctx, req.ctx.project_id)


@accepts(query=ANY_QUERY, answer=single("network", TENANT))
def tenant_show(req: Request) -> Network:
    """Show a network of the project."""
    return req.clients.networks.get(req.ctx, req.params["id"], req.ctx.project_id)
