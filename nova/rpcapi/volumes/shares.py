"""The RPC interface of embedded shares. ``project_id`` None means all projects.

With an external share service all methods raise NotSupported.
"""

from __future__ import annotations

from nova.bus import Interface, call
from nova.context import RequestContext
from nova.objects.volumes.share import Share
from nova.rpcapi import CONDUCTOR


class Shares(Interface):
    topic = CONDUCTOR
    namespace = "shares"

    @call
    def index(self, ctx: RequestContext, project_id: str | None = None, limit: int | None = None,
              offset: int = 0) -> list[Share]:
        """Return shares, newest first."""

    @call
    def get(self, ctx: RequestContext, uuid: str, project_id: str | None = None) -> Share:
        """Raises ShareNotFound."""

    @call
    def create(self, ctx: RequestContext, share: Share) -> Share:
        """Create a share. A repeated request creates it only once."""

    @call
    def delete(self, ctx: RequestContext, uuid: str) -> Share:
        """Delete a share; its directory stays. Raises ShareNotFound, ShareInUse."""
