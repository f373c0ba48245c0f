"""Volumes of the embedded back end. ``project_id`` None looks at every project.

Where an outside service keeps volumes, all but attachments raise NotSupported.
"""

from __future__ import annotations

from nova.bus import Interface, by_hosts, call
from nova.context import RequestContext
from nova.objects.volume import AttachmentChanges, Volume, VolumeRemoval
from nova.rpcapi import CONDUCTOR


class Volumes(Interface):
    topic = CONDUCTOR
    namespace = "volumes"

    @call
    def index(self, ctx: RequestContext, project_id: str | None = None, limit: int | None = None,
              offset: int = 0) -> list[Volume]:
        """Newest first."""

    @call
    def get(self, ctx: RequestContext, uuid: str, project_id: str | None = None) -> Volume:
        """Raises VolumeNotFound."""

    @call
    def create(self, ctx: RequestContext, volume: Volume) -> Volume:
        """Raises QuotaLimit, InvalidInput (size, availability zone)."""

    @call
    def delete(self, ctx: RequestContext, uuid: str, project_id: str | None = None) -> None:
        """The host that keeps the data removes them, when it can. Raises VolumeNotFound, InvalidVolume."""

    @call
    def update_attachment(self, ctx: RequestContext, instance_uuid: str, volume_id: str, changes: AttachmentChanges,
                          project_id: str | None = None) -> None:
        """A volume of a server. Raises InstanceNotFound, VolumeNotAttached."""

    @by_hosts
    @call
    def removed(self, ctx: RequestContext, removals: list[VolumeRemoval]) -> None:
        """A host has removed these data, or found nothing to remove."""
