"""Volumes of a server in Cinder, for the external steps of its operations, with attachments of Cinder's API.

An interrupted method finds its objects in Cinder again: attachments by the ids of server and volume, new volumes by the
id of the server's device in their metadata, snapshots by the id of the server image. So all methods are idempotent.
Cinder is called immediately, outside any transaction; the devices are stored with the step."""

import contextlib
import logging
from typing import Any

import msgspec

from nova import exception
from nova.conf import CONF
from nova.objects.base import whole
from nova.objects.images.image import Image
from nova.objects.servers.instance import BlockDevice
from nova.objects.volumes import volume as volume_states
from nova.objects.volumes.volume import ConnectionInfo, Volume, VolumeEncryption, VolumeSnapshot
from nova.operations.assisted_snapshots import ASSISTED
from nova.operations.framework.base import Wait
from nova.operations.framework.contexts import ServiceControl
from nova.volume.cinder.api import MOST_GIB, CinderApi, Raw, convert_missing_snapshot, retry_now, to_snapshot, to_volume

LOG = logging.getLogger(__name__)

# Metadata key of a new volume with the id of the device for which the volume was created.
_DEVICE_KEY = "nova_device"
# Metadata key of a snapshot with the id of the server image to which the snapshot belongs.
_IMAGE_KEY = "nova_image"
_DOWNLOADING = "downloading"
# Statuses of a new volume or snapshot that is not finished.
_BEING_MADE = ("creating", _DOWNLOADING)
_LONGEST_NAME = 255  # characters of the name of a snapshot in Cinder
# Statuses of a volume that is being attached or detached.
_TRANSIENT = (volume_states.RESERVED, volume_states.ATTACHING, volume_states.DETACHING)
# Values of migration_status if the volume is not being migrated.
NO_MIGRATION = (None, "none", "success", "error", "deleting")
# Metadata key with the new size (GiB) while an extension waits for the guest.
_NEW_SIZE = "extend_new_size"
# The driver_volume_type of volumes whose extension waits for the guest. The metadata of other volumes are not trusted,
# since users may write any key.
_NFS = "nfs"
# Status of an assisted snapshot -> status after a failure.
_FAILED = {"creating": "error", "deleting": "error_deleting"}
# Statuses in which Cinder does not delete a snapshot.
_BUSY = ("creating", "backing-up", "restoring", "updating")


