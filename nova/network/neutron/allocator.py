"""Allocation and binding of Neutron ports (:class:`nova.network.allocator.Allocator`).

The device_id of a port is the id of its server. An interrupted method finds the ports that it created by their
device_id, so all methods are idempotent. Ports that a user created are not deleted with the server.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from typing import Any

import msgspec

from nova import exception
from nova.common import plain_ip
from nova.conf import CONF
from nova.context import RequestContext
from nova.network.neutron.api import NeutronApi, Raw
from nova.objects.networks.network import SLAAC, VIF, FixedIp, HostRoute, NetworkRequest
from nova.objects.servers.instance import Instance

LOG = logging.getLogger(__name__)

DEFAULT_GROUP = "default"
# The extension that adds dns_name to ports.
_DNS = "dns-integration"
UNBOUND = "unbound"
_PLUGGABLE = ("ovs",)
_WITHOUT_ADDRESS = ("deferred", "none")


class NeutronAllocator:
    """The conductor's part of the network back end "neutron"."""

    external = True

    def __init__(self, db: object = None) -> None:
        """Ignore the database: all state is in Neutron and in the rows of servers."""

    @functools.cached_property
    def _api(self) -> NeutronApi:
        return NeutronApi()

    # --- validation ----------------------------------------------------------------------------------
    def validate(self, ctx: RequestContext, project_id: str,
                 wanted: Sequence[NetworkRequest] | None) -> list[NetworkRequest]:
        if wanted is None:
            usable = self._networks_of(ctx, project_id)
            if len(usable) > 1:
                raise exception.NetworkAmbiguous()
            wanted = [NetworkRequest(network_id=uuid) for uuid in usable]
        ports = [request.port_id for request in wanted if request.port_id]
        if len(set(ports)) != len(ports):
            raise exception.InvalidInput(reason="the same port is given twice.")
        return [self._validated_port(ctx, request) if request.port_id else self._validated_network(ctx, request)
                for request in wanted]

    def _networks_of(self, ctx: RequestContext, project_id: str) -> list[str]:
        networks = [*self._api.list(ctx, "networks", ctx.auth_token, tenant_id=project_id, shared=False),
                    *self._api.list(ctx, "networks", ctx.auth_token, shared=True)]
        return list(dict.fromkeys(network["id"] for network in networks))

    def _validated_port(self, ctx: RequestContext, request: NetworkRequest) -> NetworkRequest:
        port = self._api.port(ctx, request.port_id or "", ctx.auth_token)
        if port.get("device_id"):
            raise exception.PortInUse(port_id=port["id"])
        _check_supported(port)
        if not port["fixed_ips"] and port.get("ip_allocation", "immediate") not in _WITHOUT_ADDRESS:
            raise exception.PortRequiresFixedIp(port_id=port["id"])
        return msgspec.structs.replace(request, network_id=port["network_id"])

    def _validated_network(self, ctx: RequestContext, request: NetworkRequest) -> NetworkRequest:
        network = self._api.network(ctx, request.network_id or "", ctx.auth_token)
        if not network.get("subnets"):
            raise exception.NetworkRequiresSubnet(network_id=network["id"])
        if network.get("router:external") and not network.get("shared") and not ctx.is_admin:
            raise exception.ExternalNetworkAttachForbidden(network_id=network["id"])
        if request.fixed_ip:
            taken = self._api.list(ctx, "ports", network_id=network["id"],
                                   fixed_ips=f"ip_address={request.fixed_ip}")
            if taken:
                raise exception.FixedIpInUse(address=request.fixed_ip)
        return request

    def check_groups(self, ctx: RequestContext, project_id: str, names: Sequence[str]) -> None:
        self._groups(ctx, project_id, names, ctx.auth_token)

    def _groups(self, ctx: RequestContext, project_id: str, names: Sequence[str],
                token: str | None = None) -> list[str] | None:
        """Return the ids of security groups given by name or id, or None for Neutron's default group."""
        if not names or list(names) == [DEFAULT_GROUP]:
            return None
        groups = self._api.list(ctx, "security-groups", token, tenant_id=project_id)
        ids = []
        for name in names:
            matching = [group["id"] for group in groups if name in (group["id"], group["name"])]
            if not matching:
                raise exception.SecurityGroupNotFound(security_group_id=name)
            if len(matching) > 1:
                raise exception.NoUniqueMatch(f"Multiple security groups found matching '{name}'. Use an ID to be more "
                                              "specific.")
            ids += matching
        return ids

    # --- allocation and binding ----------------------------------------------------------------------
    def check_more(self, connection: object, instance: Instance) -> None:
        """Allow any number: Neutron has its own quota of ports."""

    def allocate(self, ctx: RequestContext, instance: Instance, wanted: Sequence[NetworkRequest],
                 connection: object = None) -> list[VIF]:
        free = self._new_ports(ctx, instance)
        groups = self._groups(ctx, instance.project_id, instance.security_groups) if wanted else None
        ports = []
        for request in wanted:
            port = next((port for port in free if _fits(port, request)), None)
            if port is not None:
                free.remove(port)
            elif request.port_id:
                port = self._take(ctx, instance, request.port_id)
            else:
                port = self._create(ctx, instance, request, groups)
            ports.append(port)
        return self._vifs(ctx, ports, wanted)

    def _take(self, ctx: RequestContext, instance: Instance, port_id: str) -> Raw:
        port = self._api.port(ctx, port_id)
        if port["tenant_id"] != instance.project_id:
            raise exception.PortNotUsable(port_id=port_id, instance_uuid=instance.uuid)
        if port.get("device_id"):
            raise exception.PortInUse(port_id=port_id)
        _check_supported(port)
        name = port.get("dns_name")
        if name and name != instance.hostname and self._api.has(ctx, _DNS):
            raise exception.PortNotUsableDNS(
                port_id=port_id, instance_uuid=instance.uuid, dns_name=name, hostname=instance.hostname)
        return self._api.update_port(ctx, port_id, {"device_id": instance.uuid}, port.get("revision_number"))

    def _create(self, ctx: RequestContext, instance: Instance, request: NetworkRequest,
                groups: list[str] | None) -> Raw:
        wanted: Raw = {"network_id": request.network_id, "device_id": instance.uuid, "admin_state_up": True,
                       "tenant_id": instance.project_id}
        if request.fixed_ip:
            wanted["fixed_ips"] = [{"ip_address": request.fixed_ip}]
        if groups is not None:
            wanted["security_groups"] = groups
        port = self._api.create_port(ctx, wanted)
        _check_supported(port)  # a QoS policy of the network may require resources that Nova does not claim
        return port

    def bind(self, ctx: RequestContext, instance: Instance, vifs: Sequence[VIF], host: str,
             connection: object = None) -> list[VIF]:
        bound = []
        for vif in vifs:
            # A bound port keeps its name during a move, since its user may have changed the name.
            named = {"dns_name": instance.hostname} if vif.vif_type == UNBOUND and self._api.has(ctx, _DNS) else {}
            port = self._api.update_port(ctx, vif.id, {
                "device_id": instance.uuid, "binding:host_id": host,
                "device_owner": f"compute:{instance.availability_zone or CONF.default_availability_zone}", **named})
            if port.get("binding:vif_type") not in _PLUGGABLE:
                raise exception.PortBindingFailed(port_id=vif.id)
            bound.append(_bound(vif, port))
        return bound

    def unbind(self, ctx: RequestContext, instance: Instance) -> None:
        for vif in instance.network_info:
            self._change(ctx, vif.id, {"binding:host_id": None})

    # --- release -----------------------------------------------------------------------------------------
    def release(self, ctx: RequestContext, instance: Instance, vifs: Sequence[VIF] | None = None,
                connection: object = None) -> None:
        only = None if vifs is None else {vif.id for vif in vifs}
        preserved = {request.port_id for request in instance.requested_networks or ()}
        preserved |= {vif.id for vif in [*instance.network_info, *(vifs or ())] if vif.keep}
        for port in self._ports(ctx, instance):
            if only is not None and port["id"] not in only:
                continue
            if port["id"] in preserved:
                unnamed = {"dns_name": ""} if self._api.has(ctx, _DNS) else {}
                self._change(ctx, port["id"], {"device_id": "", "device_owner": "", "binding:host_id": None, **unnamed})
            else:
                self._api.delete_port(ctx, port["id"])

    def _change(self, ctx: RequestContext, port_id: str, changes: dict[str, Any]) -> None:
        try:
            self._api.update_port(ctx, port_id, changes)
        except exception.PortNotFound:
            LOG.info("Port %s was deleted already", port_id)

    # --- the server's row ----------------------------------------------------------------------------------
    def unrecorded(self, ctx: RequestContext, instance: Instance) -> list[VIF]:
        given = {request.port_id for request in instance.requested_networks or ()}
        return [VIF(id=port["id"], network_id=port["network_id"], label="", mac=port["mac_address"],
                    devname=_device(port), keep=port["id"] in given) for port in self._new_ports(ctx, instance)]

    def _ports(self, ctx: RequestContext, instance: Instance) -> list[Raw]:
        """Return the ports of a server. Others are filtered out again here, since callers delete some of the ports."""
        return [port for port in self._api.list(ctx, "ports", device_id=instance.uuid)
                if port.get("device_id") == instance.uuid]

    def _new_ports(self, ctx: RequestContext, instance: Instance) -> list[Raw]:
        """Return the ports of a server that its database row lacks."""
        recorded = {vif.id for vif in instance.network_info}
        return [port for port in self._ports(ctx, instance) if port["id"] not in recorded]

    def refreshed(self, ctx: RequestContext, instance: Instance) -> list[VIF]:
        vifs = {vif.id: vif for vif in instance.network_info}
        ports = [port for port in self._ports(ctx, instance) if port["id"] in vifs]
        return self._vifs(ctx, ports, [NetworkRequest(
            port_id=port["id"] if vifs[port["id"]].keep else None, tag=vifs[port["id"]].tag) for port in ports])

    def _vifs(self, ctx: RequestContext, ports: Sequence[Raw], wanted: Sequence[NetworkRequest]) -> list[VIF]:
        networks = {uuid: self._api.network(ctx, uuid)
                    for uuid in dict.fromkeys(port["network_id"] for port in ports)}
        subnets = {subnet["id"]: subnet for uuid in networks
                   for subnet in self._api.list(ctx, "subnets", network_id=uuid)}
        try:
            return [_vif(port, networks[port["network_id"]], subnets, request)
                    for port, request in zip(ports, wanted, strict=True)]
        except ValueError as error:
            raise exception.NetworkServiceUnavailable(reason=f"its response is malformed ({error})") from error


