"""The embedded networks."""

from __future__ import annotations

import logging

from nova.conductor.endpoints.derived import Endpoint, reads, writes
from nova.context import RequestContext
from nova.db import networks as db
from nova.objects.network import Network

LOG = logging.getLogger(__name__)


class Networks(Endpoint):
    """Implements :class:`nova.rpcapi.networks.Networks`."""

    index = reads(db.index)
    get = reads(db.get)
    associate = writes(db.associate)
    disassociate = writes(db.disassociate)
    associate_host = writes(db.associate_host)

    def create(self, ctx: RequestContext, network: Network) -> Network:
        created = self.core.db.write(lambda connection: db.create(connection, network))
        LOG.info("Network %s (%s) was created with %s", created.label, created.uuid, created.cidr)
        return created

    def delete(self, ctx: RequestContext, uuid: str) -> None:
        self.core.db.write(lambda connection: db.delete(connection, uuid))
        LOG.info("Network %s was deleted", uuid)
