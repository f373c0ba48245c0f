"""servers/{server_id}/os-interface and servers/{server_id}/ips: the interfaces of a server and their addresses."""

from typing import Any

import msgspec

from nova import exception
from nova.api import polling
from nova.api.compute.servers.servers import authorize, authorized_get, operate, server_id
from nova.api.compute.servers.servers_view import addresses
from nova.api.errors import as_invalid
from nova.api.request import Request
from nova.api.router import accepts
from nova.api.validation.fields import Array, Field, Object, Out, Plain, Query, View, listed, only, single
from nova.api.validation.types import IP, OPEN, STRING, STRING_OR_NULL, TAG, UUID
from nova.common import plain_ip
from nova.objects.networks.network import VIF

# Seconds that a request waits for an external service to create an interface, and seconds between two polls.
_TIMEOUT, _PAUSE = 60.0, 0.25

POLICY = "os_compute_api:os-attach-interfaces:"
_MULTINIC = "os_compute_api:os-multinic:"

QUERY = Query(strict=102)
CREATE = Object({"interfaceAttachment": Object({
    "net_id": UUID, "port_id": UUID,
    "fixed_ips": Array(Object({"ip_address": Field(IP, required=True)}), minItems=1, maxItems=1),
    "tag": Field(TAG, since=49)})})
ADD_FIXED_IP = only("addFixedIp", Object({
    "networkId": Field(Plain(type=["string", "number"], minLength=1, maxLength=36), required=True)}))
INTERFACE = View([
    Out("port_id", STRING, "id"), Out("net_id", STRING, "network_id"), Out("mac_addr", STRING, "mac"),
    Out("port_state", STRING, lambda vif, _req: "ACTIVE" if vif.active else "DOWN"),
    Out("fixed_ips", Array(Object({"ip_address": STRING, "subnet_id": STRING})), lambda vif, _req: [
        {"subnet_id": fixed.subnet_id, "ip_address": fixed.address} for fixed in vif.fixed_ips]),
    Out("tag", STRING_OR_NULL, since=70)])

_SINGLE_INTERFACE = single("interfaceAttachment", INTERFACE)


@accepts(query=QUERY, answer=listed("interfaceAttachments", INTERFACE))
def index(req: Request) -> list[VIF]:
    """List the interfaces of a server."""
    return authorized_get(req, POLICY + "list").network_info


@accepts(query=QUERY, answer=_SINGLE_INTERFACE)
def show(req: Request) -> VIF:
    """Show an interface of a server."""
    for vif in authorized_get(req, POLICY + "show").network_info:
        if vif.id == req.params["id"]:
            return vif
    raise exception.PortNotFound(port_id=req.params["id"])


@accepts(body=CREATE, answer=_SINGLE_INTERFACE, errors=(409,))
def create(req: Request) -> VIF:
    """Attach an interface. The guest can use the interface when its port_state is ACTIVE."""
    authorize(req, POLICY + "create")
    wanted = req.body.get("interfaceAttachment", {})
    fixed_ips = wanted.get("fixed_ips")
    if wanted.get("net_id") and wanted.get("port_id"):
        raise exception.Invalid("Must not input both net_id and port_id.")
    if fixed_ips and not wanted.get("net_id"):
        raise exception.Invalid("Must input net_id when fixed_ips are given.")
    try:
        with as_invalid(exception.NetworkAmbiguous, exception.NoMoreFixedIps):
            return _attached(req, {
                "network_id": wanted.get("net_id"), "port_id": wanted.get("port_id"), "tag": wanted.get("tag"),
                "fixed_ip": fixed_ips[0]["ip_address"] if fixed_ips else None})
    except exception.FixedIpInUse as error:
        raise exception.Conflict(error.message) from error


def _attached(req: Request, wanted: dict[str, Any]) -> VIF:
    """Attach an interface and return it. Wait if an external network service is still creating it."""
    accepted = operate(req, "attach_interface", wanted)
    vif = msgspec.convert(accepted.answer, VIF)
    if vif.id:
        return vif
    attached = polling.until(req, lambda: req.clients.servers.attached_interface(
        req.ctx, server_id(req), accepted.action.uuid, project_id=req.scope), _TIMEOUT, _PAUSE)
    if attached is None:
        raise exception.InterfaceAttachTimedOut()
    return attached


@accepts(errors=(409,))
def delete(req: Request) -> None:
    """Detach an interface from a server."""
    authorize(req, POLICY + "delete")
    operate(req, "detach_interface", {"port_id": req.params["id"]})


# --- single addresses: each on an interface of its own, since guests learn addresses by DHCP --------------------------
@accepts(body=ADD_FIXED_IP, errors=(409,))
def add_fixed_ip(req: Request) -> None:
    """Add an address of a network to a server, on a new interface."""
    authorize(req, _MULTINIC + "add")
    with as_invalid(exception.NoMoreFixedIps):
        operate(req, "attach_interface", {"network_id": str(req.body["addFixedIp"]["networkId"])})


@accepts(body=only("removeFixedIp", Object({"address": Field(IP, required=True)})), errors=(409,))
def remove_fixed_ip(req: Request) -> None:
    """Remove an address by detaching its interface, which must have no other address of this IP version."""
    server = authorized_get(req, _MULTINIC + "remove")
    address = plain_ip.address(req.body["removeFixedIp"]["address"])
    vif = next((vif for vif in server.network_info if str(address) in vif.addresses()), None)
    if vif is None:
        raise exception.FixedIpNotFoundForInstance(instance_uuid=server.uuid, address=str(address))
    if len(vif.addresses(address.version)) > 1:
        raise exception.Invalid(f"Port {vif.id} has further addresses: change them in the network service.")
    operate(req, "detach_interface", {"port_id": vif.id})


@accepts(answer=Object({"addresses": OPEN}))
def ips(req: Request) -> dict[str, Any]:
    """List the addresses of a server."""
    return {"addresses": addresses(authorized_get(req, "os_compute_api:ips:index"), precise=False)}


@accepts(answer=OPEN)
def network_ips(req: Request) -> dict[str, Any]:
    """List the addresses of a server in one network."""
    networks = addresses(authorized_get(req, "os_compute_api:ips:show"), precise=False)
    label = req.params["label"]
    if label not in networks:
        raise exception.NotFound("Instance is not a member of specified network")
    return {label: networks[label]}
