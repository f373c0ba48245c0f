"""Addresses of the embedded networks, as administrators see them."""

from __future__ import annotations

from nova.bus import Interface, call
from nova.context import RequestContext
from nova.objects.network import KnownAddress
from nova.rpcapi import CONDUCTOR


class FixedIps(Interface):
    topic = CONDUCTOR
    namespace = "fixed_ips"

    @call
    def show(self, ctx: RequestContext, address: str) -> KnownAddress:
        """Raises FixedIpNotFoundForAddress."""

    @call
    def reserve(self, ctx: RequestContext, address: str, reserved: bool) -> None:
        """Have no server get the address, or servers get it again. Raises FixedIpNotFoundForAddress, InvalidInput."""
