"""The RPC interface of volumes. ``project_id`` None means all projects.

Requests to an external volume service use the token of the caller, which determines the visible volumes; the methods
also raise Forbidden and VolumeServiceUnavailable then.
"""

from __future__ import annotations

from nova.bus import Interface, by_hosts, call, with_token
from nova.context import RequestContext
from nova.objects.volumes.volume import AttachmentChanges, Volume, VolumeRemoval
from nova.rpcapi import CONDUCTOR


class Volumes(Interface):
    topic = CONDUCTOR
    namespace = "volumes"

    @with_token
    @call
    def index(self, ctx: RequestContext, project_id: str | None = None, limit: int | None = None,
              offset: int = 0) -> list[Volume]:
        """Return volumes, newest first."""

    @with_token
    @call
    def get(self, ctx: RequestContext, uuid: str, project_id: str | None = None) -> Volume:
        """Raises VolumeNotFound."""

    @with_token
    @call
    def create(self, ctx: RequestContext, volume: Volume) -> Volume:
        """Raises QuotaLimit, InvalidInput (size, availability zone)."""

    @with_token
    @call
    def delete(self, ctx: RequestContext, uuid: str, project_id: str | None = None) -> None:
        """Delete a volume; its host removes the data. Raises VolumeNotFound, InvalidVolume."""

    @call
    def update_attachment(self, ctx: RequestContext, instance_uuid: str, volume_id: str, changes: AttachmentChanges,
                          project_id: str | None = None) -> None:
        """Change an attachment of a server. Raises InstanceNotFound, VolumeNotAttached."""

    @by_hosts
    @call
    def removed(self, ctx: RequestContext, removals: list[VolumeRemoval]) -> None:
        """Report that a host removed the data of volumes, or had none."""
