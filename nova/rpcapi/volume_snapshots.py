"""Snapshots of volumes, as the user who asks may see them.

Where an outside service keeps volumes, it is asked with the user's own token; all raise VolumeServiceUnavailable then,
and Forbidden. Embedded volumes have none.
"""

from __future__ import annotations

from nova.bus import Interface, call, with_token
from nova.context import RequestContext
from nova.objects.volume_snapshot import SnapshotRequest, VolumeSnapshot
from nova.rpcapi import CONDUCTOR


class VolumeSnapshots(Interface):
    topic = CONDUCTOR
    namespace = "volume_snapshots"

    @with_token
    @call
    def index(self, ctx: RequestContext, limit: int, offset: int = 0) -> list[VolumeSnapshot]:
        """Those of the user's project, newest first."""

    @with_token
    @call
    def get(self, ctx: RequestContext, uuid: str) -> VolumeSnapshot:
        """Raises SnapshotNotFound."""

    @with_token
    @call
    def create(self, ctx: RequestContext, wanted: SnapshotRequest) -> VolumeSnapshot:
        """Begin a snapshot. Raises VolumeNotFound, InvalidVolume (its status, or it can have none), QuotaLimit."""

    @with_token
    @call
    def delete(self, ctx: RequestContext, uuid: str) -> None:
        """Begin to delete a snapshot. Raises SnapshotNotFound, InvalidVolume (its status)."""

    @call
    def server_of(self, ctx: RequestContext, volume_id: str) -> str | None:
        """The server that has a volume, whoever's they are; None: there is none. Nova asks with its own rights.

        Raises VolumeNotFound, InvalidVolume (several servers have it), VolumeServiceUnavailable.
        """
