"""The RPC interface of volume snapshots of the caller.

Requests to an external volume service use the token of the caller; all methods raise VolumeServiceUnavailable and
Forbidden then. Embedded volumes have no snapshots.
"""

from __future__ import annotations

from nova.bus import Interface, call, with_token
from nova.context import RequestContext
from nova.objects.volumes.volume_snapshot import SnapshotRequest, VolumeSnapshot
from nova.rpcapi import CONDUCTOR


class VolumeSnapshots(Interface):
    topic = CONDUCTOR
    namespace = "volume_snapshots"

    @with_token
    @call
    def index(self, ctx: RequestContext, limit: int, offset: int = 0) -> list[VolumeSnapshot]:
        """Return the snapshots of the caller's project, newest first."""

    @with_token
    @call
    def get(self, ctx: RequestContext, uuid: str) -> VolumeSnapshot:
        """Raises SnapshotNotFound."""

    @with_token
    @call
    def create(self, ctx: RequestContext, wanted: SnapshotRequest) -> VolumeSnapshot:
        """Start a snapshot. Raises VolumeNotFound, InvalidVolume (wrong status, or no snapshots), QuotaLimit."""

    @with_token
    @call
    def delete(self, ctx: RequestContext, uuid: str) -> None:
        """Start the deletion of a snapshot. Raises SnapshotNotFound, InvalidVolume (wrong status)."""

    @call
    def server_of(self, ctx: RequestContext, volume_id: str) -> str | None:
        """Return the server with a volume in any project, or None. Uses the credentials of Nova.

        Raises VolumeNotFound, InvalidVolume (attached to several servers), VolumeServiceUnavailable.
        """
