"""The RPC interface for the network back ends of hosts: peers of networks, security group rules and DNS names."""

from __future__ import annotations

from nova.bus import Interface, by_hosts, slow_call
from nova.context import RequestContext
from nova.objects.networks.floating_ip_dns import ServedDomain
from nova.objects.networks.network import Peers, RuleSet
from nova.rpcapi import CONDUCTOR


class NetworkHosts(Interface):
    """Requests of the network back ends of hosts."""

    topic = CONDUCTOR
    namespace = "network_hosts"

    @by_hosts
    @slow_call(10)
    def present(self, ctx: RequestContext, host: str, address: str, networks: dict[str, int],
                complete: bool = False) -> list[Peers]:
        """Report the networks of a host, its tunnel ``address`` and the version of the peers that it has of each.

        With ``complete`` the host has no other networks. Returns the peers of networks with a newer version, and sends
        changes to the other hosts.
        """

    @by_hosts
    @slow_call(10)
    def rules(self, ctx: RequestContext, known: dict[str, int], grouped: bool = False) -> dict[str, RuleSet]:
        """Return the security group rules of guests with a version newer than in ``known``.

        ``grouped`` is True if the host supports groups. Each group is sent once, with the first guest that needs it.
        """

    @by_hosts
    @slow_call(10)
    def names(self, ctx: RequestContext, host: str, known: dict[str, int]) -> list[ServedDomain]:
        """Return DNS domains of the host that are newer than in ``known``, missing in it, or no longer needed.

        Some domains are returned at a time; an empty list means that the host is up to date.
        """
