"""The RPC interface of fixed IP addresses of embedded networks, for administrators."""

from __future__ import annotations

from nova.bus import Interface, call
from nova.context import RequestContext
from nova.objects.networks.network import NetworkAddress
from nova.rpcapi import CONDUCTOR


class FixedIps(Interface):
    topic = CONDUCTOR
    namespace = "fixed_ips"

    @call
    def show(self, ctx: RequestContext, address: str) -> NetworkAddress:
        """Return an address with its server. Raises FixedIpNotFoundForAddress."""

    @call
    def reserve(self, ctx: RequestContext, address: str, reserved: bool) -> None:
        """Reserve an address, or release it for servers. Raises FixedIpNotFoundForAddress, InvalidInput."""
