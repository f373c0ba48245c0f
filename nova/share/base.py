"""The interface of a share back end on a host. Who may have which share is the conductor's to say.

Both verbs are idempotent and are told everything.
"""

from __future__ import annotations

import abc
from typing import Any

from nova import exception
from nova.objects.share import ShareMapping


class HostShares(abc.ABC):
    """What nova-compute asks of the shares on its own host."""

    def connector(self, host: str) -> dict[str, Any]:
        """What the other half is to know of this machine (the service ``host``) to open shares for it."""
        return {}

    @abc.abstractmethod
    def connect(self, instance_uuid: str, mapping: ShareMapping) -> str:
        """The share is a directory of this host, for the guest of this server: its path. Raises ShareUnusable."""

    @abc.abstractmethod
    def disconnect(self, instance_uuid: str, mapping: ShareMapping) -> None:
        """Undo what connect() did; the data stay. Not connected: fine. Raises ShareUnusable."""

    def disconnect_guest(self, instance_uuid: str) -> None:
        """Undo it for all that this guest had, whatever that was: it does not run here. Raises ShareUnusable."""


class NoShares(HostShares):
    """A host without shares."""

    def connect(self, instance_uuid: str, mapping: ShareMapping) -> str:
        raise exception.ShareUnusable(share_id=mapping.share_id, reason="its host has no place for shares")

    def disconnect(self, instance_uuid: str, mapping: ShareMapping) -> None: ...
