"""Volumes of the embedded back end or of an external service, and their attachments."""

from __future__ import annotations

import logging

import msgspec
import sqlalchemy as sa

from nova import context, exception
from nova.conductor.core import Core
from nova.conductor.resources import volume_removals
from nova.conf import CONF
from nova.db.hosts import services
from nova.db.servers import servers
from nova.db.volumes import volumes
from nova.objects.volumes.volume import AttachmentChanges, Volume, VolumeRemoval

LOG = logging.getLogger(__name__)


class Volumes:
    """Implements :class:`nova.rpcapi.volumes.Volumes`."""

    def __init__(self, core: Core) -> None:
        self.core = core

    def index(self, ctx: context.RequestContext, project_id: str | None = None, limit: int | None = None,
              offset: int = 0) -> list[Volume]:
        if self.core.attachments.volumes is not None:
            return self.core.attachments.volumes.index(ctx, limit or CONF.api.max_limit, offset)
        return self.core.db.read(lambda connection: volumes.index(connection, project_id, limit, offset))

    def get(self, ctx: context.RequestContext, uuid: str, project_id: str | None = None) -> Volume:
        if self.core.attachments.volumes is not None:
            return self.core.attachments.volumes.get(ctx, uuid)
        return self.core.db.read(lambda connection: volumes.get(connection, uuid, project_id))

    def create(self, ctx: context.RequestContext, volume: Volume) -> Volume:
        if self.core.attachments.volumes is not None:
            created = self.core.attachments.volumes.create(ctx, volume)
            LOG.info("Creating volume %s of %d GiB for project %s", created.uuid, created.size_gb,
                     ctx.project_id)
            return created

        def transaction(connection: sa.Connection) -> Volume:
            zone = volume.availability_zone
            if zone and not services.zone_is_available(connection, zone):
                raise exception.InvalidInput(reason=f"availability zone '{zone}' is not available.")
            return volumes.create(connection, volume)

        created = self.core.db.write(transaction)
        LOG.info("Volume %s of %d GiB was created for project %s", created.uuid, created.size_gb, created.project_id)
        return created

    def delete(self, ctx: context.RequestContext, uuid: str, project_id: str | None = None) -> None:
        if self.core.attachments.volumes is not None:
            self.core.attachments.volumes.delete(ctx, uuid)
            LOG.info("Deleting volume %s", uuid)
            return
        removal = self.core.db.write(lambda connection: volumes.delete(connection, uuid, project_id))
        LOG.info("Volume %s was deleted%s", uuid, "; its host removes the data" if removal else "")
        if removal is not None:
            volume_removals.send(self.core, ctx, [removal])

    def update_attachment(self, ctx: context.RequestContext, instance_uuid: str, volume_id: str,
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

    def removed(self, ctx: context.RequestContext, removals: list[VolumeRemoval]) -> None:
        # Any host may report the removal of data in the shared pool.
        if ctx.calling_host and any(removal.host not in ("", ctx.calling_host) for removal in removals):
            raise exception.CallerRefused(f"Host {ctx.calling_host} may not speak for other hosts.")

        def transaction(connection: sa.Connection) -> None:
            for removal in removals:
                volumes.removed(connection, removal)

        self.core.db.write(transaction)
