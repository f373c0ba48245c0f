"""Embedded shares, stored in the database (:class:`nova.share.base.ShareService`)."""

from collections.abc import Mapping
from typing import Any

from nova import exception
from nova.conf import CONF
from nova.context import RequestContext
from nova.db.sql.engine import Database
from nova.db.volumes import shares
from nova.objects.volumes.share import Share


class EmbeddedShares:
    """Shares in this database. Directories need no access rules."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def get(self, ctx: RequestContext, project_id: str, share_id: str, host: str) -> Share:
        share = self._db.read(lambda connection: shares.get(connection, share_id, project_id))
        if share.host not in (None, host) and not CONF.share.shared:
            raise exception.Conflict(f"Share {share_id} is on another host than the server.")
        return share

    def allow(self, ctx: RequestContext, share_id: str, host: str, connector: Mapping[str, Any],
              instance_uuid: str) -> None:
        try:
            self._db.write(lambda connection: shares.bind(connection, share_id, host, bool(CONF.share.shared)))
        except (exception.ShareNotFound, exception.ShareUnusable) as error:
            raise exception.ShareAccessGrantError(share_id=share_id, reason=str(error)) from error

    def deny(self, ctx: RequestContext, share_id: str, host: str, connector: Mapping[str, Any]) -> None:
        """Do nothing: the share stays bound to the host that stores its directory."""


class NoShareService:
    """A share service of deployments without shares."""

    def __init__(self, db: Database) -> None:
        """Ignore the database: there are no shares."""

    def get(self, ctx: RequestContext, project_id: str, share_id: str, host: str) -> Share:
        raise exception.ShareNotFound(share_id=share_id)

    def allow(self, ctx: RequestContext, share_id: str, host: str, connector: Mapping[str, Any],
              instance_uuid: str) -> None:
        raise exception.ShareAccessGrantError(share_id=share_id, reason="there is no share service")

    def deny(self, ctx: RequestContext, share_id: str, host: str, connector: Mapping[str, Any]) -> None:
        """Do nothing: no access was granted."""
