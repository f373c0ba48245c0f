"""Snapshots of Cinder volumes, requested with the token of the caller."""

from __future__ import annotations

from nova import exception
from nova.context import RequestContext
from nova.objects.volumes.volume_snapshot import SnapshotRequest, VolumeSnapshot
from nova.volume.cinder.api import CinderApi, check_user, convert_missing_snapshot
from nova.volume.cinder.views import to_snapshot


class CinderSnapshots:
    """:class:`nova.volume.attachments.Snapshots` of Cinder."""

    def __init__(self, api: CinderApi) -> None:
        self._api = api

    def index(self, ctx: RequestContext, limit: int, offset: int = 0) -> list[VolumeSnapshot]:
        check_user(ctx)
        return [to_snapshot(raw) for raw in self._api.snapshots(ctx, limit, offset)]

    def get(self, ctx: RequestContext, uuid: str) -> VolumeSnapshot:
        check_user(ctx)
        with convert_missing_snapshot(uuid):
            return to_snapshot(self._api.snapshot(ctx, uuid, ctx.auth_token))

    def create(self, ctx: RequestContext, wanted: SnapshotRequest) -> VolumeSnapshot:
        check_user(ctx)
        return to_snapshot(self._api.create_snapshot(ctx, wanted.volume_id, {
            "force": wanted.force, "name": wanted.name, "description": wanted.description}, waits=True))

    def delete(self, ctx: RequestContext, uuid: str) -> None:
        check_user(ctx)
        with convert_missing_snapshot(uuid):
            self._api.delete_snapshot(ctx, uuid, ctx.auth_token)

    def check_room(self, ctx: RequestContext, count: int) -> None:
        check_user(ctx)
        room = self._api.free_snapshot_quota(ctx)
        if room is not None and room < count:
            raise exception.QuotaLimit(f"Quota exceeded for snapshots of volumes: {count} are needed, and the project "
                                       f"may have {room} more.")
