"""Shares of the embedded back end. ``project_id`` None looks at every project.

Where an outside service keeps shares, all raise NotSupported.
"""

from __future__ import annotations

from nova.bus import Interface, call
from nova.context import RequestContext
from nova.objects.share import Share
from nova.rpcapi import CONDUCTOR


class Shares(Interface):
    topic = CONDUCTOR
    namespace = "shares"

    @call
    def index(self, ctx: RequestContext, project_id: str | None = None, limit: int | None = None,
              offset: int = 0) -> list[Share]:
        """Newest first."""

    @call
    def get(self, ctx: RequestContext, uuid: str, project_id: str | None = None) -> Share:
        """Raises ShareNotFound."""

    @call
    def create(self, ctx: RequestContext, share: Share) -> Share:
        """Asked for twice, it is made once."""

    @call
    def delete(self, ctx: RequestContext, uuid: str) -> Share:
        """Forget it; its directory stays where it is. Raises ShareNotFound, ShareInUse."""
