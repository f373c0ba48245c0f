"""Conversion of Cinder's volumes and snapshots to Nova's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nova.objects.base import whole
from nova.objects.images.image import Image
from nova.objects.volumes.volume import Volume
from nova.objects.volumes.volume_snapshot import VolumeSnapshot
from nova.volume.cinder.api import Raw, time_of

_IMAGE_FIELDS = {"image_id": "id", "image_name": "name", "checksum": "checksum", "container_format": "container_format",
                 "disk_format": "disk_format"}
_IMAGE_NUMBERS = ("min_disk", "min_ram", "size")


def to_volume(raw: Raw, project_id: str) -> Volume:
    """Convert a volume of Cinder's API. ``project_id``: used if the response has no project."""
    return Volume(
        uuid=raw["id"], project_id=raw.get("os-vol-tenant-attr:tenant_id") or project_id, size_gb=raw["size"],
        user_id=raw.get("user_id") or "", name=raw.get("name") or "", status=raw["status"],
        volume_type=raw.get("volume_type"), availability_zone=raw.get("availability_zone"),
        multiattach=bool(raw.get("multiattach")), bootable=raw.get("bootable") == "true",
        encrypted=bool(raw.get("encrypted")),
        image=_image(raw.get("volume_image_metadata") or {}))


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
    return VolumeSnapshot(
        uuid=raw["id"], volume_id=raw["volume_id"], size_gb=raw["size"], status=raw["status"],
        name=raw.get("name") or "", description=raw.get("description") or "",
        created_at=time_of(raw.get("created_at")))
