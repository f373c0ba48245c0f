"""The network back end "neutron" on the conductor: checks of requests, and the interfaces of servers as Neutron ports.

The device_id of a port is the id of its server. An interrupted method finds the ports that it created by their
device_id, so all methods of the external steps are idempotent. Ports that a user created are not deleted with the
server. Neutron is called immediately, outside any transaction; the interfaces are stored with the step."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from nova import exception
from nova.common import plain_ip
from nova.conf import CONF
from nova.context import RequestContext
from nova.network.base import OutsidePort
from nova.network.neutron.api import NeutronApi, NotAllowed, Raw
from nova.network.neutron.proxies import NeutronFloatingIps, NeutronGroups, NeutronNetworks
from nova.objects.hosts.service import BARE_METAL
from nova.objects.networks.network import SLAAC, VIF, FixedIp, HostRoute, NetworkRequest
from nova.objects.servers.external_event import ExternalEvent
from nova.objects.servers.instance import Instance
from nova.operations.framework.contexts import ServiceControl

LOG = logging.getLogger(__name__)

# Neutron's extension for inactive bindings, and the key in a binding's profile for the destination of a live migration.
_BINDINGS = "binding-extended"
_DESTINATION = "migrating_to"


class NeutronAllocator:
    """The conductor's part of the network back end "neutron" (:class:`nova.network.base.Allocator`)."""

    external = True

    def __init__(self, db: object = None) -> None:
        """Ignore the database: all state is in Neutron and in the rows of servers."""

    @functools.cached_property
    def _api(self) -> NeutronApi:
        return NeutronApi()

    @functools.cached_property
    def groups(self) -> NeutronGroups:
        return NeutronGroups(self._api)

    @functools.cached_property
    def networks(self) -> NeutronNetworks:
        return NeutronNetworks(self._api)

    @functools.cached_property
    def floating_ips(self) -> NeutronFloatingIps:
        return NeutronFloatingIps(self._api)

    def of_server(self, ctl: ServiceControl) -> NeutronServerInterfaces:
        return NeutronServerInterfaces(self._api, ctl)

    def validate(self, ctx: RequestContext, project_id: str, wanted: Sequence[NetworkRequest] | None,
                 auto: bool = False) -> list[NetworkRequest]:
        if wanted is None:
            usable = [network["id"] for network in self._api.usable_networks(ctx, project_id)]
            if len(usable) > 1:
                raise exception.NetworkAmbiguous()
            if auto and not usable:
                usable = [self._api.create_topology(ctx, project_id)]
            wanted = [NetworkRequest(network_id=uuid) for uuid in usable]
        ports = [request.port_id for request in wanted if request.port_id]
        if len(set(ports)) != len(ports):
            raise exception.InvalidInput(reason="the same port is given twice.")
        return [self._validated_port(ctx, request) if request.port_id else self._validated_network(ctx, request)
                for request in wanted]

    def _validated_port(self, ctx: RequestContext, request: NetworkRequest) -> NetworkRequest:
        port = self._api.port(ctx, request.port_id or "", ctx.auth_token)
        if port.get("device_id"):
            raise exception.PortInUse(port_id=port["id"])
        # Read the port again with Nova's account: users cannot read resource_request (guarantees of a QoS policy).
        check_supported(self._api.port(ctx, port["id"]))
        if not port["fixed_ips"] and port.get("ip_allocation", "immediate") not in ("deferred", "none"):
            raise exception.PortRequiresFixedIp(port_id=port["id"])
        return msgspec.structs.replace(request, network_id=port["network_id"])

    def _validated_network(self, ctx: RequestContext, request: NetworkRequest) -> NetworkRequest:
        network = self._api.network(ctx, request.network_id or "", ctx.auth_token)
        if not network.get("subnets"):
            raise exception.NetworkRequiresSubnet(network_id=network["id"])
        if network.get("router:external") and not network.get("shared") and not ctx.is_admin:
            raise exception.ExternalNetworkAttachForbidden(network_id=network["id"])
        if network.get("qos_policy_id") and self._api.guarantees(ctx, network["id"]):
            raise exception.NetworkGuaranteesNotSupported(network_id=network["id"])
        if request.fixed_ip and self._api.list(
                ctx, "ports", network_id=network["id"], fixed_ips=f"ip_address={request.fixed_ip}"):
            raise exception.FixedIpInUse(address=request.fixed_ip)
        return request

    def missed_events(self, ctx: RequestContext, host: str,
                      servers: Callable[[], Iterable[Instance]]) -> list[ExternalEvent]:
        ports = {port["id"]: port for port in self._api.list(ctx, "ports", **{"binding:host_id": host})}
        floating = self._api.floating_addresses(ctx, list(ports))
        deleted, changed = [], []
        for server in servers():
            interfaces = [(vif, ports.get(vif.id)) for vif in server.network_info]
            deleted += [ExternalEvent(name="network-vif-deleted", instance_uuid=server.uuid, tag=vif.id)
                        for vif, port in interfaces if port is None and self._is_deleted(ctx, vif.id)]
            if any(port is not None and _differs(vif, port, floating.get(vif.id)) for vif, port in interfaces):
                changed.append(ExternalEvent(name="network-changed", instance_uuid=server.uuid))
        if deleted and not self._reads_ports_of_all_projects(ctx, ports.values()):
            LOG.error("Host %s: %d ports of its servers seem deleted, but the account of [neutron] cannot read fields "
                      "for administrators of any port. Either the account has lost the role admin, or Neutron has lost "
                      "its data. The interfaces stay attached", host, len(deleted))
            deleted = []
        return [*deleted, *changed]

    def _reads_ports_of_all_projects(self, ctx: RequestContext, ports: Iterable[Raw]) -> bool:
        """Return True if the account of [neutron] can read a field of ports that only administrators can read. Without
        this right the ports of all servers would count as deleted."""
        field = "binding:host_id"
        return any(field in port for port in (*ports, *self._api.list(ctx, "ports", limit=1)))

    def _is_deleted(self, ctx: RequestContext, port_id: str) -> bool:
        try:
            self._api.port(ctx, port_id)
        except exception.PortNotFound:
            return True
        return False

    def check_groups(self, ctx: RequestContext, project_id: str, names: Sequence[str]) -> None:
        group_ids(self._api, ctx, project_id, names, ctx.auth_token)

    def ports_of_servers(self, ctx: RequestContext, servers: Sequence[str]) -> list[OutsidePort]:
        return [_outside_port(port) for port in self._api.list(ctx, "ports", device_id=list(servers))]

    def ports_at(self, ctx: RequestContext, host: str) -> list[OutsidePort]:
        return [_outside_port(port) for port in self._api.list(ctx, "ports", **{"binding:host_id": host})
                if (port.get("device_owner") or "").startswith("compute:")]

    def servers_in_quota(self, ctx: RequestContext, project_id: str, networks: Sequence[NetworkRequest], least: int,
                         most: int) -> int:
        needed = sum(not request.port_id for request in networks)
        free = self._api.free_ports(ctx, project_id) if needed else None
        if free is None:
            return most
        if free < needed * least:
            raise exception.PortLimitExceeded()
        return min(most, free // needed)


# Neutron's extension that adds dns_name to ports.
_DNS = "dns-integration"
# Maximum number of attempts to change the security groups of ports, while other requests change the same ports.
_ATTEMPTS = 3


class NeutronServerInterfaces:
    """A :class:`nova.operations.framework.resource_contexts.OutsideInterfaces`."""

    def __init__(self, api: NeutronApi, ctl: ServiceControl) -> None:
        self._api, self._ctl, self._ctx = api, ctl, ctl.ctx

    @property
    def _server(self) -> Instance:
        return self._ctl.instance

    def take(self, host: str) -> None:
        self._ctl.set(network_info=self._allocate(self._server.requested_networks or [], host))

    def add(self, wanted: NetworkRequest, host: str) -> VIF:
        made, = self._allocate([wanted], host)
        vif = msgspec.structs.replace(made, active=False)
        self._ctl.interfaces.change(lambda vifs: [*vifs, vif])
        return vif

    def _allocate(self, wanted: Sequence[NetworkRequest], host: str) -> list[VIF]:
        """Create the ports, or find those that an earlier attempt created; bind and name them."""
        free = self._new_ports()
        groups = group_ids(
            self._api, self._ctx, self._server.project_id, self._server.security_groups) if wanted else None
        ports = []
        for request in wanted:
            port = next((port for port in free if _fits(port, request)), None)
            if port is not None:
                free.remove(port)
            elif request.port_id:
                port = self._take(request.port_id)
            else:
                port = self._create(request, groups)
            ports.append(port)
        networks = self._networks(ports)
        vifs = self._vifs(ports, wanted, networks)
        if any(request.port_id for request in wanted):
            vifs = self._with_floating(vifs)
        return [self._bind_and_name(vif, host, networks[vif.network_id]) for vif in vifs]

    def _take(self, port_id: str) -> Raw:
        port = self._api.port(self._ctx, port_id)
        if port["tenant_id"] != self._server.project_id:
            raise exception.PortNotUsable(port_id=port_id, instance_uuid=self._server.uuid)
        if port.get("device_id"):
            raise exception.PortInUse(port_id=port_id)
        check_supported(port)
        name = port.get("dns_name")
        if name and name != self._server.hostname and self._api.has(self._ctx, _DNS):
            raise exception.PortNotUsableDNS(
                port_id=port_id, instance_uuid=self._server.uuid, dns_name=name, hostname=self._server.hostname)
        return self._api.update_port(self._ctx, port_id, {"device_id": self._server.uuid}, port.get("revision_number"))

    def _create(self, request: NetworkRequest, groups: list[str] | None) -> Raw:
        wanted: Raw = {"network_id": request.network_id, "device_id": self._server.uuid, "admin_state_up": True,
                       "tenant_id": self._server.project_id}
        if request.fixed_ip:
            wanted["fixed_ips"] = [{"ip_address": request.fixed_ip}]
        if groups is not None:
            wanted["security_groups"] = groups
        port = self._api.create_port(self._ctx, wanted)
        check_supported(port)  # a QoS policy of the network may require resources that Nova does not claim
        return port

    # --- binding -----------------------------------------------------------------------------------------
    def bind_also(self, host: str) -> list[VIF]:
        if not self._api.has(self._ctx, _BINDINGS):
            return self._server.network_info
        return [self._bind_also(vif, host) for vif in self._server.network_info]

    def _bind_also(self, vif: VIF, host: str) -> VIF:
        """Create an inactive binding. OVN needs the destination in the profile of the active binding, to connect the
        interface on the destination as soon as the guest sends its first packet there. Activating the active binding
        changes nothing, but without the right it fails now, and not after the guest has moved."""
        try:
            self._api.update_port(self._ctx, vif.id, {"binding:profile": {**vif.profile, _DESTINATION: host}})
            self._api.activate_binding(self._ctx, vif.id, self._server.host or "")
            binding = self._api.create_binding(
                self._ctx, vif.id, {"host": host, "vnic_type": vif.vnic_type, "profile": vif.profile})
        except exception.PortNotFound:
            return vif  # the port was deleted: bind() removes the interface
        except NotAllowed as error:
            raise exception.MigrationPreCheckError(
                reason=f"the account of [neutron] needs the roles admin and service: {error}") from error
        if binding["vif_type"] != "ovs":
            raise exception.PortBindingFailed(port_id=vif.id)
        return _bound_as(vif, binding["vif_type"], binding["vif_details"])

    def _end_bind_also(self, vif: VIF, host: str, leaves: Sequence[str]) -> None:
        """Activate the binding to ``host`` and remove the bindings to ``leaves``. Raises PortNotFound."""
        try:
            self._api.activate_binding(self._ctx, vif.id, host)
            self._api.update_port(self._ctx, vif.id, {"binding:profile": vif.profile})
            for other in leaves:
                self._api.delete_binding(self._ctx, vif.id, other)
        except NotAllowed as error:
            LOG.warning("[instance: %s] Port %s may keep an inactive binding to %s: %s", self._server.uuid, vif.id,
                        " or ".join(leaves), error)

    def bind(self, host: str, *leaves: str) -> None:
        bound: dict[str, VIF] = {}
        deleted_ports = set()
        for vif in self._server.network_info:
            try:
                if leaves and self._api.has(self._ctx, _BINDINGS):
                    self._end_bind_also(vif, host, leaves)
                bound[vif.id] = self._bind(vif, host)
            except exception.PortNotFound:
                # The port was deleted and the event was lost. Keep the server running without the port.
                LOG.warning("[instance: %s] Port %s was deleted; the server continues without it", self._server.uuid,
                            vif.id)
                deleted_ports.add(vif.id)

        def renewed(vifs: list[VIF]) -> list[VIF]:
            # Events of the service (nova.conductor.service_events) may have updated the row after it was read.
            return [msgspec.structs.replace(bound[vif.id], label=vif.label, mtu=vif.mtu, fixed_ips=vif.fixed_ips,
                                            floating=vif.floating)
                    if vif.id in bound else vif for vif in vifs if vif.id not in deleted_ports]

        self._ctl.interfaces.change(renewed)

    def _bind_and_name(self, vif: VIF, host: str, network: Raw) -> VIF:
        """Bind a port for the first time, and give it the hostname of the server. Moves do not change the name, since
        the port's user may have changed it."""
        if not self._api.has(self._ctx, _DNS):
            return self._bind(vif, host)
        name = {"dns_name": self._server.hostname}
        if not network.get("dns_domain"):
            return self._bind(vif, host, name)
        bound = self._bind(vif, host)
        # Neutron creates the record of the external DNS service with the rights of this request.
        if self._ctx.auth_token:
            self._api.update_port(self._ctx, vif.id, name, token=self._ctx.auth_token)
        else:
            LOG.warning("[instance: %s] Port %s gets no dns_name: its network has a dns_domain, which requires the "
                        "user's token, and the token is no longer available", self._server.uuid, vif.id)
        return bound

    def _bind(self, vif: VIF, host: str, more: Raw | None = None) -> VIF:
        """Bind a port to a host, and set ``more`` fields; return the interface as the host has to plug it. Ports of
        bare metal servers stay unbound: Ironic binds them to the node. Raises PortBindingFailed, PortNotFound."""
        port = self._api.update_port(self._ctx, vif.id, {
            "device_id": self._server.uuid, "binding:host_id": host,
            "device_owner": f"compute:{self._server.availability_zone or CONF.default_availability_zone}",
            **(more or {})})
        if port.get("binding:vif_type") == "ovs":
            return _bound(vif, port)
        if BARE_METAL not in (self._ctl.connector(host) or {}):
            raise exception.PortBindingFailed(port_id=vif.id)
        port = self._api.update_port(self._ctx, vif.id, {"binding:host_id": None})
        return msgspec.structs.replace(_bound(vif, port), awaits_plug=False)

    def unbind(self) -> None:
        for vif in self._server.network_info:
            self._change(vif.id, {"binding:host_id": None})

    def set_group(self, name: str, add: bool) -> set[str]:
        for _attempt in range(_ATTEMPTS):
            with contextlib.suppress(exception.PortInUse):  # Another request changed the groups of a port meanwhile.
                return self._set_group(name, add)
        raise exception.Conflict("Other requests change the security groups of the server's ports. Please try again.")

    def _set_group(self, name: str, add: bool) -> set[str]:
        groups = self._api.list(self._ctx, "security-groups", self._ctx.auth_token, tenant_id=self._server.project_id)
        group = _matching_group(groups, name)
        ports = [port for port in self._ports() if port["fixed_ips"] and port.get("port_security_enabled", True)]
        if not ports:
            raise exception.SecurityGroupCannotBeApplied()
        others = {port["id"]: [other for other in port.get("security_groups") or () if other != group["id"]]
                  for port in ports}
        if not add and all(port.get("security_groups") == others[port["id"]] for port in ports):
            raise exception.SecurityGroupNotOfServer(security_group_id=name, instance_uuid=self._server.uuid)
        for port in ports:
            wanted = [*others[port["id"]], *([group["id"]] if add else [])]
            if set(wanted) != set(port.get("security_groups") or ()):
                self._api.update_port(self._ctx, port["id"], {"security_groups": wanted}, port.get("revision_number"),
                                      self._ctx.auth_token)
        return {group["id"], group["name"]}

    # --- release -----------------------------------------------------------------------------------------
    def release(self, *vifs: VIF) -> None:
        only = {vif.id for vif in vifs}
        of_users = {vif.id for vif in [*self._server.network_info, *vifs] if vif.keep}
        for port in self._ports():
            if not only or port["id"] in only:
                self._remove(port, port["id"] in of_users)

    def give_back(self, wanted: NetworkRequest | None) -> None:
        for port in self._new_ports():
            self._remove(port, wanted is not None and port["id"] == wanted.port_id)

    def _remove(self, port: Raw, of_user: bool) -> None:
        """Delete a port, or unbind it if a user created it (``of_user``, or requested with the server)."""
        if of_user or port["id"] in [request.port_id for request in self._server.requested_networks or ()]:
            unnamed = {"dns_name": ""} if self._api.has(self._ctx, _DNS) else {}
            self._change(port["id"], {"device_id": "", "device_owner": "", "binding:host_id": None, **unnamed})
        else:
            self._api.delete_port(self._ctx, port["id"])

    def _change(self, port_id: str, changes: dict[str, Any]) -> None:
        try:
            self._api.update_port(self._ctx, port_id, changes)
        except exception.PortNotFound:
            LOG.info("Port %s was deleted already", port_id)

    def _ports(self) -> list[Raw]:
        """Return the ports of the server. Callers delete some of them, so ports of other projects are filtered out: any
        project can set the id of this server as the device_id of its own port."""
        return [port for port in self._api.list(self._ctx, "ports", device_id=self._server.uuid)
                if port.get("device_id") == self._server.uuid and port["tenant_id"] == self._server.project_id]

    def _new_ports(self) -> list[Raw]:
        """Return the ports of the server that are not in its database row."""
        recorded = {vif.id for vif in self._server.network_info}
        return [port for port in self._ports() if port["id"] not in recorded]

    def refreshed(self) -> list[VIF]:
        vifs = {vif.id: vif for vif in self._server.network_info}
        ports = [port for port in self._ports() if port["id"] in vifs]
        return self._with_floating(self._vifs(
            ports, [NetworkRequest(port_id=port["id"] if vifs[port["id"]].keep else None, tag=vifs[port["id"]].tag)
                    for port in ports], self._networks(ports)))

    def _with_floating(self, vifs: list[VIF]) -> list[VIF]:
        """Return the interfaces with their floating IP addresses. Nova's API shows one address per interface."""
        floating = self._api.floating_addresses(self._ctx, [vif.id for vif in vifs])
        return [msgspec.structs.replace(vif, floating=floating.get(vif.id)) for vif in vifs]

    def _networks(self, ports: Sequence[Raw]) -> dict[str, Raw]:
        return {uuid: self._api.network(self._ctx, uuid)
                for uuid in dict.fromkeys(port["network_id"] for port in ports)}

    def _vifs(self, ports: Sequence[Raw], wanted: Sequence[NetworkRequest], networks: dict[str, Raw]) -> list[VIF]:
        subnets = {subnet["id"]: subnet for uuid in networks
                   for subnet in self._api.list(self._ctx, "subnets", network_id=uuid)}
        try:
            return [_vif(port, networks[port["network_id"]], subnets, request)
                    for port, request in zip(ports, wanted, strict=True)]
        except ValueError as error:
            raise exception.NetworkServiceUnavailable(reason=f"its response is malformed ({error})") from error


def group_ids(api: NeutronApi, ctx: RequestContext, project_id: str, names: Sequence[str],
              token: str | None = None) -> list[str] | None:
    """Return the ids of security groups given by name or id, or None for Neutron's default group."""
    if not names or list(names) == ["default"]:
        return None
    groups = api.list(ctx, "security-groups", token, tenant_id=project_id)
    return [_matching_group(groups, name)["id"] for name in names]


def _matching_group(groups: Sequence[Raw], name: str) -> Raw:
    """Return the group with this id, or else this name. Raises SecurityGroupNotFound, NoUniqueMatch."""
    matching = ([group for group in groups if name == group["id"]]
                or [group for group in groups if name == group["name"]])
    if not matching:
        raise exception.SecurityGroupNotFound(security_group_id=name)
    if len(matching) > 1:
        raise exception.NoUniqueMatch(f"Multiple security groups found matching '{name}'. Use an ID to be more "
                                      "specific.")
    return matching[0]


def _fits(port: Raw, request: NetworkRequest) -> bool:
    if request.port_id:
        return bool(port["id"] == request.port_id)
    addresses = [fixed["ip_address"] for fixed in port["fixed_ips"]]
    return port["network_id"] == request.network_id and (not request.fixed_ip or request.fixed_ip in addresses)


def check_supported(port: Raw) -> None:
    """Raise PortFieldNotSupported for a port with unsupported features: devices, guaranteed bandwidth."""
    kind = port.get("binding:vnic_type") or "normal"
    for field, value in (("binding:vnic_type", kind if kind != "normal" else None),
                         ("resource_request", port.get("resource_request")),
                         ("device_profile", port.get("device_profile"))):
        if value:
            raise exception.PortFieldNotSupported(port_id=port["id"], field=field, value=value)


def _vif(port: Raw, network: Raw, subnets: dict[str, Raw], request: NetworkRequest) -> VIF:
    vif = VIF(id=port["id"], network_id=port["network_id"], label=network.get("name") or "", mac=port["mac_address"],
              fixed_ips=[_fixed_ip(fixed, subnets) for fixed in port["fixed_ips"]], mtu=network.get("mtu") or 1500,
              devname=f"tap{port['id']}"[:14], tag=request.tag, keep=request.port_id is not None, outside=True,
              security=bool(port.get("port_security_enabled", True)))
    return _bound(vif, port)


def _outside_port(port: Raw) -> OutsidePort:
    return OutsidePort(port["id"], port.get("device_id") or "", port["tenant_id"], port.get("binding:host_id") or "")


def _bound(vif: VIF, port: Raw) -> VIF:
    active = port.get("status") == "ACTIVE" or not port.get("admin_state_up", True)
    return msgspec.structs.replace(
        _bound_as(vif, port.get("binding:vif_type"), port.get("binding:vif_details")),
        vnic_type=port.get("binding:vnic_type") or "normal", profile=port.get("binding:profile") or {},
        active=active, awaits_plug=not active)


def _differs(vif: VIF, port: Raw, floating: str | None) -> bool:
    """Return True if the row of an interface differs from its port, or if the port has a malformed address. No error is
    raised, so that the comparison of other servers continues; the refresh of this server reports the address."""
    try:
        addresses = [str(plain_ip.address(fixed["ip_address"])) for fixed in port["fixed_ips"]]
    except ValueError:
        return True
    return (sorted(vif.addresses()) != sorted(addresses) or vif.floating != floating
            or vif.active != _bound(vif, port).active)


def _bound_as(vif: VIF, vif_type: str | None, details: dict[str, Any] | None) -> VIF:
    bridge = str((details or {}).get("bridge_name") or CONF.neutron.ovs_bridge)
    return msgspec.structs.replace(vif, vif_type=vif_type or "unbound", details=details or {}, bridge=bridge)


def _fixed_ip(fixed: Raw, subnets: dict[str, Raw]) -> FixedIp:
    subnet = subnets.get(fixed["subnet_id"], {})
    address = plain_ip.address(fixed["ip_address"])
    cidr = str(subnet.get("cidr") or f"{address}/{address.max_prefixlen}")
    mode = ("dhcp" if subnet.get("enable_dhcp") else None) if address.version == 4 else subnet.get("ipv6_address_mode")
    return FixedIp(address=str(address), version=address.version, prefix=plain_ip.network(cidr, strict=False).prefixlen,
                   cidr=cidr, gateway=subnet.get("gateway_ip"), dns=list(subnet.get("dns_nameservers") or ()),
                   mode=SLAAC if mode == "slaac" else mode, subnet_id=fixed["subnet_id"],
                   routes=[HostRoute(destination=route["destination"], gateway=route["nexthop"])
                           for route in subnet.get("host_routes") or ()])
