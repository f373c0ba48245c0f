"""What the network back ends of hosts ask. Of hosts that come to a network in tunnels, and go, the others are told."""

from __future__ import annotations

import logging

import sqlalchemy as sa

from nova import exception
from nova.conductor.endpoints.derived import Endpoint
from nova.context import RequestContext
from nova.db import network_hosts, security_filters, served_names
from nova.objects import plain_ip
from nova.objects.floating_ip_dns import ServedDomain
from nova.objects.network import Peers, RuleSet

LOG = logging.getLogger(__name__)


class NetworkHosts(Endpoint):
    """Implements :class:`nova.rpcapi.network_hosts.NetworkHosts`."""

    def rules(self, ctx: RequestContext, known: dict[str, int], grouped: bool = False) -> dict[str, RuleSet]:
        return self.core.db.read(
            lambda connection: security_filters.newer(connection, known, ctx.calling_host, grouped))

    def names(self, ctx: RequestContext, host: str, known: dict[str, int]) -> list[ServedDomain]:
        return self.core.db.read(lambda connection: served_names.newer(connection, host, known))

    def present(self, ctx: RequestContext, host: str, address: str, networks: dict[str, int],
                complete: bool = False) -> list[Peers]:
        address = _end_of_tunnels(address)

        def look(connection: sa.Connection) -> tuple[dict[str, int], list[Peers] | None]:
            """The networks that it may have; the answer, if there is nothing to write: as a rule, hosts only ask
            whether they know all.
            """
            changed = network_hosts.differs(connection, host, address, networks, complete)
            if not changed:
                return networks, network_hosts.newer(connection, networks)
            # Who is not there learns nothing of a network, and is no peer of those who are.
            strange = network_hosts.strangers(connection, host, changed & set(networks)) if ctx.calling_host else set()
            return {network: known for network, known in networks.items() if network not in strange}, None

        mine, answer = self.core.db.read(look)
        if answer is not None:
            return answer
        if len(mine) < len(networks):
            LOG.warning("Host %s has no server on networks %s, and is not told of them", host,
                        ", ".join(sorted(networks.keys() - mine.keys())))

        def write(connection: sa.Connection) -> tuple[set[str], list[Peers]]:
            changed = network_hosts.present(connection, host, address, mine, complete)
            return changed, network_hosts.newer(connection, mine)

        changed, answer = self.core.db.write(write)
        self.core.peers.touch(changed)
        return answer


def _end_of_tunnels(text: str) -> str:
    """The address, in one spelling: other hosts send to it what their guests say. Raises InvalidInput."""
    try:
        found = plain_ip.address(text)
    except ValueError:
        found = None
    if found is None or found.is_multicast or found.is_unspecified:
        raise exception.InvalidInput(reason=f"tunnels cannot end at {text[:100]!a}")
    return str(found)
