"""os-fixed-ips: the server of an address, reservation of addresses (2.1 to 2.35); os-virtual-interfaces (to 2.43)."""

from nova import exception
from nova.api.compute.servers.servers import authorized_get
from nova.api.request import Request
from nova.api.router import accepts
from nova.api.validation.fields import ABSENT, Out, View, listed, only, single
from nova.api.validation.types import ANY_QUERY, OFFSET_QUERY, STRING, STRING_OR_NULL, TRUTH
from nova.common import plain_ip
from nova.objects.networks.network import VIF, NetworkAddress

FIXED_IP = View([Out("address", STRING), Out("cidr", STRING), Out("hostname", STRING_OR_NULL),
                 Out("host", STRING_OR_NULL), Out("reserved", TRUTH, since=4)])


def _address(req: Request) -> str:
    try:
        return str(plain_ip.address(req.params["id"]))
    except ValueError:
        raise exception.Invalid(f"Fixed IP {req.params['id']} is not an IP address.") from None


@accepts(query=ANY_QUERY, answer=single("fixed_ip", FIXED_IP))
def show(req: Request) -> NetworkAddress:
    """Show an address of a network, and the server that uses the address."""
    return req.clients.fixed_ips.show(req.ctx, _address(req))


@accepts(body=only("reserve"))
def reserve(req: Request) -> None:
    """Reserve an address. A server that uses the address keeps it."""
    req.clients.fixed_ips.reserve(req.ctx, _address(req), True)


@accepts(body=only("unreserve"))
def unreserve(req: Request) -> None:
    """Cancel the reservation of an address, so that servers can get it."""
    req.clients.fixed_ips.reserve(req.ctx, _address(req), False)


INTERFACE = View([Out("id", STRING), Out("mac_address", STRING, "mac"), Out("net_id", STRING, "network_id", since=12),
                  Out("OS-EXT-VIF-NET:net_id", STRING, lambda vif, req: vif.network_id if req.legacy else ABSENT)])


@accepts(query=OFFSET_QUERY, answer=listed("virtual_interfaces", INTERFACE))
def virtual_interfaces(req: Request) -> list[VIF]:
    """List the interfaces of a server."""
    server = authorized_get(req, "os_compute_api:os-virtual-interfaces")
    limit, offset = req.offset_page()
    return server.network_info[offset:offset + limit]
