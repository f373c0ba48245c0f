"""Snapshots of volumes."""

from __future__ import annotations

import logging

from nova import exception
from nova.conductor.core import Core
from nova.context import RequestContext
from nova.objects.volume_snapshot import SnapshotRequest, VolumeSnapshot

LOG = logging.getLogger(__name__)


class VolumeSnapshots:
    """Answers :class:`nova.rpcapi.volume_snapshots.VolumeSnapshots`."""

    def __init__(self, core: Core) -> None:
        self.core = core

    def index(self, ctx: RequestContext, limit: int, offset: int = 0) -> list[VolumeSnapshot]:
        return self.core.attachments.snapshots.index(ctx, limit, offset)

    def get(self, ctx: RequestContext, uuid: str) -> VolumeSnapshot:
        return self.core.attachments.snapshots.get(ctx, uuid)

    def create(self, ctx: RequestContext, wanted: SnapshotRequest) -> VolumeSnapshot:
        made = self.core.attachments.snapshots.create(ctx, wanted)
        LOG.info("Snapshot %s of volume %s is being made for project %s", made.uuid, made.volume_id, ctx.project_id)
        return made

    def delete(self, ctx: RequestContext, uuid: str) -> None:
        self.core.attachments.snapshots.delete(ctx, uuid)
        LOG.info("Snapshot %s of a volume is being deleted", uuid)

    def server_of(self, ctx: RequestContext, volume_id: str) -> str | None:
        servers = sorted(self.core.attachments.servers(ctx, volume_id))
        if len(servers) > 1:
            raise exception.InvalidVolume(reason=f"volume {volume_id} is attached to several instances: "
                                                 f"{', '.join(servers)}")
        return servers[0] if servers else None
