"""Volumes in Cinder (:class:`nova.volume.attachments.Attachments`), with attachments of Cinder's API.

An interrupted method finds its objects in Cinder again: attachments by the ids of server and volume, new volumes by the
id of the server's device in their metadata. So all methods are idempotent.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from nova import exception
from nova.context import RequestContext
from nova.objects.base import whole
from nova.objects.images.image import Image
from nova.objects.servers.instance import BlockDevice, Instance
from nova.objects.volumes import volume as volume_states
from nova.objects.volumes.volume import ConnectionInfo, Volume, VolumeContent, VolumeRemoval
from nova.volume.cinder.api import MOST_GIB, CinderApi, Raw, retry_now
from nova.volume.cinder.snapshots import CinderSnapshots
from nova.volume.cinder.views import to_volume
from nova.volume.cinder.volumes import CinderVolumes

LOG = logging.getLogger(__name__)

# Metadata key of a new volume with the id of the device that the volume was created for.
_DEVICE_KEY = "nova_device"
_DOWNLOADING = "downloading"
# Names of the encryption that hypervisors support. Volume types may still have the old names.
_LUKS = ("luks", "LuksEncryptor", "nova.volume.encryptors.luks.LuksEncryptor",
         "os_brick.encryptors.luks.LuksEncryptor")
_FRONT_END = "front-end"
_ATTACHED = "attached"
# Statuses of a volume that is being attached or detached.
_TRANSIENT = (volume_states.RESERVED, volume_states.ATTACHING, volume_states.DETACHING)
# Values of migration_status: no migration in progress; the service is completing the migration.
_NO_MIGRATION = (None, "none", "success", "error", "deleting")
_COMPLETING = "completing"
_EXTENDING = "extending"
# Metadata key with the new size (GiB) while an extension waits for the guest.
_NEW_SIZE = "extend_new_size"
# The driver_volume_type of volumes whose extension waits for the guest. The metadata of other volumes are not trusted,
# since users may write any key.
_NFS = "nfs"


class CinderAttachments:
    """The conductor's part of the volume back end "cinder"."""

    external = True

    def __init__(self, db: object = None) -> None:
        """Ignore the database: all state is in Cinder and in the rows of servers."""

    @functools.cached_property
    def _api(self) -> CinderApi:
        return CinderApi()

    @functools.cached_property
    def snapshots(self) -> CinderSnapshots:
        return CinderSnapshots(self._api)

    @functools.cached_property
    def volumes(self) -> CinderVolumes:
        return CinderVolumes(self._api)

    # --- validation ----------------------------------------------------------------------------------
    def validate(self, ctx: RequestContext, project_id: str, volume_id: str,
                 status: str = volume_states.AVAILABLE) -> Volume:
        raw = self._api.volume(ctx, volume_id, ctx.auth_token)
        shared = bool(raw.get("multiattach")) and status == volume_states.AVAILABLE
        if raw["status"] != status and not (shared and raw["status"] == volume_states.IN_USE):
            servers = ", ".join(str(attachment.get("server_id")) for attachment in raw.get("attachments", ()))
            raise exception.InvalidVolume(reason=(
                f"volume {volume_id} is already attached to instances: {servers}"
                if servers and status == volume_states.AVAILABLE else
                f"the status of volume {volume_id} must be {status}, but is {raw['status']}"))
        return to_volume(raw, project_id)

    def volume_from_snapshot(self, ctx: RequestContext, project_id: str, snapshot_id: str) -> Volume:
        snapshot = self.snapshots.get(ctx, snapshot_id)
        if snapshot.status != volume_states.AVAILABLE:
            raise exception.InvalidVolume(reason=f"the status of snapshot {snapshot_id} must be available, but is "
                                                 f"{snapshot.status}")
        origin = to_volume(self._api.volume(ctx, snapshot.volume_id, ctx.auth_token), project_id)
        return Volume(uuid="", project_id=project_id, size_gb=snapshot.size_gb, bootable=origin.bootable,
                      image=origin.image, encrypted=origin.encrypted, origin=origin.uuid)

    def secret_of(self, ctx: RequestContext, volume_id: str, own_rights: bool = False) -> str:
        encryption = self._api.encryption(ctx, volume_id, None if own_rights else ctx.auth_token)
        secret = encryption.get("encryption_key_id")
        provider, location = encryption.get("provider"), encryption.get("control_location")
        if not secret and not provider:
            return ""
        if provider not in _LUKS:
            raise exception.InvalidVolume(reason=f"volume {volume_id} is encrypted by {provider or 'unknown'}; only "
                                                 "luks is supported")
        if location != _FRONT_END:
            raise exception.InvalidVolume(reason=f"volume {volume_id} is encrypted with control_location {location}; "
                                                 f"only {_FRONT_END} is supported")
        if not secret:
            raise exception.InvalidVolume(reason=f"volume {volume_id} is encrypted, and has no key")
        return secret

    def is_lost(self, ctx: RequestContext, volume_id: str) -> bool:
        try:
            # Nova's own credentials, since a volume that the caller may not read is not lost.
            return bool(self._api.volume(ctx, volume_id)["status"].startswith(volume_states.ERROR))
        except exception.VolumeNotFound:
            return True

    def owner(self, ctx: RequestContext, volume_id: str) -> str:
        return to_volume(self._api.volume(ctx, volume_id), "").project_id

    def servers(self, ctx: RequestContext, volume_id: str) -> set[str]:
        raw = self._api.volume(ctx, volume_id, ctx.auth_token)
        servers = {attachment.get("server_id") for attachment in raw.get("attachments", ())}
        return {server for server in servers if server}

    def hosts(self, devices: Sequence[BlockDevice], connection: object = None) -> set[str]:
        return set()

    # --- creation and reservation --------------------------------------------------------------------
    def create(self, ctx: RequestContext, instance: Instance, device: BlockDevice, image: Image | None,
               connection: object = None) -> Volume:
        return retry_now(lambda: self._create(ctx, instance, device))

    def _create(self, ctx: RequestContext, instance: Instance, device: BlockDevice) -> Volume:
        existing = self._created_for(ctx, device)
        if existing:
            return to_volume(existing[0], instance.project_id)
        if not ctx.auth_token:
            raise exception.InvalidVolume(reason="the server's new volume was not created before the token of the "
                                                 "request was dropped; create the server again")
        wanted = {"size": device.size_gb, "name": f"{instance.uuid}-blank-vol" if device.source == "blank" else "",
                  "metadata": {_DEVICE_KEY: device.uuid},
                  **({"imageRef": device.image_id} if device.image_id else {}),
                  **({"snapshot_id": device.snapshot_id} if device.snapshot_id else {}),
                  **({"volume_type": device.volume_type} if device.volume_type else {})}
        return to_volume(self._api.create_volume(ctx, wanted), instance.project_id)

    def _created_for(self, ctx: RequestContext, device: BlockDevice) -> list[Raw]:
        return self._api.volumes_with(ctx, {_DEVICE_KEY: device.uuid or ""})

    def reserve(self, ctx: RequestContext, instance: Instance, device: BlockDevice,
                status: str = volume_states.RESERVED,
                connection: object = None) -> Volume:
        volume = device.volume_id or ""
        attachments = self._api.attachments(ctx, instance.uuid, volume)
        attachment = attachments[0] if attachments else self._reserved(ctx, instance, device)
        return Volume(uuid=volume, project_id=instance.project_id, size_gb=device.size_gb or 0, status=status,
                      instance_uuid=instance.uuid, attachment_id=attachment["id"])

    def _reserved(self, ctx: RequestContext, instance: Instance, device: BlockDevice) -> Raw:
        volume = device.volume_id or ""
        try:
            return self._api.create_attachment(ctx, volume, instance.uuid)
        except exception.InvalidVolume as error:
            if device.multiattach and self._api.volume(ctx, volume)["status"] in _TRANSIENT:
                # Cinder attaches the volume to one server after the other: retry later.
                raise exception.VolumeServiceUnavailable(reason=error.kwargs["reason"]) from error
            raise

    # --- connections of hosts ------------------------------------------------------------------------
    def connect(self, ctx: RequestContext, instance: Instance, device: BlockDevice, host: str,
                connector: Mapping[str, Any], connection: object = None) -> BlockDevice:
        attachment = self._api.update_attachment(ctx, device.attachment_id or "",
                                                 {**connector, "mountpoint": device.device_name})
        return msgspec.structs.replace(device, connection_info=_connection(device, attachment))

    def disconnect(self, ctx: RequestContext, instance: Instance, device: BlockDevice, host: str,
                   connection: object = None) -> tuple[BlockDevice, list[VolumeRemoval]]:
        volume = device.volume_id or ""
        attachments = self._api.attachments(ctx, instance.uuid, volume)
        connected = [attachment for attachment in attachments if attachment.get("connection_info")]
        reservation = next((attachment for attachment in attachments if not attachment.get("connection_info")), None)
        if reservation is None:
            for attachment in connected:
                # Cinder rejects a second attachment while the first one is incomplete.
                self._api.complete_attachment(ctx, attachment["id"])
            # Created before the others are deleted, so that the volume stays reserved for the server.
            reservation = self._api.create_attachment(ctx, volume, instance.uuid)
        for attachment in connected:
            self._api.delete_attachment(ctx, attachment["id"])
        return msgspec.structs.replace(device, attachment_id=reservation["id"], connection_info={}), []

    def connect_also(self, ctx: RequestContext, instance: Instance, device: BlockDevice, host: str,
                     connector: Mapping[str, Any], connection: object = None) -> BlockDevice:
        volume = device.volume_id or ""
        for attachment in self._api.attachments(ctx, instance.uuid, volume):
            if attachment["id"] != device.attachment_id:
                # Left by an interrupted attempt; Cinder accepts no connector for it any more.
                self._api.delete_attachment(ctx, attachment["id"])
            elif attachment.get("connection_info") and attachment.get("status") != _ATTACHED:
                # Cinder rejects a second attachment while the first one is incomplete.
                self._api.complete_attachment(ctx, attachment["id"])
        second = self._api.create_attachment(ctx, volume, instance.uuid,
                                             {**connector, "mountpoint": device.device_name})
        return self.complete(ctx, msgspec.structs.replace(
            device, attachment_id=second["id"], connection_info=_connection(device, second)))

    def finish_move(self, ctx: RequestContext, instance: Instance, device: BlockDevice, host: str = "",
                    connector: Mapping[str, Any] = {}, connection: object = None) -> BlockDevice:
        attachments = self._api.attachments(ctx, instance.uuid, device.volume_id)
        if device.attachment_id not in [attachment["id"] for attachment in attachments]:
            return self.connect_also(ctx, instance, device, host, connector) if host else device
        for attachment in attachments:
            if attachment["id"] != device.attachment_id:
                self._api.delete_attachment(ctx, attachment["id"])
        return device

    def complete(self, ctx: RequestContext, device: BlockDevice, connection: object = None) -> BlockDevice:
        self._api.complete_attachment(ctx, device.attachment_id or "")
        return device

    def reimage(self, ctx: RequestContext, instance: Instance, device: BlockDevice, image: Image,
                connection: object = None) -> None:
        volume = device.volume_id or ""
        try:
            self._api.reimage(ctx, volume, image.id)
        except exception.InvalidVolume:
            if self._api.volume(ctx, volume)["status"] != _DOWNLOADING:  # otherwise the reimage is already in progress
                raise

    def end_reimage(self, ctx: RequestContext, instance: Instance, device: BlockDevice, before: VolumeContent,
                    done: bool, connection: object = None) -> tuple[BlockDevice, list[VolumeRemoval]]:
        return device, []  # Cinder cannot restore the previous data

    # --- extension -----------------------------------------------------------------------------------
    def extension(self, ctx: RequestContext, instance: Instance, device: BlockDevice) -> tuple[int, bool]:
        raw = self._api.volume(ctx, device.volume_id or "")
        if not _is_attached(raw, instance.uuid):
            raise exception.InvalidVolume(reason=f"volume {device.volume_id} is not attached to the server")
        if not _waits_for_guest(raw) or device.connection_info.get("driver_volume_type") != _NFS:
            return raw["size"], False
        size = whole(str(raw["metadata"][_NEW_SIZE]))
        if size is None or not raw["size"] < size <= MOST_GIB:
            raise exception.InvalidVolume(reason=f"the {_NEW_SIZE} {raw['metadata'][_NEW_SIZE]} of volume "
                                                 f"{device.volume_id} is not larger than {raw['size']} GiB")
        return size, True

    def end_extension(self, ctx: RequestContext, instance_uuid: str, volume_id: str, size_gb: int, done: bool) -> None:
        try:
            raw = self._api.volume(ctx, volume_id)
            if (_waits_for_guest(raw) and _is_attached(raw, instance_uuid)
                    and str(size_gb) in ("0", str(raw["metadata"][_NEW_SIZE]))):
                self._api.complete_extension(ctx, volume_id, error=not done)
            elif done and raw["status"].startswith(volume_states.ERROR):
                raise exception.InvalidVolume(reason=f"the volume service has recorded a failed extension of volume "
                                                     f"{volume_id}, though the guest has extended the volume")
        except (exception.VolumeNotFound, exception.InvalidVolume) as error:
            if done:
                raise
            LOG.info("The failed extension of volume %s is not reported to Cinder: %s", volume_id, error)

    # --- swap ------------------------------------------------------------------------------------------
    def check_swap(self, ctx: RequestContext, project_id: str, old: str, new: str) -> bool:
        # Nova's own credentials, since migration_status is visible only to administrators.
        volume, other = self._api.volume(ctx, old), self._api.volume(ctx, new)
        if volume.get("migration_status") in _NO_MIGRATION or other.get("migration_status") != f"target:{old}":
            raise exception.VolumeNotMigrated(old=old, new=new)
        if len(volume.get("attachments", ())) > 1:
            raise exception.MultiattachSwapUnsupported()
        if other["status"] != volume_states.AVAILABLE:
            raise exception.InvalidVolume(reason=f"the status of volume {new} must be available, but is "
                                                 f"{other['status']}")
        if other["size"] != volume["size"]:
            raise exception.InvalidVolume(reason=f"volume {new} is not as large as volume {old}")
        return True

    def begin_swap(self, ctx: RequestContext, instance: Instance, old: BlockDevice, new: BlockDevice,
                   connection: object = None) -> Volume:
        self.begin_detaching(ctx, old)
        raw = self._api.volume(ctx, new.volume_id or "")
        attachment_id = self.reserve(ctx, instance, new).attachment_id
        return msgspec.structs.replace(to_volume(raw, instance.project_id), attachment_id=attachment_id)

    def end_swap(self, ctx: RequestContext, instance: Instance, old: BlockDevice, new: BlockDevice, migrates: bool,
                 done: bool, connection: object = None) -> tuple[BlockDevice, list[VolumeRemoval]]:
        """Release a volume. Its attachments are deleted before the migration is completed, as Cinder requires."""
        if done:
            self.complete(ctx, new)
            self._api.delete_attachment(ctx, old.attachment_id or "")
        elif new.attachment_id:
            self._api.delete_attachment(ctx, new.attachment_id)
        else:  # an interrupted attempt may have reserved the volume
            self.release(ctx, instance, new)
        if migrates:
            self._end_migration(ctx, old.volume_id or "", new.volume_id or "", done)
        if not done:
            self.roll_detaching(ctx, old)
        return (new if done else old), []

    def _end_migration(self, ctx: RequestContext, old: str, new: str, done: bool) -> None:
        """Complete a migration, unless the service is completing it already, in which case the caller has to retry."""
        try:
            status = self._api.volume(ctx, old).get("migration_status")
        except exception.VolumeNotFound:
            return
        if status == _COMPLETING:
            raise exception.VolumeServiceUnavailable(reason=f"the service is completing the migration of volume {old}")
        if status in _NO_MIGRATION:
            return
        try:
            self._api.complete_migration(ctx, old, new, error=not done)
        except exception.VolumeNotFound:
            if done:
                raise

    # --- detachment and release ----------------------------------------------------------------------
    def begin_detaching(self, ctx: RequestContext, device: BlockDevice, connection: object = None) -> None:
        volume = device.volume_id or ""
        try:
            self._api.act(ctx, volume, "os-begin_detaching")
        except exception.InvalidVolume:
            if not self._is_detaching(ctx, device):
                raise

    def roll_detaching(self, ctx: RequestContext, device: BlockDevice, connection: object = None) -> None:
        try:
            if self._is_detaching(ctx, device):
                self._api.act(ctx, device.volume_id or "", "os-roll_detaching")
        except exception.VolumeNotFound:
            LOG.warning("Volume %s does not exist any more, though it is attached to a server", device.volume_id)

    def _is_detaching(self, ctx: RequestContext, device: BlockDevice) -> bool:
        """Return True if the volume is detaching, by Nova or another client: Cinder does not record which."""
        raw = self._api.volume(ctx, device.volume_id or "")
        attachments = {attachment.get("attachment_id") for attachment in raw.get("attachments", ())}
        return raw["status"] == volume_states.DETACHING and device.attachment_id in attachments

    def release(self, ctx: RequestContext, instance: Instance, device: BlockDevice, delete: bool = False,
                connection: object = None) -> list[VolumeRemoval]:
        if device.volume_id:
            volumes = [device.volume_id]
        elif device.source == "volume":
            return []
        else:
            volumes = [raw["id"] for raw in self._created_for(ctx, device)]
        for volume in volumes:
            for attachment in self._api.attachments(ctx, instance.uuid, volume):
                self._api.delete_attachment(ctx, attachment["id"])
            if delete:
                self._delete(ctx, volume)
        return []

    def _delete(self, ctx: RequestContext, volume: str) -> None:
        try:
            raw = self._api.volume(ctx, volume)
            if raw.get("attachments"):
                LOG.warning("Not deleting volume %s: it is attached to another server", volume)
            elif raw["status"] in (volume_states.RESERVED, volume_states.ATTACHING, volume_states.IN_USE,
                                   volume_states.DETACHING):
                # The attachment is deleted, but Cinder has not updated the status of the volume yet.
                raise exception.VolumeServiceUnavailable(reason=f"volume {volume} is still {raw['status']}")
            elif raw["status"] != volume_states.DELETING:
                self._api.delete_volume(ctx, volume)
        except exception.VolumeNotFound:
            pass
        except exception.InvalidVolume as error:
            LOG.warning("Cannot delete volume %s, it remains: %s", volume, error)


def _connection(device: BlockDevice, attachment: Raw) -> ConnectionInfo:
    """Return the connection info of an attachment, as sent to a host."""
    shared = {"multiattach": True} if device.multiattach else {}
    return {**attachment["connection_info"], "volume_id": device.volume_id, **shared}


def _is_attached(raw: Raw, instance_uuid: str) -> bool:
    return instance_uuid in [attachment.get("server_id") for attachment in raw.get("attachments", ())]


def _waits_for_guest(raw: Raw) -> bool:
    """Return True if Cinder waits until a guest has extended the volume, and False if it extends the volume itself."""
    return raw["status"] == _EXTENDING and _NEW_SIZE in (raw.get("metadata") or {})
