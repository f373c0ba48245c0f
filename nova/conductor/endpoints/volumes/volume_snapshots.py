"""Snapshots of volumes."""

from __future__ import annotations

import logging

from nova import exception
from nova.conductor.core import Core
from nova.context import RequestContext
from nova.objects.volumes.volume_snapshot import SnapshotRequest, VolumeSnapshot

LOG = logging.getLogger(__name__)


class VolumeSnapshots:
    """Implements :class:`nova.rpcapi.volumes.VolumeSnapshots`."""

    def __init__(self, core: Core) -> None:
        self.core = core

    def index(self, ctx: RequestContext, limit: int, offset: int = 0) -> list[VolumeSnapshot]:
        return self.core.attachments.snapshots.index(ctx, limit, offset)

    def get(self, ctx: RequestContext, uuid: str) -> VolumeSnapshot:
        return self.core.attachments.snapshots.get(ctx, uuid)

    def create(self, ctx: RequestContext, wanted: SnapshotRequest) -> VolumeSnapshot:
        snapshot = self.core.attachments.snapshots.create(ctx, wanted)
        LOG.info("Creating snapshot %s of volume %s for project %s", snapshot.uuid, snapshot.volume_id, ctx.project_id)
        return snapshot

    def delete(self, ctx: RequestContext, uuid: str) -> None:
        self.core.attachments.snapshots.delete(ctx, uuid)
        LOG.info("Deleting volume snapshot %s", uuid)

    def server_of(self, ctx: RequestContext, volume_id: str) -> str | None:
        servers = sorted(self.core.attachments.servers(ctx, volume_id))
        if len(servers) > 1:
            raise exception.InvalidVolume(reason=f"volume {volume_id} is attached to several instances: "
                                                 f"{', '.join(servers)}")
        return servers[0] if servers else None