def _fits(port: Raw, request: NetworkRequest) -> bool:
    """Return True if the port satisfies the request."""
    if request.port_id:
        return bool(port["id"] == request.port_id)
    addresses = [fixed["ip_address"] for fixed in port["fixed_ips"]]
    return port["network_id"] == request.network_id and (not request.fixed_ip or request.fixed_ip in addresses)


def _check_supported(port: Raw) -> None:
    """Raise PortFieldNotSupported for a port with unsupported features: devices, guaranteed bandwidth."""
    kind = port.get("binding:vnic_type") or "normal"
    for field, value in (("binding:vnic_type", kind if kind != "normal" else None),
                         ("resource_request", port.get("resource_request")),
                         ("device_profile", port.get("device_profile"))):
        if value:
            raise exception.PortFieldNotSupported(port_id=port["id"], field=field, value=value)


def _device(port: Raw) -> str:
    return f"tap{port['id']}"[:14]


def _vif(port: Raw, network: Raw, subnets: dict[str, Raw], request: NetworkRequest) -> VIF:
    vif = VIF(
        id=port["id"], network_id=port["network_id"], label=network.get("name") or "", mac=port["mac_address"],
        fixed_ips=[_fixed_ip(fixed, subnets) for fixed in port["fixed_ips"]], mtu=network.get("mtu") or 1500,
        devname=_device(port), tag=request.tag, keep=request.port_id is not None, outside=True,
        security=bool(port.get("port_security_enabled", True)))
    return _bound(vif, port)