class CinderServerVolumes:
    """A :class:`nova.operations.framework.resource_contexts.OutsideVolumes`. Without ``devices``, a method changes all
    volumes of the server."""

    def __init__(self, api: CinderApi, ctl: ServiceControl) -> None:
        self._api, self._ctl, self._ctx = api, ctl, ctl.ctx

    @property
    def _uuid(self) -> str:
        return self._ctl.instance.uuid

    # --- creation and reservation --------------------------------------------------------------------
    def make(self, polls: int, encryptions: dict[str, VolumeEncryption]) -> None:
        made, waits = [], False
        for device in self._ctl.instance.volume_devices:
            if device.volume_id is None:
                volume = self._created(device)
                encryption = self._encryption(volume, device.uuid or "", encryptions)
                if volume.status in _BEING_MADE:
                    waits = True
                    continue
                if volume.status not in (volume_states.AVAILABLE, volume_states.RESERVED):
                    raise exception.InvalidVolume(reason=f"volume {volume.uuid}, created for the server, is in status "
                                                         f"{volume.status}")
                device = msgspec.structs.replace(device, volume_id=volume.uuid, encryption=encryption)
            made.append(device)
        if waits and polls >= CONF.block_device_allocate_retries:
            raise exception.InvalidVolume(reason="Cinder did not create the volumes before the time limit")
        if waits:
            raise Wait(seconds=CONF.block_device_allocate_retries_interval)
        self._ctl.volumes.record([self._reserved(device) for device in made])

    def _created(self, device: BlockDevice) -> Volume:
        """Return the volume of a new device, created if it does not exist yet and the caller's token is available."""
        def create() -> Raw:
            if existing := self._created_for(device):
                return existing[0]
            if not self._ctx.auth_token:
                raise exception.InvalidVolume(reason="the server's new volume cannot be created: the user's token is "
                                                     "no longer available; create the server again")
            return self._api.create_volume(self._ctx, {
                "size": device.size_gb, "name": f"{self._uuid}-blank-vol" if device.source == "blank" else "",
                "metadata": {_DEVICE_KEY: device.uuid},
                **({"imageRef": device.image_id} if device.image_id else {}),
                **({"snapshot_id": device.snapshot_id} if device.snapshot_id else {}),
                **({"volume_type": device.volume_type} if device.volume_type else {})})

        return to_volume(retry_now(create), self._ctl.instance.project_id)

    def _created_for(self, device: BlockDevice) -> list[Raw]:
        return self._api.having(self._ctx, "volumes", {_DEVICE_KEY: device.uuid or ""})

    def _encryption(self, volume: Volume, device: str, cached: dict[str, VolumeEncryption]) -> VolumeEncryption | None:
        """Return the encryption of the volume created for this device, with the key from the key manager. Raises
        InvalidVolume if the key was not read yet and the caller's token is no longer available."""
        if volume.encrypted and device not in cached:
            if not self._ctx.auth_token:
                raise exception.InvalidVolume(reason=(
                    f"the key of volume {volume.uuid}, created for the server, could not be read while the user's "
                    "token was available; create the server again"))
            encryption = retry_now(lambda: self._ctl.key_of(volume))
            if encryption is not None:
                cached[device] = encryption
        return cached.get(device)

    def unmake(self) -> None:
        left = []
        for device in self._ctl.instance.volume_devices:
            ours = device.source != "volume"
            self._release(device, ours)
            left.append(msgspec.structs.replace(device, volume_id=None if ours else device.volume_id,
                                                encryption=None if ours else device.encryption, attachment_id=None,
                                                connection_info={}))
        self._ctl.volumes.record(left)

    def reserve(self, device: BlockDevice, owner: str) -> BlockDevice:
        # Reserved with Nova's own rights. The caller's rights were checked before the operation was queued.
        if owner and to_volume(self._api.volume(self._ctx, device.volume_id or ""), "").project_id not in (owner, ""):
            raise exception.VolumeNotFound(volume_id=device.volume_id)
        device = self._reserved(device)
        self._ctl.volumes.record([device])
        return device

    def _reserved(self, device: BlockDevice) -> BlockDevice:
        volume = device.volume_id or ""
        attachments = self._api.attachments(self._ctx, self._uuid, volume)
        try:
            attachment = attachments[0] if attachments else self._api.create_attachment(self._ctx, volume, self._uuid)
        except exception.InvalidVolume as error:
            if device.multiattach and self._api.volume(self._ctx, volume)["status"] in _TRANSIENT:
                # Cinder attaches the volume to one server after the other: retry later.
                raise exception.VolumeServiceUnavailable(reason=error.kwargs["reason"]) from error
            raise
        return msgspec.structs.replace(device, attachment_id=attachment["id"])

    # --- connections of hosts ------------------------------------------------------------------------
    def connect(self, host: str, *devices: BlockDevice) -> list[BlockDevice]:
        connector, connected = self._connector(host), []
        for device in devices or self._ctl.instance.volume_devices:
            attachment = self._api.update_attachment(self._ctx, device.attachment_id or "",
                                                     {**connector, "mountpoint": device.device_name})
            connected.append(msgspec.structs.replace(device, connection_info=_connection(device, attachment)))
        self._ctl.volumes.record(connected)
        return connected

    def _connector(self, host: str) -> dict[str, Any]:
        connector = self._ctl.connector(host)
        if connector is None:
            LOG.error("Host %s has not reported its volume connector: Cinder volumes are unusable there", host)
            raise exception.InvalidVolume(reason="the host of the server has not reported its volume connector")
        return connector

    def disconnect(self, *devices: BlockDevice) -> None:
        self._ctl.volumes.record([
            self._disconnected(device) for device in devices or self._ctl.instance.volume_devices])

    def _disconnected(self, device: BlockDevice) -> BlockDevice:
        volume = device.volume_id or ""
        attachments = self._api.attachments(self._ctx, self._uuid, volume)
        connected = [attachment for attachment in attachments if attachment.get("connection_info")]
        reservation = next((attachment for attachment in attachments if not attachment.get("connection_info")), None)
        if reservation is None:
            for attachment in connected:
                # Cinder rejects a second attachment while the first one is incomplete.
                self._api.complete_attachment(self._ctx, attachment["id"])
            # Create the reservation before the other attachments are deleted: the volume stays reserved for the server.
            reservation = self._api.create_attachment(self._ctx, volume, self._uuid)
        for attachment in connected:
            self._api.delete_attachment(self._ctx, attachment["id"])
        return msgspec.structs.replace(device, attachment_id=reservation["id"], connection_info={})

    def connect_also(self, host: str) -> list[BlockDevice]:
        connector = self._connector(host)
        return [self._connected_also(device, connector) for device in self._ctl.instance.volume_devices
                if device.attachment_id]

    def _connected_also(self, device: BlockDevice, connector: dict[str, Any]) -> BlockDevice:
        volume = device.volume_id or ""
        for attachment in self._api.attachments(self._ctx, self._uuid, volume):
            if attachment["id"] != device.attachment_id:
                # Left by an interrupted attempt; Cinder accepts no connector for it any more.
                self._api.delete_attachment(self._ctx, attachment["id"])
            elif attachment.get("connection_info") and attachment.get("status") != "attached":
                # Cinder rejects a second attachment while the first one is incomplete.
                self._api.complete_attachment(self._ctx, attachment["id"])
        second = self._api.create_attachment(self._ctx, volume, self._uuid,
                                             {**connector, "mountpoint": device.device_name})
        self._api.complete_attachment(self._ctx, second["id"])
        return msgspec.structs.replace(device, attachment_id=second["id"], connection_info=_connection(device, second))

    def reconcile(self, host: str = "") -> None:
        connector = self._connector(host) if host else None
        settled = []
        for device in self._ctl.instance.volume_devices:
            if device.attachment_id:
                with contextlib.suppress(exception.VolumeNotFound):  # a deleted volume has no connections
                    attachments = self._api.attachments(self._ctx, self._uuid, device.volume_id)
                    others = [item["id"] for item in attachments if item["id"] != device.attachment_id]
                    if len(others) < len(attachments):
                        for other in others:
                            self._api.delete_attachment(self._ctx, other)
                    elif connector is not None:
                        device = self._connected_also(device, connector)
                    settled.append(device)
        self._ctl.volumes.record(settled)

    def complete(self, *devices: BlockDevice) -> None:
        for device in devices or self._ctl.instance.volume_devices:
            self._api.complete_attachment(self._ctx, device.attachment_id or "")

    def reimage(self, device: BlockDevice, image: Image) -> None:
        volume = device.volume_id or ""
        try:
            self._api.reimage(self._ctx, volume, image.id)
        except exception.InvalidVolume:
            # In this status the reimage is already in progress.
            if self._api.volume(self._ctx, volume)["status"] != _DOWNLOADING:
                raise

    # --- extension -----------------------------------------------------------------------------------
    def extended(self, device: BlockDevice) -> tuple[int, bool]:
        raw = self._api.volume(self._ctx, device.volume_id or "")
        if not self._is_attached(raw):
            raise exception.InvalidVolume(reason=f"volume {device.volume_id} is not attached to the server")
        if not _waits_for_guest(raw) or device.connection_info.get("driver_volume_type") != _NFS:
            return raw["size"], False
        size = whole(str(raw["metadata"][_NEW_SIZE]))
        if size is None or not raw["size"] < size <= MOST_GIB:
            raise exception.InvalidVolume(reason=f"the {_NEW_SIZE} {raw['metadata'][_NEW_SIZE]} of volume "
                                                 f"{device.volume_id} is not larger than {raw['size']} GiB")
        return size, True

    def end_extension(self, volume_id: str, size_gb: int, done: bool) -> None:
        try:
            raw = self._api.volume(self._ctx, volume_id)
            if (_waits_for_guest(raw) and self._is_attached(raw)
                    and str(size_gb) in ("0", str(raw["metadata"][_NEW_SIZE]))):
                self._api.complete_extension(self._ctx, volume_id, error=not done)
            elif done and raw["status"].startswith(volume_states.ERROR):
                raise exception.InvalidVolume(reason=f"the volume service has recorded a failed extension of volume "
                                                     f"{volume_id}, though the guest has extended the volume")
        except (exception.VolumeNotFound, exception.InvalidVolume) as error:
            if done:
                raise
            LOG.info("The failed extension of volume %s is not reported to Cinder: %s", volume_id, error)

    def _is_attached(self, raw: Raw) -> bool:
        return self._uuid in [attachment.get("server_id") for attachment in raw.get("attachments", ())]

    # --- swap ------------------------------------------------------------------------------------------
    def begin_swap(self, host: str, old: BlockDevice, new: BlockDevice) -> BlockDevice:
        self.begin_detaching(old)
        volume = to_volume(self._api.volume(self._ctx, new.volume_id or ""), "")
        return self.connect(host, msgspec.structs.replace(
            self._reserved(new), size_gb=volume.size_gb, multiattach=volume.multiattach))[0]

    def end_swap(self, old: BlockDevice, new: BlockDevice, migrates: bool, done: bool) -> None:
        # Attachments are deleted before the migration is completed, as Cinder requires.
        if done:
            self.complete(new)
            self._api.delete_attachment(self._ctx, old.attachment_id or "")
        elif new.attachment_id:
            self._api.delete_attachment(self._ctx, new.attachment_id)
        else:  # release the volume, which an interrupted attempt may have reserved
            self._release(new, delete=False)
        if migrates:
            self._end_migration(old.volume_id or "", new.volume_id or "", done)
        if not done:
            self.roll_detaching(old)

    def _end_migration(self, old: str, new: str, done: bool) -> None:
        """Complete a migration, unless the service is completing it already, in which case the caller has to retry."""
        try:
            status = self._api.volume(self._ctx, old).get("migration_status")
        except exception.VolumeNotFound:
            return
        if status == "completing":
            raise exception.VolumeServiceUnavailable(reason=f"the service is completing the migration of volume {old}")
        if status in NO_MIGRATION:
            return
        try:
            self._api.complete_migration(self._ctx, old, new, error=not done)
        except exception.VolumeNotFound:
            if done:
                raise

    # --- snapshots -------------------------------------------------------------------------------------
    # Nova's own credentials are used, since the caller's token may have expired. Only new snapshots need that token.
    def take_snapshots(self, image: Image) -> bool:
        def take() -> list[VolumeSnapshot]:
            taken = self._of_image(image)
            present = {snapshot.volume_id for snapshot in taken}
            missing = [device.volume_id or "" for device in self._ctl.instance.volumes
                       if device.volume_id not in present]
            if missing and not self._ctx.auth_token:
                raise exception.InvalidVolume(reason="the snapshots of the server's volumes cannot be created: the "
                                                     "user's token is no longer available; create the image again")
            return taken + [to_snapshot(self._api.create_snapshot(self._ctx, volume, {
                "force": True, "name": f"snapshot for {image.name}"[:_LONGEST_NAME], "description": "",
                "metadata": {_IMAGE_KEY: image.id}})) for volume in missing]

        return all(snapshot.status not in _BEING_MADE for snapshot in retry_now(take))

    def _of_image(self, image: Image) -> list[VolumeSnapshot]:
        return [to_snapshot(raw) for raw in self._api.having(self._ctx, "snapshots", {_IMAGE_KEY: image.id})]

    def snapshots(self, image: Image, polls: int) -> dict[str, VolumeSnapshot]:
        existing = self._of_image(image)
        if any(snapshot.status in _BEING_MADE for snapshot in existing):
            if polls >= CONF.block_device_allocate_retries:
                raise exception.InvalidVolume(reason="Cinder did not create the snapshots before the time limit")
            raise Wait(seconds=CONF.block_device_allocate_retries_interval, ahead=ASSISTED)
        made = {snapshot.volume_id: snapshot for snapshot in existing if snapshot.status == volume_states.AVAILABLE}
        for device in self._ctl.instance.volumes:
            if device.volume_id not in made:
                raise exception.InvalidVolume(reason=f"the volume service created no usable snapshot of volume "
                                                     f"{device.volume_id}")
        return made

    def drop_snapshots(self, image: Image) -> None:
        for snapshot in self._of_image(image):
            try:
                if snapshot.status != volume_states.DELETING:
                    self._api.delete_snapshot(self._ctx, snapshot.uuid, None)
            except exception.NotFound:
                pass
            except exception.InvalidVolume as error:
                if snapshot.status in _BUSY:
                    raise exception.VolumeServiceUnavailable(
                        reason=f"snapshot {snapshot.uuid} is {snapshot.status}") from error
                LOG.warning("Cannot delete volume snapshot %s, delete it in Cinder: %s", snapshot.uuid, error)

    def check_assisted(self, device: BlockDevice, snapshot_id: str, status: str) -> None:
        with convert_missing_snapshot(snapshot_id):
            raw = self._api.snapshot(self._ctx, snapshot_id)
        if (raw["volume_id"], raw["status"]) != (device.volume_id, status):
            raise exception.InvalidVolume(reason=f"snapshot {snapshot_id} must belong to volume {device.volume_id} and "
                                                 f"be {status}, but is {raw['status']}")

    def end_assisted(self, snapshot_id: str, status: str, done: bool) -> None:
        try:
            current = self._api.snapshot(self._ctx, snapshot_id)["status"]
            if current == status:
                self._api.update_snapshot(self._ctx, snapshot_id, status if done else _FAILED[status])
        except exception.NotFound:
            current = ""
        if done and current in _FAILED.values():
            raise exception.InvalidVolume(reason=f"the volume service has recorded a failure of snapshot "
                                                 f"{snapshot_id}, though the guest's host has finished it")
        if current != status:
            LOG.info("Volume snapshot %s is no longer %s: its result is not reported to Cinder", snapshot_id, status)

    # --- detachment and release ----------------------------------------------------------------------
    def begin_detaching(self, device: BlockDevice) -> None:
        try:
            self._api.act(self._ctx, device.volume_id or "", "os-begin_detaching")
        except exception.InvalidVolume:
            if not self._is_detaching(device):
                raise

    def roll_detaching(self, device: BlockDevice) -> None:
        try:
            if self._is_detaching(device):
                self._api.act(self._ctx, device.volume_id or "", "os-roll_detaching")
        except exception.VolumeNotFound:
            LOG.warning("Cinder deleted volume %s, though it is attached: not restoring its status", device.volume_id)

    def _is_detaching(self, device: BlockDevice) -> bool:
        """Return True if the volume is detaching, by Nova or another client: Cinder does not record which."""
        raw = self._api.volume(self._ctx, device.volume_id or "")
        attachments = {attachment.get("attachment_id") for attachment in raw.get("attachments", ())}
        return raw["status"] == volume_states.DETACHING and device.attachment_id in attachments

    def release(self, *devices: BlockDevice, keep: bool = False) -> None:
        for device in devices or self._ctl.instance.volume_devices:
            self._release(device, device.delete_on_termination and not keep)

    def _release(self, device: BlockDevice, delete: bool) -> None:
        if device.volume_id:
            volumes = [device.volume_id]
        elif device.source == "volume":
            return
        else:
            volumes = [raw["id"] for raw in self._created_for(device)]
        for volume in volumes:
            for attachment in self._api.attachments(self._ctx, self._uuid, volume):
                self._api.delete_attachment(self._ctx, attachment["id"])
            if delete:
                self._delete(volume)

    def _delete(self, volume: str) -> None:
        try:
            raw = self._api.volume(self._ctx, volume)
            if raw.get("attachments"):
                LOG.warning("Not deleting volume %s: it is attached to another server", volume)
            elif raw["status"] in (*_TRANSIENT, volume_states.IN_USE):
                # The attachment is deleted, but Cinder has not updated the status of the volume yet.
                raise exception.VolumeServiceUnavailable(reason=f"volume {volume} is still {raw['status']}")
            elif raw["status"] != volume_states.DELETING:
                self._api.delete_volume(self._ctx, volume)
        except exception.VolumeNotFound:
            pass
        except exception.InvalidVolume as error:
            LOG.warning("Cannot delete volume %s, delete it in Cinder: %s", volume, error)


def _connection(device: BlockDevice, attachment: Raw) -> ConnectionInfo:
    """Return the connection info of an attachment, as sent to a host."""
    shared = {"multiattach": True} if device.multiattach else {}
    return {**attachment["connection_info"], "volume_id": device.volume_id, **shared}


def _waits_for_guest(raw: Raw) -> bool:
    """Return True if Cinder waits until a guest has extended the volume, and False if it extends the volume itself."""
    return raw["status"] == "extending" and _NEW_SIZE in (raw.get("metadata") or {})
