"""Snapshots of Cinder volumes, requested with the token of the caller."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from nova import exception
from nova.context import RequestContext
from nova.objects.volumes.volume_snapshot import SnapshotRequest, VolumeSnapshot
from nova.volume.cinder.api import CinderApi, Raw, check_user, convert_missing_snapshot, retry_now, time_of

LOG = logging.getLogger(__name__)

# Metadata key with the id of the server image that a snapshot belongs to.
_IMAGE_KEY = "nova_image"
_DELETING = "deleting"
# Status of a snapshot -> status after a failure.
_FAILED = {"creating": "error", "deleting": "error_deleting"}
# Statuses in which Cinder does not delete a snapshot.
_BUSY = ("creating", "backing-up", "restoring", "updating")


class CinderSnapshots:
    """:class:`nova.volume.attachments.Snapshots` of Cinder."""

    def __init__(self, api: CinderApi) -> None:
        self._api = api

    def index(self, ctx: RequestContext, limit: int, offset: int = 0) -> list[VolumeSnapshot]:
        check_user(ctx)
        return [_to_snapshot(raw) for raw in self._api.snapshots(ctx, limit, offset)]

    def get(self, ctx: RequestContext, uuid: str) -> VolumeSnapshot:
        check_user(ctx)
        with convert_missing_snapshot(uuid):
            return _to_snapshot(self._api.snapshot(ctx, uuid, ctx.auth_token))

    def create(self, ctx: RequestContext, wanted: SnapshotRequest) -> VolumeSnapshot:
        check_user(ctx)
        return _to_snapshot(self._api.create_snapshot(ctx, wanted.volume_id, {
            "force": wanted.force, "name": wanted.name, "description": wanted.description}, waits=True))

    def delete(self, ctx: RequestContext, uuid: str) -> None:
        check_user(ctx)
        with convert_missing_snapshot(uuid):
            self._api.delete_snapshot(ctx, uuid, ctx.auth_token)

    # --- snapshots of a server image -------------------------------------------------------------------
    def check_room(self, ctx: RequestContext, count: int) -> None:
        check_user(ctx)
        room = self._api.free_snapshot_quota(ctx)
        if room is not None and room < count:
            raise exception.QuotaLimit(f"Quota exceeded for snapshots of volumes: {count} are needed, and the project "
                                       f"may have {room} more.")

    def of_image(self, ctx: RequestContext, image_id: str) -> list[VolumeSnapshot]:
        return [_to_snapshot(raw) for raw in self._api.snapshots_with(ctx, {_IMAGE_KEY: image_id})]

    def take(self, ctx: RequestContext, image_id: str, wanted: Sequence[SnapshotRequest]) -> list[VolumeSnapshot]:
        return retry_now(lambda: self._take(ctx, image_id, wanted))

    def _take(self, ctx: RequestContext, image_id: str, wanted: Sequence[SnapshotRequest]) -> list[VolumeSnapshot]:
        taken = self.of_image(ctx, image_id)
        present = {snapshot.volume_id for snapshot in taken}
        missing = [request for request in wanted if request.volume_id not in present]
        if missing and not ctx.auth_token:
            raise exception.InvalidVolume(reason="the snapshots of the server's volumes were not created before the "
                                                 "token of the request was dropped; create the image again")
        return taken + [_to_snapshot(self._api.create_snapshot(ctx, request.volume_id, {
            "force": request.force, "name": request.name, "description": request.description,
            "metadata": {_IMAGE_KEY: image_id}}))
            for request in missing]

    def drop(self, ctx: RequestContext, image_id: str) -> None:
        for snapshot in self.of_image(ctx, image_id):
            try:
                if snapshot.status != _DELETING:
                    self._api.delete_snapshot(ctx, snapshot.uuid, None)
            except exception.NotFound:
                pass
            except exception.InvalidVolume as error:
                if snapshot.status in _BUSY:
                    raise exception.VolumeServiceUnavailable(
                        reason=f"snapshot {snapshot.uuid} is {snapshot.status}") from error
                LOG.warning("Cannot delete volume snapshot %s, it remains: %s", snapshot.uuid, error)

    # --- snapshots that need the hypervisor of the guest -----------------------------------------------
    def check_assisted(self, ctx: RequestContext, volume_id: str, uuid: str, status: str) -> None:
        with convert_missing_snapshot(uuid):
            raw = self._api.snapshot(ctx, uuid)
        if (raw["volume_id"], raw["status"]) != (volume_id, status):
            raise exception.InvalidVolume(reason=f"snapshot {uuid} is not one of volume {volume_id} that is "
                                                 f"{status}: it is {raw['status']}")

    def end_assisted(self, ctx: RequestContext, uuid: str, status: str, done: bool) -> None:
        try:
            current = self._api.snapshot(ctx, uuid)["status"]
            if current == status:
                self._api.update_snapshot(ctx, uuid, status if done else _FAILED[status])
        except exception.NotFound:
            current = ""
        if done and current in _FAILED.values():
            raise exception.InvalidVolume(reason=f"the volume service has recorded a failure of snapshot {uuid}, "
                                                 f"though the guest's host has finished it")
        if current != status:
            LOG.info("Volume snapshot %s is no longer %s: its result is not reported to Cinder", uuid, status)


def _to_snapshot(raw: Raw) -> VolumeSnapshot:
    return VolumeSnapshot(
        uuid=raw["id"], volume_id=raw["volume_id"], size_gb=raw["size"], status=raw["status"],
        name=raw.get("name") or "", description=raw.get("description") or "",
        created_at=time_of(raw.get("created_at")))
