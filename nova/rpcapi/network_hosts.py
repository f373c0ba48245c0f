"""What the network back ends of hosts ask: who else has a network, what guests let in, and names in the DNS."""

from __future__ import annotations

from nova.bus import Interface, by_hosts, slow_call
from nova.context import RequestContext
from nova.objects.floating_ip_dns import ServedDomain
from nova.objects.network import Peers, RuleSet
from nova.rpcapi import CONDUCTOR


class NetworkHosts(Interface):
    """What a host's network back end asks of the conductor."""

    topic = CONDUCTOR
    namespace = "network_hosts"

    @by_hosts
    @slow_call(10)
    def present(self, ctx: RequestContext, host: str, address: str, networks: dict[str, int],
                complete: bool = False) -> list[Peers]:
        """The host has these networks, with tunnels that end at ``address``, and knows this version of their peers.

        With ``complete`` it has no others. Returns the peers of those networks whose version is newer; the other hosts
        are told.
        """

    @by_hosts
    @slow_call(10)
    def rules(self, ctx: RequestContext, known: dict[str, int], grouped: bool = False) -> dict[str, RuleSet]:
        """What these guests let in: of those for whom there is something newer than the version that is known.

        ``grouped``: the host knows groups. Each is told once, with the first guest that needs it.
        """

    @by_hosts
    @slow_call(10)
    def names(self, ctx: RequestContext, host: str, known: dict[str, int]) -> list[ServedDomain]:
        """What the host answers in the DNS: of domains that are newer than the version that is known, or not known,
        some at a time, and those that are known and not (any more) for it. Empty if it knows all.
        """
