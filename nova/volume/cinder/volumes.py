"""Volumes and snapshots of Cinder: conversion to Nova's, and requests with the token of the caller."""

from collections.abc import Mapping
from typing import Any

import msgspec

from nova import exception
from nova.context import RequestContext
from nova.objects.base import whole
from nova.objects.images.image import Image
from nova.objects.volumes.volume import SnapshotRequest, Volume, VolumeSnapshot
from nova.volume.cinder.api import CinderApi, Raw, check_user, convert_missing_snapshot, time_of

_IMAGE_FIELDS = {"image_id": "id", "image_name": "name", "checksum": "checksum", "container_format": "container_format",
                 "disk_format": "disk_format"}
_IMAGE_NUMBERS = ("min_disk", "min_ram", "size")


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


def to_volume(raw: Raw, project_id: str) -> Volume:
    """Convert a volume of Cinder's API. ``project_id``: used if the response has no project."""
    return Volume(uuid=raw["id"], project_id=raw.get("os-vol-tenant-attr:tenant_id") or project_id, size_gb=raw["size"],
                  user_id=raw.get("user_id") or "", name=raw.get("name") or "", status=raw["status"],
                  volume_type=raw.get("volume_type"), availability_zone=raw.get("availability_zone"),
                  multiattach=bool(raw.get("multiattach")), bootable=raw.get("bootable") == "true",
                  encrypted=bool(raw.get("encrypted")), image=_image(raw.get("volume_image_metadata") or {}))


def _image(metadata: Mapping[str, Any]) -> Image | None:
    """Convert a volume's volume_image_metadata, in which all values are strings, some written by users."""
    if not metadata.get("image_id"):
        return None
    fields: dict[str, Any] = {name: str(metadata[key]) for key, name in _IMAGE_FIELDS.items() if metadata.get(key)}
    numbers = {name: whole(str(metadata.get(name, ""))) for name in _IMAGE_NUMBERS}
    fields.update({name: number for name, number in numbers.items() if number is not None})
    return Image(**fields, properties={
        key: str(value) for key, value in metadata.items() if key not in _IMAGE_FIELDS and key not in _IMAGE_NUMBERS})


def to_snapshot(raw: Raw) -> VolumeSnapshot:
    return VolumeSnapshot(uuid=raw["id"], volume_id=raw["volume_id"], size_gb=raw["size"], status=raw["status"],
                          name=raw.get("name") or "", description=raw.get("description") or "",
                          created_at=time_of(raw.get("created_at")))


def _to_volume(raw: Raw, ctx: RequestContext) -> Volume:
    """Convert a volume, with its first attachment."""
    attachment: Raw = next(iter(raw.get("attachments") or ()), {})
    return msgspec.structs.replace(to_volume(raw, ctx.project_id or ""), description=raw.get("description") or "",
                                   metadata={key: str(value) for key, value in (raw.get("metadata") or {}).items()},
                                   snapshot_id=raw.get("snapshot_id"), created_at=time_of(raw.get("created_at")),
                                   instance_uuid=attachment.get("server_id"), device_name=attachment.get("device"))
