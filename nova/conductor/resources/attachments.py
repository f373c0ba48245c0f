"""Attachments of embedded volumes, stored in the database (:class:`nova.volume.attachments.Attachments`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa

from nova import exception
from nova.conf import CONF
from nova.context import RequestContext
from nova.db.sql.engine import Database
from nova.db.volumes import volumes
from nova.objects.base import new_uuid
from nova.objects.images.image import Image
from nova.objects.servers.instance import BlockDevice, Instance
from nova.objects.volumes import volume as volume_states
from nova.objects.volumes.volume import Volume, VolumeContent, VolumeRemoval
from nova.objects.volumes.volume_snapshot import SnapshotRequest, VolumeSnapshot

NO_SNAPSHOTS = "volumes of the embedded back end have no snapshots"


class NoSnapshots:
    """The snapshot service of the embedded back end, which supports no snapshots."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def index(self, ctx: RequestContext, limit: int, offset: int = 0) -> list[VolumeSnapshot]:
        return []

    def get(self, ctx: RequestContext, uuid: str) -> VolumeSnapshot:
        raise exception.SnapshotNotFound(snapshot_id=uuid)

    def create(self, ctx: RequestContext, wanted: SnapshotRequest) -> VolumeSnapshot:
        self._db.read(lambda connection: volumes.get(connection, wanted.volume_id, ctx.project_id))
        raise exception.InvalidVolume(reason=NO_SNAPSHOTS)

    def delete(self, ctx: RequestContext, uuid: str) -> None:
        raise exception.SnapshotNotFound(snapshot_id=uuid)

    def check_room(self, ctx: RequestContext, count: int) -> None:
        raise exception.InvalidVolume(reason=NO_SNAPSHOTS)

    def of_image(self, ctx: RequestContext, image_id: str) -> list[VolumeSnapshot]:
        return []

    def take(self, ctx: RequestContext, image_id: str, wanted: Sequence[SnapshotRequest]) -> list[VolumeSnapshot]:
        raise exception.InvalidVolume(reason=NO_SNAPSHOTS)

    def drop(self, ctx: RequestContext, image_id: str) -> None:
        """Do nothing: there are no snapshots."""

    def check_assisted(self, ctx: RequestContext, volume_id: str, uuid: str, status: str) -> None:
        raise exception.SnapshotNotFound(snapshot_id=uuid)

    def end_assisted(self, ctx: RequestContext, uuid: str, status: str, done: bool) -> None:
        """Do nothing: there are no assisted snapshots."""


