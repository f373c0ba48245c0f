"""The embedded volumes: their servers, the location of their data, and the data to remove. The row of a volume is
locked before each decision, so that one of two concurrent requests succeeds. Volumes are locked after instances and
quotas; no other rows are locked after volumes."""

import datetime
import secrets
from typing import Any

import msgspec
import sqlalchemy as sa

from nova import exception
from nova.conf import CONF
from nova.db import liveness, tables
from nova.db.accounts import quotas
from nova.db.sql import clock, rows
from nova.db.sql.types import Utc
from nova.objects.images.image import Image
from nova.objects.volumes import volume as volume_states
from nova.objects.volumes.volume import Volume, VolumeContent, VolumeRemoval

TABLE = tables.volumes
REMOVALS = tables.volume_removals

_MOST_GENERATIONS = 1 << 30

_FREE = {"instance_uuid": None, "attachment_id": None, "device_name": None, "attached_at": None}


# --- queries ---------------------------------------------------------------------------------------
def index(connection: sa.Connection, project_id: str | None = None, limit: int | None = None,
          offset: int = 0) -> list[Volume]:
    """Return the volumes of a project (None: all projects), newest first."""
    return rows.to_objects(Volume, connection.execute(
        sa.select(TABLE).where(*rows.equal(TABLE.c.project_id, project_id)).order_by(TABLE.c.id.desc())
        .limit(limit).offset(offset)))


def get(connection: sa.Connection, uuid: str, project_id: str | None = None, locked: bool = False) -> Volume:
    """Return a volume. Raises VolumeNotFound, also for a volume of another project."""
    statement = sa.select(TABLE).where(TABLE.c.uuid == uuid, *rows.equal(TABLE.c.project_id, project_id))
    return rows.first(connection, Volume, statement.with_for_update() if locked else statement,
                      exception.VolumeNotFound(volume_id=uuid))


def lock(connection: sa.Connection, uuid: str, project_id: str | None = None) -> Volume:
    """Return a volume, locked until the transaction ends. Raises VolumeNotFound."""
    return get(connection, uuid, project_id, locked=True)


def of_instance(connection: sa.Connection, instance_uuid: str) -> list[Volume]:
    """Return the volumes of a server, locked until the transaction ends."""
    return rows.to_objects(Volume, connection.execute(
        sa.select(TABLE).where(TABLE.c.instance_uuid == instance_uuid).order_by(TABLE.c.uuid).with_for_update()))


# --- creation and deletion -------------------------------------------------------------------------
def create(connection: sa.Connection, volume: Volume) -> Volume:
    """Add a volume of the project; a repeated call changes nothing. Raises QuotaLimit, InvalidInput."""
    if not 1 <= volume.size_gb <= CONF.volume.max_size_gb:
        raise exception.InvalidInput(reason=f"size must be from 1 to {CONF.volume.max_size_gb} GiB.")
    if (made := connection.execute(sa.select(TABLE).where(TABLE.c.uuid == volume.uuid)).first()) is not None:
        return rows.to_object(Volume, made)
    _check_quota(connection, volume)
    with rows.on_duplicate():
        connection.execute(sa.insert(TABLE).values({
            **rows.values_of(TABLE, volume), "shared": CONF.volume.shared, "format": CONF.volume.format,
            "created_at": clock.now()}))
    return get(connection, volume.uuid)


def _check_quota(connection: sa.Connection, volume: Volume) -> None:
    most, most_gb = CONF.volume.quota_volumes, CONF.volume.quota_gigabytes
    if most < 0 and most_gb < 0:
        return
    quotas.serialize(connection, f"volumes:{volume.project_id}"[:255])
    count, size = connection.execute(sa.select(
        sa.func.count(), sa.func.coalesce(sa.func.sum(TABLE.c.size_gb), 0)).where(
        TABLE.c.project_id == volume.project_id)).one()
    if 0 <= most <= count:
        raise exception.QuotaLimit(f"Quota exceeded: the project may have {most} volumes.")
    if 0 <= most_gb < int(size) + volume.size_gb:
        raise exception.QuotaLimit(f"Quota exceeded: the project may have {most_gb} GiB of volumes, {int(size)} are "
                                   f"in use and {volume.size_gb} were requested.")


def delete(connection: sa.Connection, uuid: str, project_id: str | None = None) -> VolumeRemoval | None:
    """Delete an unused volume. Return the removal of the data for its host, or None if the volume has no data and its
    row is deleted. Raises VolumeNotFound, InvalidVolume."""
    volume = lock(connection, uuid, project_id)
    if volume.instance_uuid is not None:
        raise exception.InvalidVolume(reason=f"volume {uuid} is attached to instances: {volume.instance_uuid}")
    if volume.status not in (volume_states.AVAILABLE, volume_states.ERROR):
        raise exception.InvalidVolume(reason=f"the status of volume {uuid} must be available or error, but is "
                                             f"{volume.status}")
    return _doom(connection, volume)


