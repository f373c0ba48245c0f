"""The interface of a share back end on conductors: lookup of shares, and access of hosts."""

from collections.abc import Mapping
from typing import Any, Protocol

from nova.context import RequestContext
from nova.objects.volumes.share import Share


class ShareService(Protocol):
    """A share service. All methods are idempotent. All methods raise ShareServiceUnavailable; the request may have been
    executed then."""

    def get(self, ctx: RequestContext, project_id: str, share_id: str, host: str) -> Share:
        """Return a share of the project that the caller may use for a server on this host. Raises ShareNotFound,
        ShareStatusIncorrect, ShareProtocolUnsupported, ShareUnusable, Forbidden."""

    def allow(self, ctx: RequestContext, share_id: str, host: str, connector: Mapping[str, Any],
              instance_uuid: str) -> None:
        """Grant a host, with the properties ``connector``, access to a share. Raises ShareAccessGrantError."""

    def deny(self, ctx: RequestContext, share_id: str, host: str, connector: Mapping[str, Any]) -> None:
        """Revoke a host's access to a share. Succeeds if the access or the share does not exist. Raises
        ShareAccessRemovalError."""
