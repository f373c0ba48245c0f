"""os-networks and os-tenant-networks: creation, deletion and assignment of networks; os-security-group-default-rules:
ingress rules of the default group of a new project (2.1 to 2.35)."""

import ipaddress
from typing import Any

from nova import exception
from nova.api.compute.networks import networks
from nova.api.compute.networks.security_groups import EVERYBODY, number, text
from nova.api.request import Request, is_true, whole
from nova.api.router import accepts
from nova.api.validation.fields import Field, Object, Out, Plain, View, integer, listed, only, single, string
from nova.api.validation.types import ANY, ANY_QUERY, BOOLEAN, INTEGER, INTEGER_OR_NULL, OPEN, STRING_OR_NULL, TEXT
from nova.common import plain_ip
from nova.objects.base import new_uuid
from nova.objects.networks.network import DefaultRule, Network

_IP = Plain(type="string", maxLength=45, oneOf=[{"format": "ipv4"}, {"format": "ipv6"}])
_CIDR = string(minLength=1, maxLength=64)
_CIDR_OR_NULL = Plain(type=["string", "null"], minLength=1, maxLength=64)
_DEVICE = string(minLength=1, maxLength=15)
_PORTS = integer(1, 4094)

CREATE = Object({"network": Field(Object({
    "label": Field(TEXT, required=True), "cidr": _CIDR_OR_NULL, "cidr_v6": _CIDR_OR_NULL, "gateway": _IP,
    "gateway_v6": _IP, "dns1": _IP, "dns2": _IP, "fixed_cidr": _CIDR, "allowed_start": _IP, "allowed_end": _IP,
    "project_id": TEXT, "mtu": integer(1, 65535), "vlan": _PORTS, "bridge_interface": _DEVICE, "bridge": _DEVICE,
    "dhcp_server": _IP, "enable_dhcp": BOOLEAN, "share_address": BOOLEAN, "multi_host": BOOLEAN,
}), required=True)})
TENANT_CREATE = Object({"network": Field(Object({
    "label": Field(TEXT, required=True), "cidr": Field(_CIDR, required=True), "ipam": BOOLEAN,
    "vlan_start": ANY, "network_size": ANY, "num_networks": integer(1, 1),
}), required=True)})

_DEFAULT_MTU = 1500


@accepts(body=CREATE, answer=single("network", networks.NETWORK), errors=(409,))
def create(req: Request) -> Network:
    """Create a network."""
    return req.clients.networks.create(req.ctx, _wanted(req.body["network"]))


def _wanted(given: dict[str, Any]) -> Network:
    """Return the requested network. Raises InvalidInput for options that embedded networks do not support."""
    if not given.get("cidr"):
        raise exception.InvalidInput(reason="cidr is missing: every network has an IPv4 subnet")
    if "bridge" in given:
        raise exception.InvalidInput(reason="bridge: not supported, as each host generates the names of its bridges")
    if not is_true(given.get("enable_dhcp", True)):
        raise exception.InvalidInput(reason="enable_dhcp cannot be false: every network has DHCP")
    start, end = _range(given)
    gateway = given.get("gateway") or given.get("dhcp_server", "")
    if "dhcp_server" in given and plain_ip.address(given["dhcp_server"]) != plain_ip.address(gateway):
        raise exception.InvalidInput(
            reason=f"dhcp_server {given['dhcp_server']} is not the gateway, which serves DHCP")
    return Network(
        uuid=new_uuid(), label=given["label"], cidr=given["cidr"], cidr_v6=given.get("cidr_v6") or None,
        gateway=gateway, gateway_v6=given.get("gateway_v6"), bridge="",
        dns=[given[name] for name in ("dns1", "dns2") if given.get(name)], dhcp_start=start, dhcp_end=end,
        mtu=whole(given.get("mtu", _DEFAULT_MTU)), bridge_interface=given.get("bridge_interface"),
        vlan=whole(given["vlan"]) if "vlan" in given else None, project_id=given.get("project_id"))


def _range(given: dict[str, Any]) -> tuple[str | None, str | None]:
    """Return the first and the last address for servers; None: those of the subnet."""
    start, end = given.get("allowed_start"), given.get("allowed_end")
    if "fixed_cidr" not in given:
        return start, end
    if start or end:
        raise exception.InvalidInput(reason="fixed_cidr cannot be combined with allowed_start and allowed_end")
    try:
        fixed = ipaddress.IPv4Network(given["fixed_cidr"])
        whole_range = ipaddress.IPv4Network(given["cidr"])
    except ValueError as error:
        raise exception.InvalidInput(reason=f"fixed_cidr or cidr is not an IPv4 network: {error}") from error
    if not fixed.subnet_of(whole_range):
        raise exception.InvalidInput(reason=f"fixed_cidr {fixed} is not within {whole_range}")
    if whole_range.num_addresses < 4:
        raise exception.InvalidInput(reason=f"cidr {whole_range} has no addresses for servers")
    return str(max(fixed[0], whole_range[1])), str(min(fixed[-1], whole_range[-2]))


