"""The embedded shares."""

from __future__ import annotations

import logging

from nova import context, exception
from nova.conductor.core import Core
from nova.conf import CONF
from nova.db.volumes import shares
from nova.objects.volumes.share import Share

LOG = logging.getLogger(__name__)


class Shares:
    """Implements :class:`nova.rpcapi.volumes.Shares`."""

    def __init__(self, core: Core) -> None:
        self.core = core

    @staticmethod
    def _check_ours() -> None:
        if CONF.share.driver != "local":
            raise exception.NotSupported("Nova keeps no shares itself here ([share]driver).")

    def index(self, ctx: context.RequestContext, project_id: str | None = None, limit: int | None = None,
              offset: int = 0) -> list[Share]:
        self._check_ours()
        return self.core.db.read(lambda connection: shares.index(connection, project_id, limit, offset))

    def get(self, ctx: context.RequestContext, uuid: str, project_id: str | None = None) -> Share:
        self._check_ours()
        return self.core.db.read(lambda connection: shares.get(connection, uuid, project_id))

    def create(self, ctx: context.RequestContext, share: Share) -> Share:
        self._check_ours()
        created = self.core.db.write(lambda connection: shares.create(connection, share))
        LOG.info("Share %s was created for project %s", created.uuid, created.project_id)
        return created

    def delete(self, ctx: context.RequestContext, uuid: str) -> Share:
        self._check_ours()
        deleted = self.core.db.write(lambda connection: shares.delete(connection, uuid))
        LOG.info("Share %s was deleted from the database; its directory remains on %s", uuid,
                 deleted.host or "the hosts that had it")
        return deleted
