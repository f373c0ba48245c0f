"""Endpoints of volumes, volume snapshots and shares."""

import logging

import msgspec
import sqlalchemy as sa

from nova import exception
from nova.conductor.endpoints.derived import Endpoint
from nova.conductor.resources import volume_removals
from nova.conf import CONF
from nova.context import RequestContext
from nova.db.hosts import services
from nova.db.servers import servers
from nova.db.sql.engine import Database
from nova.db.volumes import shares, volumes
from nova.objects.volumes.share import Share
from nova.objects.volumes.volume import AttachmentChanges, SnapshotRequest, Volume, VolumeRemoval, VolumeSnapshot
from nova.rpcapi import volumes as volumes_api

LOG = logging.getLogger(__name__)


class Volumes(Endpoint, volumes_api.Volumes):
    """Volumes of the embedded back end or of an external service, and their attachments."""

    def index(self, ctx: RequestContext, project_id: str | None = None, limit: int | None = None,
              offset: int = 0) -> list[Volume]:
        if self.core.attachments.volumes is not None:
            return self.core.attachments.volumes.index(ctx, limit or CONF.api.max_limit, offset)
        return self.core.db.read(lambda connection: volumes.index(connection, project_id, limit, offset))

    def get(self, ctx: RequestContext, uuid: str, project_id: str | None = None) -> Volume:
        if self.core.attachments.volumes is not None:
            return self.core.attachments.volumes.get(ctx, uuid)
        return self.core.db.read(lambda connection: volumes.get(connection, uuid, project_id))

    def create(self, ctx: RequestContext, volume: Volume) -> Volume:
        if self.core.attachments.volumes is not None:
            created = self.core.attachments.volumes.create(ctx, volume)
            LOG.info("Creating volume %s of %d GiB for project %s", created.uuid, created.size_gb, ctx.project_id)
            return created

        def transaction(connection: sa.Connection) -> Volume:
            zone = volume.availability_zone
            if zone and not services.zone_is_available(connection, zone):
                raise exception.InvalidInput(reason=f"availability zone '{zone}' is not available.")
            return volumes.create(connection, volume)

        created = self.core.db.write(transaction)
        LOG.info("Volume %s of %d GiB was created for project %s", created.uuid, created.size_gb, created.project_id)
        return created

    def delete(self, ctx: RequestContext, uuid: str, project_id: str | None = None) -> None:
        if self.core.attachments.volumes is not None:
            self.core.attachments.volumes.delete(ctx, uuid)
            LOG.info("Deleting volume %s", uuid)
            return
        removal = self.core.db.write(lambda connection: volumes.delete(connection, uuid, project_id))
        LOG.info("Volume %s was deleted%s", uuid, "; its host removes the data" if removal else "")
        if removal is not None:
            volume_removals.send(self.core, ctx, [removal])

    def update_attachment(self, ctx: RequestContext, instance_uuid: str, volume_id: str,
                          changes: AttachmentChanges, project_id: str | None = None) -> None:
        def transaction(connection: sa.Connection) -> None:
            instance = servers.lock(connection, instance_uuid, project_id)
            instance.attached(volume_id)
            if changes.delete_on_termination is None:
                return
            servers.update(connection, instance_uuid, {"block_devices": [
                msgspec.structs.replace(device, delete_on_termination=changes.delete_on_termination)
                if device.volume_id == volume_id else device for device in instance.block_devices]})

        self.core.db.write(transaction)

    def removed(self, ctx: RequestContext, removals: list[VolumeRemoval]) -> None:
        # Any host may report the removal of data in the shared pool.
        if ctx.calling_host and any(removal.host not in ("", ctx.calling_host) for removal in removals):
            raise exception.CallerRefused(f"Host {ctx.calling_host} must not act for other hosts.")

        def transaction(connection: sa.Connection) -> None:
            for removal in removals:
                volumes.removed(connection, removal)

        self.core.db.write(transaction)


class VolumeSnapshots(Endpoint, volumes_api.VolumeSnapshots):
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


class Shares(Endpoint, volumes_api.Shares):
    @property
    def _db(self) -> Database:
        if CONF.share.driver != "local":
            raise exception.NotSupported("[share]driver is not local: Nova does not store shares.")
        return self.core.db

    def index(self, ctx: RequestContext, project_id: str | None = None, limit: int | None = None,
              offset: int = 0) -> list[Share]:
        return self._db.read(lambda connection: shares.index(connection, project_id, limit, offset))

    def get(self, ctx: RequestContext, uuid: str, project_id: str | None = None) -> Share:
        return self._db.read(lambda connection: shares.get(connection, uuid, project_id))

    def create(self, ctx: RequestContext, share: Share) -> Share:
        created = self._db.write(lambda connection: shares.create(connection, share))
        LOG.info("Share %s was created for project %s", created.uuid, created.project_id)
        return created

    def delete(self, ctx: RequestContext, uuid: str) -> Share:
        deleted = self._db.write(lambda connection: shares.delete(connection, uuid))
        LOG.info("Share %s was deleted from the database; its directory remains on %s", uuid,
                 deleted.host or "the hosts that stored it")
        return deleted
