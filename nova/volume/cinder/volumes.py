"""Cinder volumes for the deprecated API os-volumes, requested with the token of the caller."""

from __future__ import annotations

import msgspec

from nova.context import RequestContext
from nova.objects.volumes.volume import Volume
from nova.volume.cinder.api import CinderApi, Raw, check_user, convert_missing_snapshot, time_of
from nova.volume.cinder.views import to_volume


class CinderVolumes:
    """:class:`nova.volume.attachments.UserVolumes` of Cinder."""

    def __init__(self, api: CinderApi) -> None:
        self._api = api

    def index(self, ctx: RequestContext, limit: int, offset: int = 0) -> list[Volume]:
        check_user(ctx)
        return [_to_volume(raw, ctx) for raw in self._api.volumes(ctx, limit, offset)]

    def get(self, ctx: RequestContext, uuid: str) -> Volume:
        check_user(ctx)
        return _to_volume(self._api.volume(ctx, uuid, ctx.auth_token), ctx)

    def create(self, ctx: RequestContext, volume: Volume) -> Volume:
        check_user(ctx)
        wanted = {"size": volume.size_gb, "name": volume.name, "description": volume.description,
                  "volume_type": volume.volume_type, "availability_zone": volume.availability_zone,
                  "metadata": volume.metadata, "snapshot_id": volume.snapshot_id}
        with convert_missing_snapshot(volume.snapshot_id):
            return _to_volume(self._api.create_volume(
                ctx, {key: value for key, value in wanted.items() if value}, waits=True), ctx)

    def delete(self, ctx: RequestContext, uuid: str) -> None:
        check_user(ctx)
        self._api.delete_volume(ctx, uuid, ctx.auth_token)


def _to_volume(raw: Raw, ctx: RequestContext) -> Volume:
    """Convert a volume, with its first attachment."""
    attachment: Raw = next(iter(raw.get("attachments") or ()), {})
    return msgspec.structs.replace(
        to_volume(raw, ctx.project_id or ""), description=raw.get("description") or "",
        metadata={key: str(value) for key, value in (raw.get("metadata") or {}).items()},
        snapshot_id=raw.get("snapshot_id"), created_at=time_of(raw.get("created_at")),
        instance_uuid=attachment.get("server_id"), device_name=attachment.get("device"))