def _doom(connection: sa.Connection, volume: Volume) -> VolumeRemoval | None:
    removal = _give_up_place(connection, volume)
    if removal is None:
        connection.execute(sa.delete(TABLE).where(TABLE.c.uuid == volume.uuid))
    else:
        _update(connection, volume.uuid, status=volume_states.DELETING, **_FREE)
    return removal


def _update(connection: sa.Connection, uuid: str, **values: Any) -> None:
    connection.execute(sa.update(TABLE).where(TABLE.c.uuid == uuid).values(updated_at=clock.now(), **values))


# --- location of the data --------------------------------------------------------------------------
def bind(connection: sa.Connection, volume: Volume, host: str) -> Volume:
    """Assign a location to a volume without one: ``host`` or the shared pool. Return the volume. Raises InvalidVolume
    if its data are on another host."""
    if volume.host not in (None, host):
        raise exception.InvalidVolume(reason=f"volume {volume.uuid} cannot be reached from the host of the server")
    if volume.host is None and not (volume.shared and volume.generation):
        volume.generation += 1
        volume.host = None if volume.shared else host
        _update(connection, volume.uuid, host=volume.host, generation=volume.generation)
    return volume


def unbind(connection: sa.Connection, volume: Volume) -> VolumeRemoval | None:
    """Release the location of a volume on a host that no guest has used; return the removal for the host, or None."""
    if volume.written_at is not None or volume.host is None:
        return None
    removal = _give_up_place(connection, volume)
    _update(connection, volume.uuid, host=None)
    volume.host = None
    return removal


def _give_up_place(connection: sa.Connection, volume: Volume) -> VolumeRemoval | None:
    """Insert and return a request to remove the data from their location; return None if there are no data."""
    if volume.host is None and not (volume.shared and volume.generation):
        return None
    removal = VolumeRemoval(volume_uuid=volume.uuid, generation=volume.generation, host=volume.host or "")
    connection.execute(sa.insert(REMOVALS).values({**rows.values_of(REMOVALS, removal), "created_at": clock.now()}))
    return removal


def forgotten(connection: sa.Connection, before: datetime.datetime, limit: int) -> list[VolumeRemoval]:
    """Return removals created before ``before`` whose hosts are up, oldest first. Removals of hosts that are down are
    skipped, so that they do not delay others."""
    there = liveness.host_up(REMOVALS.c.host)
    return rows.to_objects(VolumeRemoval, connection.execute(sa.select(REMOVALS).where(
        REMOVALS.c.created_at < before, sa.or_(REMOVALS.c.host == "", there)).order_by(REMOVALS.c.id).limit(limit)))


def removed(connection: sa.Connection, removal: VolumeRemoval) -> None:
    """Record that data were removed. If they were the current data of a deleted volume, its row is deleted."""
    deleted = connection.execute(sa.delete(REMOVALS).where(
        REMOVALS.c.volume_uuid == removal.volume_uuid, REMOVALS.c.generation == removal.generation,
        REMOVALS.c.host == removal.host))
    if deleted.rowcount:
        connection.execute(sa.delete(TABLE).where(
            TABLE.c.uuid == removal.volume_uuid, TABLE.c.generation == removal.generation,
            TABLE.c.status == volume_states.DELETING))


def reimage(connection: sa.Connection, uuid: str, attachment_id: str, image: Image) -> VolumeContent:
    """Begin to write an image to the volume of this attachment. The present data of the volume are kept until
    end_reimage() and described by the result. Raises InvalidVolume if another request is changing the volume."""
    volume = lock(connection, uuid)
    if volume.attachment_id != attachment_id or volume.status != volume_states.IN_USE:
        raise exception.InvalidVolume(reason=f"the status of volume {uuid} must be in-use, but is {volume.status}")
    # A random generation: a delayed host may still create data of the generation of an earlier, undone reimage.
    _update(connection, uuid, status=volume_states.ATTACHING, image=image, written_at=None,
            generation=1 + secrets.randbelow(_MOST_GENERATIONS))
    return VolumeContent(generation=volume.generation, image=volume.image, written_at=volume.written_at)


def end_reimage(connection: sa.Connection, uuid: str, attachment_id: str, before: VolumeContent,
                done: bool) -> VolumeRemoval | None:
    """End a reimage: keep the new data if ``done``, else the data ``before``. Return the removal of the other data."""
    volume = lock(connection, uuid)
    if volume.attachment_id != attachment_id or volume.generation == before.generation:
        return None
    unwanted = before.generation if done else volume.generation
    if done:
        complete(connection, uuid, attachment_id)
    else:
        _update(connection, uuid, status=volume_states.IN_USE, generation=before.generation, image=before.image,
                written_at=before.written_at)
    return _give_up_place(connection, msgspec.structs.replace(volume, generation=unwanted))


