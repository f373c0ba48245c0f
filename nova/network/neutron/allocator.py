"""The network back end "neutron" on the conductor: checks of requests, before they are accepted.

:mod:`nova.network.neutron.server_interfaces` changes the interfaces of servers."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import msgspec

from nova import exception
from nova.context import RequestContext
from nova.network.neutron.api import NeutronApi
from nova.network.neutron.server_interfaces import NeutronServerInterfaces, check_supported, group_ids
from nova.objects.networks.network import NetworkRequest
from nova.operations.framework.contexts import ServiceControl

_WITHOUT_ADDRESS = ("deferred", "none")


class NeutronAllocator:
    """The conductor's part of the network back end "neutron" (:class:`nova.network.allocator.Allocator`)."""

    external = True

    def __init__(self, db: object = None) -> None:
        """Ignore the database: all state is in Neutron and in the rows of servers."""

    @functools.cached_property
    def _api(self) -> NeutronApi:
        return NeutronApi()

    def of_server(self, ctl: ServiceControl) -> NeutronServerInterfaces:
        return NeutronServerInterfaces(self._api, ctl)

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
        check_supported(port)
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
        group_ids(self._api, ctx, project_id, names, ctx.auth_token)
