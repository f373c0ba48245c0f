"""The interfaces of a share back end: one for hosts, and one for conductors, which grant hosts access to shares. All
methods are idempotent."""

import abc
from collections.abc import Mapping
from typing import Any, Protocol

from nova import exception
from nova.context import RequestContext
from nova.objects.volumes.share import Share, ShareMapping


class HostShares(abc.ABC):
    """The shares of a host, as used by nova-compute."""

    def connector(self, host: str) -> dict[str, Any]:
        """Return properties of this machine (service ``host``) that the share service needs to grant access."""
        return {}

    @abc.abstractmethod
    def connect(self, instance_uuid: str, mapping: ShareMapping) -> str:
        """Make a share available as a directory of this host for a guest, and return its path. Raises ShareUnusable."""

    @abc.abstractmethod
    def disconnect(self, instance_uuid: str, mapping: ShareMapping) -> None:
        """Disconnect a share, keeping its data. Succeeds if the share is not connected. Raises ShareUnusable."""

    def disconnect_guest(self, instance_uuid: str) -> None:
        """Disconnect all shares of a guest that does not run on this host. Raises ShareUnusable."""


class NoShares(HostShares):
    """A host without shares."""

    def connect(self, instance_uuid: str, mapping: ShareMapping) -> str:
        raise exception.ShareUnusable(share_id=mapping.share_id, reason="the host does not support shares")

    def disconnect(self, instance_uuid: str, mapping: ShareMapping) -> None: ...


class ShareService(Protocol):
    """Lookup of shares, and access of hosts to shares. All methods may raise ShareServiceUnavailable although their
    request was executed."""

    def get(self, ctx: RequestContext, project_id: str, share_id: str, host: str) -> Share:
        """Return a share of the project that the caller may use for a server on this host. Raises ShareNotFound,
        ShareStatusIncorrect, ShareProtocolUnsupported, ShareUnusable, Forbidden."""

    def allow(self, ctx: RequestContext, share_id: str, host: str, connector: Mapping[str, Any],
              instance_uuid: str) -> None:
        """Grant a host, with the properties ``connector``, access to a share. Raises ShareAccessGrantError."""

    def deny(self, ctx: RequestContext, share_id: str, host: str, connector: Mapping[str, Any]) -> None:
        """Revoke a host's access to a share. Succeeds if the access or the share does not exist. Raises
        ShareAccessRemovalError."""