# --- owners ----------------------------------------------------------------------------------------
def reserve(connection: sa.Connection, uuid: str, project_id: str | None, instance_uuid: str, attachment_id: str,
            device_name: str | None, status: str = volume_states.ATTACHING) -> Volume:
    """Reserve an available volume for a server. Raises VolumeNotFound, InvalidVolume (another request was first)."""
    volume = lock(connection, uuid, project_id)
    if volume.attachment_id == attachment_id:
        return volume
    if volume.instance_uuid is not None:
        raise exception.InvalidVolume(reason=f"volume {uuid} is already attached to instances: {volume.instance_uuid}")
    if volume.status != volume_states.AVAILABLE:
        raise exception.InvalidVolume(reason=f"the status of volume {uuid} must be available, but is {volume.status}")
    changes = {"status": status, "instance_uuid": instance_uuid, "attachment_id": attachment_id,
               "device_name": device_name}
    _update(connection, uuid, **changes)
    for name, value in changes.items():
        setattr(volume, name, value)
    return volume


def begin_swap(connection: sa.Connection, old: str, attachment_id: str, new: Volume) -> Volume:
    """Reserve the volume ``new`` for the server ``new.instance_uuid``, to replace ``old``. Raises VolumeNotFound,
    InvalidVolume (a volume is not in the required status, or the sizes differ)."""
    sizes = [lock(connection, uuid, new.project_id).size_gb for uuid in sorted({old, new.uuid})]
    given = reserve(connection, new.uuid, new.project_id, new.instance_uuid or "", new.attachment_id or "",
                    new.device_name)
    if len(set(sizes)) > 1:
        raise exception.InvalidVolume(reason=f"volume {new.uuid} cannot replace volume {old}: the volumes differ in "
                                             "size")
    begin_detaching(connection, old, attachment_id)
    return given


def inherit(connection: sa.Connection, uuid: str, other: str) -> None:
    """Copy the bootable flag and image metadata of ``other`` to a volume with the data of ``other``."""
    origin = get(connection, other)
    _update(connection, uuid, bootable=origin.bootable, image=origin.image)


def complete(connection: sa.Connection, uuid: str, attachment_id: str) -> None:
    """Record that the guest has the volume. From now on the data of the volume must be kept, if it has a location. (A
    volume that is attached to a shelved server has no location before the server is on a host.)"""
    now = sa.literal(clock.now(), Utc)
    placed = sa.or_(TABLE.c.host.is_not(None), sa.and_(TABLE.c.shared, TABLE.c.generation > 0))
    _of_attachment(connection, uuid, attachment_id,
                   (volume_states.RESERVED, volume_states.ATTACHING, volume_states.IN_USE),
                   status=volume_states.IN_USE, attached_at=sa.func.coalesce(TABLE.c.attached_at, now),
                   written_at=sa.case((placed, sa.func.coalesce(TABLE.c.written_at, now)), else_=TABLE.c.written_at))


def begin_detaching(connection: sa.Connection, uuid: str, attachment_id: str) -> None:
    """Mark the volume as detaching. Raises InvalidVolume if it is not in use (another request is changing it)."""
    if not _of_attachment(connection, uuid, attachment_id, (volume_states.IN_USE,), status=volume_states.DETACHING):
        raise exception.InvalidVolume(reason=f"the status of volume {uuid} must be in-use to detach it")


def roll_detaching(connection: sa.Connection, uuid: str, attachment_id: str) -> None:
    """Undo begin_detaching(): the guest keeps the volume."""
    _of_attachment(connection, uuid, attachment_id, (volume_states.DETACHING,), status=volume_states.IN_USE)


def release(connection: sa.Connection, uuid: str, attachment_id: str, delete: bool = False) -> VolumeRemoval | None:
    """Detach a volume from its server, and delete it if ``delete``. Return the removal of its data, or None. A volume
    that does not belong to this attachment stays unchanged."""
    try:
        volume = lock(connection, uuid)
    except exception.VolumeNotFound:
        return None
    if volume.attachment_id != attachment_id:
        return None
    if delete:
        return _doom(connection, volume)
    removal = unbind(connection, volume)
    _update(connection, uuid, status=volume_states.AVAILABLE, **_FREE)
    return removal


def _of_attachment(connection: sa.Connection, uuid: str, attachment_id: str, statuses: tuple[str, ...],
                   **values: Any) -> bool:
    changed = connection.execute(sa.update(TABLE).where(
        TABLE.c.uuid == uuid, TABLE.c.attachment_id == attachment_id, TABLE.c.status.in_(statuses)).values(
        updated_at=clock.now(), **values))
    return changed.rowcount > 0
