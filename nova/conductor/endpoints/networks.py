"""The embedded networks."""

from __future__ import annotations

import logging

from nova.conductor.core import Core
from nova.context import RequestContext
from nova.db import networks as db
from nova.objects.network import Network

LOG = logging.getLogger(__name__)


class Networks:
    """Implements :class:`nova.rpcapi.networks.Networks`."""

    def __init__(self, core: Core) -> None:
        self.core = core

    def index(self, ctx: RequestContext, project_id: str | None = None) -> list[Network]:
        return self.core.db.read(lambda connection: db.index(connection, project_id))

    def get(self, ctx: RequestContext, uuid: str, project_id: str | None = None) -> Network:
        return self.core.db.read(lambda connection: db.get(connection, uuid, project_id))

    def create(self, ctx: RequestContext, network: Network) -> Network:
        created = self.core.db.write(lambda connection: db.create(connection, network))
        LOG.info("Network %s (%s) was created with %s", created.label, created.uuid, created.cidr)
        return created

    def delete(self, ctx: RequestContext, uuid: str) -> None:
        self.core.db.write(lambda connection: db.delete(connection, uuid))
        LOG.info("Network %s was deleted", uuid)