class EmbeddedAttachments:
    """Attachments of the volumes in this database. All changes are part of the caller's transaction."""

    external = False

    def __init__(self, db: Database) -> None:
        self._db = db
        self.snapshots = NoSnapshots(db)
        self.volumes = None

    def validate(self, ctx: RequestContext, project_id: str, volume_id: str,
                 status: str = volume_states.AVAILABLE) -> Volume:
        volume = self._db.read(lambda connection: volumes.get(connection, volume_id, project_id))
        if volume.status != status:
            raise exception.InvalidVolume(reason=f"the status of volume {volume_id} must be {status}, but is "
                                                 f"{volume.status}")
        return volume

    def volume_from_snapshot(self, ctx: RequestContext, project_id: str, snapshot_id: str) -> Volume:
        raise exception.SnapshotNotFound(snapshot_id=snapshot_id)

    def secret_of(self, ctx: RequestContext, volume_id: str, own_rights: bool = False) -> str:
        return ""

    def is_lost(self, ctx: RequestContext, volume_id: str) -> bool:
        return False  # the row of an attached volume is not deleted

    def owner(self, ctx: RequestContext, volume_id: str) -> str:
        return self._db.read(lambda connection: volumes.get(connection, volume_id)).project_id

    def extension(self, ctx: RequestContext, instance: Instance, device: BlockDevice) -> tuple[int, bool]:
        raise exception.InvalidVolume(reason="embedded volumes keep their size")

    def end_extension(self, ctx: RequestContext, instance_uuid: str, volume_id: str, size_gb: int, done: bool) -> None:
        """Do nothing: embedded volumes are not extended."""

    def servers(self, ctx: RequestContext, volume_id: str) -> set[str]:
        instance_uuid = self._db.read(lambda connection: volumes.get(connection, volume_id)).instance_uuid
        return {instance_uuid} if instance_uuid else set()

    def reserve(self, ctx: RequestContext, instance: Instance, device: BlockDevice, status: str,
                connection: sa.Connection) -> Volume:
        return volumes.reserve(connection, device.volume_id or "", instance.project_id, instance.uuid,
                               device.attachment_id or "", device.device_name, status)

    def create(self, ctx: RequestContext, instance: Instance, device: BlockDevice, image: Image | None,
               connection: sa.Connection) -> Volume:
        return volumes.create(connection, Volume(
            uuid=new_uuid(), project_id=instance.project_id, user_id=instance.user_id,
            name="" if image else f"{instance.uuid}-blank-vol", size_gb=device.size_gb or 0, image=image,
            bootable=image is not None, status=volume_states.RESERVED, instance_uuid=instance.uuid,
            attachment_id=device.attachment_id, device_name=device.device_name))

    def connect(self, ctx: RequestContext, instance: Instance, device: BlockDevice, host: str,
                connector: Mapping[str, Any], connection: sa.Connection) -> BlockDevice:
        volume = volumes.bind(connection, volumes.lock(connection, device.volume_id or ""), host)
        return msgspec.structs.replace(device, connection_info=volume.connection_info())

    def disconnect(self, ctx: RequestContext, instance: Instance, device: BlockDevice, host: str,
                   connection: sa.Connection) -> tuple[BlockDevice, list[VolumeRemoval]]:
        volume = volumes.lock(connection, device.volume_id or "")
        removal = volumes.unbind(connection, volume) if volume.attachment_id == device.attachment_id else None
        return msgspec.structs.replace(device, connection_info={}), [removal] if removal else []

    def connect_also(self, ctx: RequestContext, instance: Instance, device: BlockDevice, host: str,
                     connector: Mapping[str, Any], connection: sa.Connection) -> BlockDevice:
        return device  # its data are reached in the same way on each possible host

    def finish_move(self, ctx: RequestContext, instance: Instance, device: BlockDevice, host: str,
                    connector: Mapping[str, Any], connection: sa.Connection) -> BlockDevice:
        return device

    def complete(self, ctx: RequestContext, device: BlockDevice, connection: sa.Connection) -> BlockDevice:
        volumes.complete(connection, device.volume_id or "", device.attachment_id or "")
        volume = volumes.get(connection, device.volume_id or "")
        return msgspec.structs.replace(device, connection_info=volume.connection_info())

    def reimage(self, ctx: RequestContext, instance: Instance, device: BlockDevice, image: Image,
                connection: sa.Connection) -> VolumeContent:
        return volumes.reimage(connection, device.volume_id or "", device.attachment_id or "", image)

    def end_reimage(self, ctx: RequestContext, instance: Instance, device: BlockDevice, before: VolumeContent,
                    done: bool, connection: sa.Connection) -> tuple[BlockDevice, list[VolumeRemoval]]:
        uuid = device.volume_id or ""
        removal = volumes.end_reimage(connection, uuid, device.attachment_id or "", before, done)
        now = msgspec.structs.replace(device, connection_info=volumes.get(connection, uuid).connection_info())
        return now, [removal] if removal else []

    def check_swap(self, ctx: RequestContext, project_id: str, old: str, new: str) -> bool:
        self._db.read(lambda connection: volumes.get(connection, new, project_id))
        if not CONF.volume.allow_swap:
            raise exception.VolumeNotMigrated(old=old, new=new)
        return False

    def begin_swap(self, ctx: RequestContext, instance: Instance, old: BlockDevice, new: BlockDevice,
                   connection: sa.Connection) -> Volume:
        return volumes.begin_swap(connection, old.volume_id or "", old.attachment_id or "", Volume(
            uuid=new.volume_id or "", project_id=instance.project_id, instance_uuid=instance.uuid, size_gb=0,
            attachment_id=new.attachment_id, device_name=new.device_name))

    def end_swap(self, ctx: RequestContext, instance: Instance, old: BlockDevice, new: BlockDevice, migrates: bool,
                 done: bool, connection: sa.Connection) -> tuple[BlockDevice, list[VolumeRemoval]]:
        if not done:
            removals = self.release(ctx, instance, new, False, connection)
            self.roll_detaching(ctx, old, connection)
            return old, removals
        volumes.inherit(connection, new.volume_id or "", old.volume_id or "")
        now = self.complete(ctx, new, connection)
        return now, self.release(ctx, instance, old, False, connection)

    def begin_detaching(self, ctx: RequestContext, device: BlockDevice, connection: sa.Connection) -> None:
        volumes.begin_detaching(connection, device.volume_id or "", device.attachment_id or "")

    def roll_detaching(self, ctx: RequestContext, device: BlockDevice, connection: sa.Connection) -> None:
        volumes.roll_detaching(connection, device.volume_id or "", device.attachment_id or "")

    def release(self, ctx: RequestContext, instance: Instance, device: BlockDevice, delete: bool,
                connection: sa.Connection) -> list[VolumeRemoval]:
        removal = volumes.release(connection, device.volume_id or "", device.attachment_id or "", delete)
        return [removal] if removal else []

    def hosts(self, devices: Sequence[BlockDevice], connection: sa.Connection) -> set[str]:
        existing = (volumes.get(connection, device.volume_id) for device in devices if device.volume_id)
        return {volume.host for volume in existing if volume.host}
