"""What the network back ends of hosts ask. Of hosts that come to a network in tunnels, and go, the others are told."""

from __future__ import annotations

import sqlalchemy as sa

from nova.conductor.endpoints.derived import Endpoint, reads
from nova.context import RequestContext
from nova.db import network_hosts as db
from nova.db import security_groups
from nova.objects.network import Peers


class NetworkHosts(Endpoint):
    """Implements :class:`nova.rpcapi.network_hosts.NetworkHosts`."""

    rules = reads(security_groups.newer_rules)

    def present(self, ctx: RequestContext, host: str, address: str, networks: dict[str, int],
                complete: bool = False) -> list[Peers]:
        def look(connection: sa.Connection) -> list[Peers] | None:
            """The answer, if there is nothing to write: as a rule, hosts only ask whether they know all."""
            if db.differs(connection, host, address, networks, complete):
                return None
            return db.newer(connection, networks)

        answer = self.core.db.read(look)
        if answer is not None:
            return answer

        def write(connection: sa.Connection) -> tuple[set[str], list[Peers]]:
            changed = db.present(connection, host, address, networks, complete)
            return changed, db.newer(connection, networks)

        changed, answer = self.core.db.write(write)
        self.core.peers.touch(changed)
        return answer
