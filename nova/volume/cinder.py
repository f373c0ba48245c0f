"""Volumes in Cinder (:class:`nova.volume.attachments.Attachments`): an attachment there says that a server has one.

Whatever was made there is found again: an attachment by the server's id and the volume's, a new volume by the id of
the server's device, which it has in its metadata. So every verb may run again after half a run.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from nova import exception
from nova.context import RequestContext
from nova.objects import volume as states
from nova.objects.base import whole
from nova.objects.image import Image
from nova.objects.instance import BlockDevice, Instance
from nova.objects.volume import ConnectionInfo, Volume, VolumeContent, VolumeRemoval
from nova.volume.cinder_api import MOST_GIB, CinderApi, Raw, at_once
from nova.volume.cinder_snapshots import CinderSnapshots
from nova.volume.cinder_views import to_volume
from nova.volume.cinder_volumes import CinderVolumes

LOG = logging.getLogger(__name__)

# The metadata by which a new volume is found again.
_MARK = "nova_device"
_DOWNLOADING = "downloading"
# Encrypted as a hypervisor can decrypt it; types of volumes may have the older names of it still.
_LUKS = ("luks", "LuksEncryptor", "nova.volume.encryptors.luks.LuksEncryptor",
         "os_brick.encryptors.luks.LuksEncryptor")
_BY_HOSTS = "front-end"
_ATTACHED = "attached"
# One server is getting the volume, or losing it.
_PASSING = (states.RESERVED, states.ATTACHING, states.DETACHING)
# What is said of a volume that is not being migrated, of one whose new place is made ready for use.
_NO_MIGRATION = (None, "none", "success", "error", "deleting")
_COMPLETING = "completing"
_EXTENDING = "extending"
# What Cinder's metadata say, in place of its users' own ones, while an extension waits for the guest (GiB).
_NEW_SIZE = "extend_new_size"
# Volumes of this kind wait so; of others such metadata are their users' alone, who write what they like.
_FILES = "nfs"


class CinderAttachments:
    """``[volume]driver`` cinder, on conductors."""

    external = True

    def __init__(self, db: object = None) -> None:
        """What is to be remembered is in the server's own row."""

    @functools.cached_property
    def _api(self) -> CinderApi:
        return CinderApi()

    @functools.cached_property
    def snapshots(self) -> CinderSnapshots:
        return CinderSnapshots(self._api)

    @functools.cached_property
    def volumes(self) -> CinderVolumes:
        return CinderVolumes(self._api)

    # --- looking -------------------------------------------------------------------------------------
    def validate(self, ctx: RequestContext, project_id: str, volume_id: str, status: str = states.AVAILABLE) -> Volume:
        raw = self._api.volume(ctx, volume_id, ctx.auth_token)
        shared = bool(raw.get("multiattach")) and status == states.AVAILABLE
        if raw["status"] != status and not (shared and raw["status"] == states.IN_USE):
            servers = ", ".join(str(each.get("server_id")) for each in raw.get("attachments", ()))
            raise exception.InvalidVolume(reason=(
                f"volume {volume_id} is already attached to instances: {servers}"
                if servers and status == states.AVAILABLE else
                f"the status of volume {volume_id} must be {status}, but is {raw['status']}"))
        return to_volume(raw, project_id)

    def restored(self, ctx: RequestContext, project_id: str, snapshot_id: str) -> Volume:
        snapshot = self.snapshots.get(ctx, snapshot_id)
        if snapshot.status != states.AVAILABLE:
            raise exception.InvalidVolume(reason=f"the status of snapshot {snapshot_id} must be available, but is "
                                                 f"{snapshot.status}")
        origin = to_volume(self._api.volume(ctx, snapshot.volume_id, ctx.auth_token), project_id)
        return Volume(uuid="", project_id=project_id, size_gb=snapshot.size_gb, bootable=origin.bootable,
                      image=origin.image, encrypted=origin.encrypted, origin=origin.uuid)

    def secret_of(self, ctx: RequestContext, volume_id: str, own_rights: bool = False) -> str:
        found = self._api.encryption(ctx, volume_id, None if own_rights else ctx.auth_token)
        secret = found.get("encryption_key_id")
        provider, place = found.get("provider"), found.get("control_location")
        if not secret and not provider:
            return ""
        if provider not in _LUKS:
            raise exception.InvalidVolume(reason=f"volume {volume_id} is encrypted by {provider or 'nobody knows what'}"
                                                 "; only luks is supported")
        if place != _BY_HOSTS:
            raise exception.InvalidVolume(reason=f"volume {volume_id} is encrypted with control_location {place}; only "
                                                 f"{_BY_HOSTS} is supported")
        if not secret:
            raise exception.InvalidVolume(reason=f"volume {volume_id} is encrypted, and has no key")
        return secret

    def is_lost(self, ctx: RequestContext, volume_id: str) -> bool:
        try:
            # With Nova's own rights: what a caller may not see is not gone.
            return bool(self._api.volume(ctx, volume_id)["status"].startswith(states.ERROR))
        except exception.VolumeNotFound:
            return True

    def owner(self, ctx: RequestContext, volume_id: str) -> str:
        return to_volume(self._api.volume(ctx, volume_id), "").project_id

    def servers(self, ctx: RequestContext, volume_id: str) -> set[str]:
        raw = self._api.volume(ctx, volume_id, ctx.auth_token)
        return {each["server_id"] for each in raw.get("attachments", ()) if each.get("server_id")}

    def hosts(self, devices: Sequence[BlockDevice], connection: object = None) -> set[str]:
        return set()

    # --- making --------------------------------------------------------------------------------------
    def create(self, ctx: RequestContext, instance: Instance, device: BlockDevice, image: Image | None,
               connection: object = None) -> Volume:
        return at_once(lambda: self._create(ctx, instance, device))

    def _create(self, ctx: RequestContext, instance: Instance, device: BlockDevice) -> Volume:
        made = self._made_for(ctx, device)
        if made:
            return to_volume(made[0], instance.project_id)
        if not ctx.auth_token:
            raise exception.InvalidVolume(reason="the server's new volume was not made while its user's token was "
                                                 "there; ask for the server once more")
        wanted = {"size": device.size_gb, "name": f"{instance.uuid}-blank-vol" if device.source == "blank" else "",
                  "metadata": {_MARK: device.uuid},
                  **({"imageRef": device.image_id} if device.image_id else {}),
                  **({"snapshot_id": device.snapshot_id} if device.snapshot_id else {}),
                  **({"volume_type": device.volume_type} if device.volume_type else {})}
        return to_volume(self._api.create_volume(ctx, wanted), instance.project_id)

    def _made_for(self, ctx: RequestContext, device: BlockDevice) -> list[Raw]:
        return self._api.volumes_with(ctx, {_MARK: device.uuid or ""})

    def reserve(self, ctx: RequestContext, instance: Instance, device: BlockDevice, status: str = states.RESERVED,
                connection: object = None) -> Volume:
        volume = device.volume_id or ""
        found = self._api.attachments(ctx, instance.uuid, volume)
        attachment = found[0] if found else self._reserved(ctx, instance, device)
        return Volume(uuid=volume, project_id=instance.project_id, size_gb=device.size_gb or 0, status=status,
                      instance_uuid=instance.uuid, attachment_id=attachment["id"])

    def _reserved(self, ctx: RequestContext, instance: Instance, device: BlockDevice) -> Raw:
        volume = device.volume_id or ""
        try:
            return self._api.create_attachment(ctx, volume, instance.uuid)
        except exception.InvalidVolume as error:
            if device.multiattach and self._api.volume(ctx, volume)["status"] in _PASSING:
                # Cinder gives it to one server after the other: our turn comes.
                raise exception.VolumeServiceUnavailable(reason=error.kwargs["reason"]) from error
            raise

    # --- the way to it -------------------------------------------------------------------------------
    def connect(self, ctx: RequestContext, instance: Instance, device: BlockDevice, host: str,
                connector: Mapping[str, Any], connection: object = None) -> BlockDevice:
        found = self._api.update_attachment(ctx, device.attachment_id or "",
                                            {**connector, "mountpoint": device.device_name})
        return msgspec.structs.replace(device, connection_info=_connection(device, found))

    def disconnect(self, ctx: RequestContext, instance: Instance, device: BlockDevice, host: str,
                   connection: object = None) -> tuple[BlockDevice, list[VolumeRemoval]]:
        volume = device.volume_id or ""
        found = self._api.attachments(ctx, instance.uuid, volume)
        ways = [each for each in found if each.get("connection_info")]
        kept = next((each for each in found if not each.get("connection_info")), None)
        if kept is None:
            for each in ways:
                # Cinder takes no second attachment while the first one is on its way.
                self._api.complete_attachment(ctx, each["id"])
            # Nobody else gets the volume in between.
            kept = self._api.create_attachment(ctx, volume, instance.uuid)
        for each in ways:
            self._api.delete_attachment(ctx, each["id"])
        return msgspec.structs.replace(device, attachment_id=kept["id"], connection_info={}), []

    def connect_also(self, ctx: RequestContext, instance: Instance, device: BlockDevice, host: str,
                     connector: Mapping[str, Any], connection: object = None) -> BlockDevice:
        volume = device.volume_id or ""
        for each in self._api.attachments(ctx, instance.uuid, volume):
            if each["id"] != device.attachment_id:
                self._api.delete_attachment(ctx, each["id"])  # from half a run: it cannot be told of a connector now
            elif each.get("connection_info") and each.get("status") != _ATTACHED:
                # Cinder takes no second attachment while the first one is on its way.
                self._api.complete_attachment(ctx, each["id"])
        second = self._api.create_attachment(ctx, volume, instance.uuid,
                                             {**connector, "mountpoint": device.device_name})
        return self.complete(ctx, msgspec.structs.replace(
            device, attachment_id=second["id"], connection_info=_connection(device, second)))

    def settle(self, ctx: RequestContext, instance: Instance, device: BlockDevice, host: str = "",
               connector: Mapping[str, Any] = {}, connection: object = None) -> BlockDevice:
        found = self._api.attachments(ctx, instance.uuid, device.volume_id)
        if device.attachment_id not in [each["id"] for each in found]:
            return self.connect_also(ctx, instance, device, host, connector) if host else device
        for each in found:
            if each["id"] != device.attachment_id:
                self._api.delete_attachment(ctx, each["id"])
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
            if self._api.volume(ctx, volume)["status"] != _DOWNLOADING:  # else it is at it already
                raise

    def end_reimage(self, ctx: RequestContext, instance: Instance, device: BlockDevice, before: VolumeContent,
                    done: bool, connection: object = None) -> tuple[BlockDevice, list[VolumeRemoval]]:
        return device, []  # whatever the service has written stays

    # --- they become larger --------------------------------------------------------------------------
    def extended(self, ctx: RequestContext, instance: Instance, device: BlockDevice) -> tuple[int, bool]:
        raw = self._api.volume(ctx, device.volume_id or "")
        if not _has(raw, instance.uuid):
            raise exception.InvalidVolume(reason=f"volume {device.volume_id} is not attached to the server")
        if not _waits(raw) or device.connection_info.get("driver_volume_type") != _FILES:
            return raw["size"], False
        size = whole(str(raw["metadata"][_NEW_SIZE]))
        if size is None or not raw["size"] < size <= MOST_GIB:
            raise exception.InvalidVolume(reason=f"volume {device.volume_id} of {raw['size']} GiB does not become "
                                                 f"larger with {_NEW_SIZE} {raw['metadata'][_NEW_SIZE]}")
        return size, True

    def end_extension(self, ctx: RequestContext, instance_uuid: str, volume_id: str, size_gb: int, done: bool) -> None:
        try:
            raw = self._api.volume(ctx, volume_id)
            if _waits(raw) and _has(raw, instance_uuid) and str(size_gb) in ("0", str(raw["metadata"][_NEW_SIZE])):
                self._api.complete_extension(ctx, volume_id, error=not done)
            elif done and raw["status"].startswith(states.ERROR):
                raise exception.InvalidVolume(reason=f"the volume service has given up the extension of volume "
                                                     f"{volume_id}, though it is done")
        except (exception.VolumeNotFound, exception.InvalidVolume) as error:
            if done:
                raise
            LOG.info("Nobody need be told that volume %s does not become larger: %s", volume_id, error)

    # --- one takes the place of another ----------------------------------------------------------------
    def check_swap(self, ctx: RequestContext, project_id: str, old: str, new: str) -> bool:
        # With Nova's own rights, as Cinder tells nobody else who migrates what.
        volume, other = self._api.volume(ctx, old), self._api.volume(ctx, new)
        if volume.get("migration_status") in _NO_MIGRATION or other.get("migration_status") != f"target:{old}":
            raise exception.VolumeNotMigrated(old=old, new=new)
        if len(volume.get("attachments", ())) > 1:
            raise exception.MultiattachSwapUnsupported()
        if other["status"] != states.AVAILABLE:
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
        """Cinder wants no attachment of a volume that is not to be used any more when a migration ends."""
        if done:
            self.complete(ctx, new)
            self._api.delete_attachment(ctx, old.attachment_id or "")
        elif new.attachment_id:
            self._api.delete_attachment(ctx, new.attachment_id)
        else:  # perhaps from half a run
            self.release(ctx, instance, new)
        if migrates:
            self._end_migration(ctx, old.volume_id or "", new.volume_id or "", done)
        if not done:
            self.roll_detaching(ctx, old)
        return (new if done else old), []

    def _end_migration(self, ctx: RequestContext, old: str, new: str, done: bool) -> None:
        """Cinder does not mind whether it hears of it twice, but it must not while it is at it."""
        try:
            status = self._api.volume(ctx, old).get("migration_status")
        except exception.VolumeNotFound:
            return
        if status == _COMPLETING:
            raise exception.VolumeServiceUnavailable(reason=f"it is completing the migration of volume {old}")
        if status in _NO_MIGRATION:
            return
        try:
            self._api.complete_migration(ctx, old, new, error=not done)
        except exception.VolumeNotFound:
            if done:
                raise

    # --- the end -------------------------------------------------------------------------------------
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
            LOG.warning("Volume %s is gone, though a server has it", device.volume_id)

    def _is_detaching(self, ctx: RequestContext, device: BlockDevice) -> bool:
        """Whether we, or somebody, said so: Cinder does not tell who."""
        raw = self._api.volume(ctx, device.volume_id or "")
        mine = [each for each in raw.get("attachments", ()) if each.get("attachment_id") == device.attachment_id]
        return raw["status"] == states.DETACHING and bool(mine)

    def release(self, ctx: RequestContext, instance: Instance, device: BlockDevice, delete: bool = False,
                connection: object = None) -> list[VolumeRemoval]:
        if device.volume_id:
            volumes = [device.volume_id]
        elif device.source == "volume":
            return []
        else:
            volumes = [raw["id"] for raw in self._made_for(ctx, device)]
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
                LOG.warning("Volume %s stays: somebody else has it, too", volume)
            elif raw["status"] in (states.RESERVED, states.ATTACHING, states.IN_USE, states.DETACHING):
                # The attachment is gone, and Cinder is about to free the volume.
                raise exception.VolumeServiceUnavailable(reason=f"volume {volume} is not free yet")
            elif raw["status"] != states.DELETING:
                self._api.delete_volume(ctx, volume)
        except exception.VolumeNotFound:
            pass
        except exception.InvalidVolume as error:
            LOG.warning("Volume %s could not be deleted: %s", volume, error)


def _connection(device: BlockDevice, found: Raw) -> ConnectionInfo:
    """What a host is told of its way to the volume."""
    shared = {"multiattach": True} if device.multiattach else {}
    return {**found["connection_info"], "volume_id": device.volume_id, **shared}


def _has(raw: Raw, instance_uuid: str) -> bool:
    return instance_uuid in [each.get("server_id") for each in raw.get("attachments", ())]


def _waits(raw: Raw) -> bool:
    """Whether Cinder waits for a guest to make the volume larger: else it tells of that only when it is done."""
    return raw["status"] == _EXTENDING and _NEW_SIZE in (raw.get("metadata") or {})
