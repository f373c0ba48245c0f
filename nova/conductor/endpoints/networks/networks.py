"""The embedded networks."""

from __future__ import annotations

import logging

from nova.conductor.endpoints.derived import Endpoint, reads, writes
from nova.context import RequestContext
from nova.db.networks import networks
from nova.objects.networks.network import Network

LOG = logging.getLogger(__name__)


class Networks(Endpoint):
    """Implements :class:`nova.rpcapi.networks.Networks`."""

    index = reads(networks.index)
    get = reads(networks.get)
    associate = writes(networks.associate)
    disassociate = writes(networks.disassociate)
    associate_host = writes(networks.associate_host)

    def create(self, ctx: RequestContext, network: Network) -> Network:
        created = self.core.db.write(lambda connection: networks.create(connection, network))
        LOG.info("Network %s (%s) was created with %s", created.label, created.uuid, created.cidr)
        return created

    def delete(self, ctx: RequestContext, uuid: str) -> None:
        self.core.db.write(lambda connection: networks.delete(connection, uuid))
        LOG.info("Network %s was deleted", uuid)
