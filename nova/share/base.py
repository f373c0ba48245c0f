"""The interface of a share back end on a host. The conductor authorizes access to shares.

All methods are idempotent."""

import abc
from typing import Any

from nova import exception
from nova.objects.volumes.share import ShareMapping


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
