"""Snapshots of volumes as reported by the volume service."""

import datetime

from nova.objects.base import Object


class VolumeSnapshot(Object, kw_only=True):
    """A snapshot. ``status``: status of the volume service: creating, available, deleting, error and others."""

    uuid: str
    volume_id: str
    size_gb: int
    status: str
    name: str = ""
    description: str = ""
    created_at: datetime.datetime | None = None


class SnapshotRequest(Object, kw_only=True):
    """Request for a snapshot. ``force``: also of an attached volume."""

    volume_id: str
    force: bool = False
    name: str = ""
    description: str = ""
