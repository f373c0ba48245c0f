"""Volumes. ``project_id`` None looks at every project.

Where an outside service keeps them it is asked with the caller's token, which decides what is seen; it raises Forbidden
and VolumeServiceUnavailable, too.
"""

from __future__ import annotations

from nova.bus import Interface, by_hosts, call, with_token
from nova.context import RequestContext
from nova.objects.volume import AttachmentChanges, Volume, VolumeRemoval
from nova.rpcapi import CONDUCTOR


class Volumes(Interface):
    topic = CONDUCTOR
    namespace = "volumes"

    @with_token
    @call
    def index(self, ctx: RequestContext, project_id: str | None = None, limit: int | None = None,
              offset: int = 0) -> list[Volume]:
        """Newest first."""

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
        """The host that keeps the data removes them, when it can. Raises VolumeNotFound, InvalidVolume."""

    @call
    def update_attachment(self, ctx: RequestContext, instance_uuid: str, volume_id: str, changes: AttachmentChanges,
                          project_id: str | None = None) -> None:
        """A volume of a server. Raises InstanceNotFound, VolumeNotAttached."""

    @by_hosts
    @call
    def removed(self, ctx: RequestContext, removals: list[VolumeRemoval]) -> None:
        """A host has removed these data, or found nothing to remove."""
