"""Snapshots of Cinder's volumes, asked for with the token of the user who wants them."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from nova import exception
from nova.context import RequestContext
from nova.objects.volume_snapshot import SnapshotRequest, VolumeSnapshot
from nova.volume.cinder_api import CinderApi, Raw, at_once, check_user, named_snapshot, time_of

LOG = logging.getLogger(__name__)

# The metadata by which those of an image of a server are found again.
_MARK = "nova_image"
_DELETING = "deleting"
# What becomes of one that is in this status when it fails.
_FAILED = {"creating": "error", "deleting": "error_deleting"}
# In these Cinder does not delete it yet.
_BUSY = ("creating", "backing-up", "restoring", "updating")


class CinderSnapshots:
    """:class:`nova.volume.attachments.Snapshots` of Cinder."""

    def __init__(self, api: CinderApi) -> None:
        self._api = api

    def index(self, ctx: RequestContext, limit: int, offset: int = 0) -> list[VolumeSnapshot]:
        check_user(ctx)
        return [_shown(raw) for raw in self._api.snapshots(ctx, limit, offset)]

    def get(self, ctx: RequestContext, uuid: str) -> VolumeSnapshot:
        check_user(ctx)
        with named_snapshot(uuid):
            return _shown(self._api.snapshot(ctx, uuid, ctx.auth_token))

    def create(self, ctx: RequestContext, wanted: SnapshotRequest) -> VolumeSnapshot:
        check_user(ctx)
        return _shown(self._api.create_snapshot(ctx, wanted.volume_id, {
            "force": wanted.force, "name": wanted.name, "description": wanted.description}, waits=True))

    def delete(self, ctx: RequestContext, uuid: str) -> None:
        check_user(ctx)
        with named_snapshot(uuid):
            self._api.delete_snapshot(ctx, uuid, ctx.auth_token)

    # --- those that an image of a server consists of ---------------------------------------------------
    def check_room(self, ctx: RequestContext, count: int) -> None:
        check_user(ctx)
        room = self._api.room_for_snapshots(ctx)
        if room is not None and room < count:
            raise exception.QuotaLimit(f"Quota exceeded for snapshots of volumes: {count} are needed, and the project "
                                       f"may have {room} more.")

    def of_image(self, ctx: RequestContext, image_id: str) -> list[VolumeSnapshot]:
        return [_shown(raw) for raw in self._api.snapshots_with(ctx, {_MARK: image_id})]

    def take(self, ctx: RequestContext, image_id: str, wanted: Sequence[SnapshotRequest]) -> list[VolumeSnapshot]:
        return at_once(lambda: self._take(ctx, image_id, wanted))

    def _take(self, ctx: RequestContext, image_id: str, wanted: Sequence[SnapshotRequest]) -> list[VolumeSnapshot]:
        taken = self.of_image(ctx, image_id)
        there = {snapshot.volume_id for snapshot in taken}
        missing = [each for each in wanted if each.volume_id not in there]
        if missing and not ctx.auth_token:
            raise exception.InvalidVolume(reason="the snapshots of the server's volumes were not made while its user's "
                                                 "token was there; ask for the image once more")
        return taken + [_shown(self._api.create_snapshot(ctx, each.volume_id, {
            "force": each.force, "name": each.name, "description": each.description, "metadata": {_MARK: image_id}}))
            for each in missing]

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
                LOG.warning("Snapshot %s of a volume could not be deleted: %s", snapshot.uuid, error)


    # --- those for which Cinder's driver needs the guest's hypervisor ----------------------------------
    def check_assisted(self, ctx: RequestContext, volume_id: str, uuid: str, status: str) -> None:
        with named_snapshot(uuid):
            raw = self._api.snapshot(ctx, uuid)
        if (raw["volume_id"], raw["status"]) != (volume_id, status):
            raise exception.InvalidVolume(reason=f"snapshot {uuid} is not one of volume {volume_id} that is "
                                                 f"{status}: it is {raw['status']}")

    def end_assisted(self, ctx: RequestContext, uuid: str, status: str, done: bool) -> None:
        try:
            found = self._api.snapshot(ctx, uuid)["status"]
            if found == status:
                self._api.update_snapshot(ctx, uuid, status if done else _FAILED[status])
        except exception.NotFound:
            found = ""
        if done and found in _FAILED.values():
            raise exception.InvalidVolume(reason=f"the volume service has given up snapshot {uuid}, though it is done")
        if found != status:
            LOG.info("Snapshot %s of a volume is not %s any more: there is nobody to be told how that ended", uuid,
                     status)


def _shown(raw: Raw) -> VolumeSnapshot:
    return VolumeSnapshot(
        uuid=raw["id"], volume_id=raw["volume_id"], size_gb=raw["size"], status=raw["status"],
        name=raw.get("name") or "", description=raw.get("description") or "",
        created_at=time_of(raw.get("created_at")))
