"""Snapshots of Cinder's volumes, asked for with the token of the user who wants them."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Iterator

from nova import exception
from nova.context import RequestContext
from nova.objects.volume_snapshot import SnapshotRequest, VolumeSnapshot
from nova.volume.cinder_api import CinderApi, Raw


class CinderSnapshots:
    """:class:`nova.volume.attachments.Snapshots` of Cinder."""

    def __init__(self, api: CinderApi) -> None:
        self._api = api

    def index(self, ctx: RequestContext, limit: int, offset: int = 0) -> list[VolumeSnapshot]:
        _check_user(ctx)
        return [_shown(raw) for raw in self._api.snapshots(ctx, limit, offset)]

    def get(self, ctx: RequestContext, uuid: str) -> VolumeSnapshot:
        _check_user(ctx)
        with _named(uuid):
            return _shown(self._api.snapshot(ctx, uuid))

    def create(self, ctx: RequestContext, wanted: SnapshotRequest) -> VolumeSnapshot:
        _check_user(ctx)
        return _shown(self._api.create_snapshot(ctx, wanted.volume_id, {
            "force": wanted.force, "name": wanted.name, "description": wanted.description}))

    def delete(self, ctx: RequestContext, uuid: str) -> None:
        _check_user(ctx)
        with _named(uuid):
            self._api.delete_snapshot(ctx, uuid)


def _check_user(ctx: RequestContext) -> None:
    """Without a token Cinder would be asked with Nova's own, which may see what everybody has."""
    if not ctx.auth_token:
        raise exception.Forbidden("Snapshots are asked for with a token of their project.")


@contextlib.contextmanager
def _named(uuid: str) -> Iterator[None]:
    try:
        yield
    except exception.NotFound as error:
        raise exception.SnapshotNotFound(snapshot_id=uuid) from error


def _shown(raw: Raw) -> VolumeSnapshot:
    return VolumeSnapshot(
        uuid=raw["id"], volume_id=raw["volume_id"], size_gb=raw["size"], status=raw["status"],
        name=raw.get("name") or "", description=raw.get("description") or "",
        created_at=_time(raw.get("created_at")))


def _time(told: str | None) -> datetime.datetime | None:
    """Cinder tells it in UTC, and does not say so."""
    if told is None:
        return None
    made = datetime.datetime.fromisoformat(told)
    return made if made.tzinfo else made.replace(tzinfo=datetime.UTC)