def _bound(vif: VIF, port: Raw) -> VIF:
    """Return the VIF with the binding of the port to its host."""
    details: dict[str, Any] = port.get("binding:vif_details") or {}
    active = port.get("status") == "ACTIVE" or not port.get("admin_state_up", True)
    return msgspec.structs.replace(
        vif, vif_type=port.get("binding:vif_type") or UNBOUND, vnic_type=port.get("binding:vnic_type") or "normal",
        details=details, profile=port.get("binding:profile") or {},
        bridge=str(details.get("bridge_name") or CONF.neutron.ovs_bridge), active=active, awaits_plug=not active)


def _fixed_ip(fixed: Raw, subnets: dict[str, Raw]) -> FixedIp:
    subnet = subnets.get(fixed["subnet_id"], {})
    address = plain_ip.address(fixed["ip_address"])
    cidr = str(subnet.get("cidr") or f"{address}/{address.max_prefixlen}")
    mode = ("dhcp" if subnet.get("enable_dhcp") else None) if address.version == 4 else subnet.get("ipv6_address_mode")
    return FixedIp(
        address=str(address), version=address.version, prefix=plain_ip.network(cidr, strict=False).prefixlen,
        cidr=cidr, gateway=subnet.get("gateway_ip"), dns=list(subnet.get("dns_nameservers") or ()),
        mode=SLAAC if mode == "slaac" else mode, subnet_id=fixed["subnet_id"], routes=[
            HostRoute(destination=route["destination"], gateway=route["nexthop"])
            for route in subnet.get("host_routes") or ()])
