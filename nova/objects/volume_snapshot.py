"""Snapshots of volumes, as the back end that keeps them tells of them."""

from __future__ import annotations

import datetime

from nova.objects.base import Object


class VolumeSnapshot(Object, kw_only=True):
    """``status`` is the back end's own word: creating, available, deleting, error and others."""

    uuid: str
    volume_id: str
    size_gb: int
    status: str
    name: str = ""
    description: str = ""
    created_at: datetime.datetime | None = None


class SnapshotRequest(Object, kw_only=True):
    """``force``: also of a volume that a server has."""

    volume_id: str
    force: bool = False
    name: str = ""
    description: str = ""
