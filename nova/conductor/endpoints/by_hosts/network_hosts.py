"""Requests of the network back ends of hosts: security rules, DNS names, and the peers of tunneled networks."""

from __future__ import annotations

import logging

import sqlalchemy as sa

from nova import exception
from nova.common import plain_ip
from nova.conductor.endpoints.derived import Endpoint
from nova.context import RequestContext
from nova.db.hosts import network_hosts
from nova.db.networks import security_filters, served_names
from nova.objects.networks.floating_ip_dns import ServedDomain
from nova.objects.networks.network import Peers, RuleSet

LOG = logging.getLogger(__name__)


class NetworkHosts(Endpoint):
    """Implements :class:`nova.rpcapi.by_hosts.NetworkHosts`."""

    def rules(self, ctx: RequestContext, known: dict[str, int], grouped: bool = False) -> dict[str, RuleSet]:
        return self.core.db.read(
            lambda connection: security_filters.newer(connection, known, ctx.calling_host, grouped))

    def names(self, ctx: RequestContext, host: str, known: dict[str, int]) -> list[ServedDomain]:
        return self.core.db.read(lambda connection: served_names.newer(connection, host, known))

    def present(self, ctx: RequestContext, host: str, address: str, networks: dict[str, int],
                complete: bool = False) -> list[Peers]:
        address = _end_of_tunnels(address)

        def read(connection: sa.Connection) -> tuple[dict[str, int], list[Peers] | None]:
            """Return the networks that the host may join, and the reply, or None if there are changes to write.

            Usually there are none: hosts mostly check that their peers are current.
            """
            changed = network_hosts.differs(connection, host, address, networks, complete)
            if not changed:
                return networks, network_hosts.newer(connection, networks)
            # A host without a server on a network neither receives its peers nor becomes one.
            strange = network_hosts.strangers(connection, host, changed & set(networks)) if ctx.calling_host else set()
            return {network: version for network, version in networks.items() if network not in strange}, None

        mine, answer = self.core.db.read(read)
        if answer is not None:
            return answer
        if len(mine) < len(networks):
            LOG.warning("Refused the peers of networks %s to host %s, which has no server on these networks",
                        ", ".join(sorted(networks.keys() - mine.keys())), host)

        def write(connection: sa.Connection) -> tuple[set[str], list[Peers]]:
            changed = network_hosts.present(connection, host, address, mine, complete)
            return changed, network_hosts.newer(connection, mine)

        changed, answer = self.core.db.write(write)
        self.core.peers.touch(changed)
        return answer


def _end_of_tunnels(text: str) -> str:
    """Return the normalized address, to which other hosts send guest traffic. Raises InvalidInput."""
    try:
        address = plain_ip.address(text)
    except ValueError:
        address = None
    if address is None or address.is_multicast or address.is_unspecified:
        raise exception.InvalidInput(reason=f"tunnels cannot end at {text[:100]!a}")
    return str(address)
