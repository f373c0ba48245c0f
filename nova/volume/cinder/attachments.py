"""The volume back end "cinder" on the conductor: requests of users, and checks of requests before they are accepted.

:mod:`nova.volume.cinder.server_volumes` changes the volumes of servers."""

import functools

from nova import exception
from nova.context import RequestContext
from nova.objects.volumes import volume as volume_states
from nova.objects.volumes.volume import SnapshotRequest, Volume, VolumeSnapshot
from nova.operations.framework.contexts import ServiceControl
from nova.volume.cinder.api import CinderApi, convert_missing_snapshot, to_full_volume, to_snapshot, to_volume
from nova.volume.cinder.server_volumes import NO_MIGRATION, CinderServerVolumes

# Providers of the encryption that hypervisors support. Volume types may still have the old names.
_LUKS = ("luks", "LuksEncryptor", "nova.volume.encryptors.luks.LuksEncryptor", "os_brick.encryptors.luks.LuksEncryptor")
_FRONT_END = "front-end"


class _UserRequests:
    """Requests with the token of the caller: Nova's own credentials could read volumes of all projects."""

    def __init__(self, api: CinderApi) -> None:
        self._client = api

    def _api(self, ctx: RequestContext) -> CinderApi:
        """Return the client of Cinder. Raises Forbidden if the caller has no token."""
        if not ctx.auth_token:
            raise exception.Forbidden("Requests for volumes and their snapshots need a token of the project.")
        return self._client


class CinderVolumes(_UserRequests):
    """:class:`nova.volume.base.UserVolumes` of Cinder."""

    def index(self, ctx: RequestContext, limit: int, offset: int = 0) -> list[Volume]:
        return [to_full_volume(raw, ctx) for raw in self._api(ctx).page(ctx, "volumes", limit, offset)]

    def get(self, ctx: RequestContext, uuid: str) -> Volume:
        return to_full_volume(self._api(ctx).volume(ctx, uuid, ctx.auth_token), ctx)

    def create(self, ctx: RequestContext, volume: Volume) -> Volume:
        wanted = {"size": volume.size_gb, "name": volume.name, "description": volume.description,
                  "volume_type": volume.volume_type, "availability_zone": volume.availability_zone,
                  "metadata": volume.metadata, "snapshot_id": volume.snapshot_id}
        with convert_missing_snapshot(volume.snapshot_id):
            return to_full_volume(self._api(ctx).create_volume(
                ctx, {key: value for key, value in wanted.items() if value}, waits=True), ctx)

    def delete(self, ctx: RequestContext, uuid: str) -> None:
        self._api(ctx).delete_volume(ctx, uuid, ctx.auth_token)


class CinderSnapshots(_UserRequests):
    """:class:`nova.volume.base.Snapshots` of Cinder."""

    def index(self, ctx: RequestContext, limit: int, offset: int = 0) -> list[VolumeSnapshot]:
        return [to_snapshot(raw) for raw in self._api(ctx).page(ctx, "snapshots", limit, offset)]

    def get(self, ctx: RequestContext, uuid: str) -> VolumeSnapshot:
        with convert_missing_snapshot(uuid):
            return to_snapshot(self._api(ctx).snapshot(ctx, uuid, ctx.auth_token))

    def create(self, ctx: RequestContext, wanted: SnapshotRequest) -> VolumeSnapshot:
        return to_snapshot(self._api(ctx).create_snapshot(ctx, wanted.volume_id, {
            "force": wanted.force, "name": wanted.name, "description": wanted.description}, waits=True))

    def delete(self, ctx: RequestContext, uuid: str) -> None:
        with convert_missing_snapshot(uuid):
            self._api(ctx).delete_snapshot(ctx, uuid, ctx.auth_token)

    def check_room(self, ctx: RequestContext, count: int) -> None:
        room = self._api(ctx).free_snapshot_quota(ctx)
        if room is not None and room < count:
            raise exception.QuotaLimit(f"Quota exceeded for snapshots of volumes: {count} are needed, and the project "
                                       f"may have {room} more.")


class CinderAttachments:
    """The conductor's part of the volume back end "cinder" (:class:`nova.volume.base.Attachments`)."""

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

    def of_server(self, ctl: ServiceControl) -> CinderServerVolumes:
        return CinderServerVolumes(self._api, ctl)

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

    def servers(self, ctx: RequestContext, volume_id: str) -> set[str]:
        raw = self._api.volume(ctx, volume_id, ctx.auth_token)
        servers = {attachment.get("server_id") for attachment in raw.get("attachments", ())}
        return {server for server in servers if server}

    def check_swap(self, ctx: RequestContext, project_id: str, old: str, new: str) -> bool:
        # Nova's own credentials, since migration_status is visible only to administrators.
        volume, other = self._api.volume(ctx, old), self._api.volume(ctx, new)
        if volume.get("migration_status") in NO_MIGRATION or other.get("migration_status") != f"target:{old}":
            raise exception.VolumeNotMigrated(old=old, new=new)
        if len(volume.get("attachments", ())) > 1:
            raise exception.MultiattachSwapUnsupported()
        if other["status"] != volume_states.AVAILABLE:
            raise exception.InvalidVolume(reason=f"the status of volume {new} must be available, but is "
                                                 f"{other['status']}")
        if other["size"] != volume["size"]:
            raise exception.InvalidVolume(reason=f"volume {new} is not as large as volume {old}")
        return True