@accepts(errors=(409,))
def delete(req: Request) -> None:
    """Delete a network without servers."""
    req.clients.networks.delete(req.ctx, req.params["id"])


@accepts(body=Object({"id": Field(Plain(type=["string", "null"], maxLength=36), required=True)}), errors=(409,))
def add(req: Request) -> None:
    """Assign a network to the caller's project (``id`` null: any network without a project)."""
    req.clients.networks.associate(req.ctx, req.ctx.project_id or "", req.body["id"])


@accepts(body=only("disassociate"), errors=(409,))
def disassociate(req: Request) -> None:
    """Remove the project and the host of a network."""
    req.clients.networks.disassociate(req.ctx, req.params["id"], project=True, host=True)


@accepts(body=only("disassociate_project"), errors=(409,))
def disassociate_project(req: Request) -> None:
    """Remove the project of a network, so that all projects can use the network."""
    req.clients.networks.disassociate(req.ctx, req.params["id"], project=True, host=False)


@accepts(body=only("disassociate_host"))
def disassociate_host(req: Request) -> None:
    """Remove the host of a network."""
    req.clients.networks.disassociate(req.ctx, req.params["id"], project=False, host=True)


@accepts(body=only("associate_host", TEXT))
def associate_host(req: Request) -> None:
    """Assign a network to a host. The host is only stored and shown; it has no effect."""
    req.clients.networks.associate_host(req.ctx, req.params["id"], req.body["associate_host"])


# -- networks of a project --------------------------------------------------------------------------
@accepts(body=TENANT_CREATE, answer=single("network", networks.TENANT), errors=(409,))
def tenant_create(req: Request) -> Network:
    """Create a network of the caller's project."""
    given = req.body["network"]
    return req.clients.networks.create(req.ctx, Network(
        uuid=new_uuid(), label=given["label"], cidr=given["cidr"], gateway="", bridge="", mtu=_DEFAULT_MTU,
        project_id=req.ctx.project_id))


@accepts(errors=(409,))
def tenant_delete(req: Request) -> None:
    """Delete a network of the caller's project that has no servers."""
    network = req.clients.networks.get(req.ctx, req.params["id"], req.ctx.project_id)
    if network.project_id is None:
        raise exception.NetworkNotFound(network_id=network.uuid)
    req.clients.networks.delete(req.ctx, network.uuid)


# -- rules of new default security groups ---------------------------------------------------------------
CREATE_RULE = Object({"security_group_default_rule": Field(Object({
    "ip_protocol": ANY, "from_port": ANY, "to_port": ANY, "cidr": ANY,
}, additional=True), required=True)}, additional=True)

RULE = View([
    Out("id", INTEGER), Out("ip_protocol", STRING_OR_NULL, "protocol"), Out("from_port", INTEGER_OR_NULL),
    Out("to_port", INTEGER_OR_NULL), Out("ip_range", OPEN, lambda rule, _req: {"cidr": rule.cidr} if rule.cidr else {}),
])
_SINGLE_RULE = single("security_group_default_rule", RULE)


def _rule_id(req: Request) -> int:
    shown = req.params["id"]
    if not (shown.isascii() and shown.isdecimal()) or len(shown) > 18:
        raise exception.Invalid(f"Security group default rule id should be an integer, not '{shown[:255]}'.")
    return int(shown)


@accepts(query=ANY_QUERY, answer=listed("security_group_default_rules", RULE))
def rules(req: Request) -> list[DefaultRule]:
    """List the rules of new default security groups."""
    return req.clients.security_group_default_rules.index(req.ctx)


@accepts(query=ANY_QUERY, answer=_SINGLE_RULE)
def show_rule(req: Request) -> DefaultRule:
    """Show a rule of new default security groups."""
    return req.clients.security_group_default_rules.get(req.ctx, _rule_id(req))


@accepts(body=CREATE_RULE, answer=_SINGLE_RULE, errors=(409,))
def create_rule(req: Request) -> DefaultRule:
    """Add a rule to default security groups that are created from now on."""
    given = req.body["security_group_default_rule"]
    return req.clients.security_group_default_rules.create(req.ctx, DefaultRule(
        protocol=text(given, "ip_protocol"), from_port=number(given, "from_port"), to_port=number(given, "to_port"),
        cidr=text(given, "cidr") or EVERYBODY))


@accepts()
def delete_rule(req: Request) -> None:
    """Remove a rule of new default security groups; existing groups keep the rule."""
    req.clients.security_group_default_rules.delete(req.ctx, _rule_id(req))
