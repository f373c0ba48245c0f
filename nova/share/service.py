"""The interface of a share back end on conductors: whose a share is, and which hosts may reach it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from nova.context import RequestContext
from nova.objects.share import Share


class ShareService(Protocol):
    """All verbs may be called again. All raise ShareServiceUnavailable; what they were asked for may be done then."""

    def get(self, ctx: RequestContext, project_id: str, share_id: str, host: str) -> Share:
        """The share, if it is this project's, and the caller may use it for a server on this host.

        Raises ShareNotFound, ShareStatusIncorrect, ShareProtocolUnsupported, ShareUnusable, Forbidden.
        """

    def allow(self, ctx: RequestContext, share_id: str, host: str, connector: Mapping[str, Any],
              instance_uuid: str) -> None:
        """The host, which has told this ``connector`` of itself, may reach the share. Raises ShareAccessGrantError."""

    def deny(self, ctx: RequestContext, share_id: str, host: str, connector: Mapping[str, Any]) -> None:
        """It may not any more; nor is there a share: fine. Raises ShareAccessRemovalError."""
