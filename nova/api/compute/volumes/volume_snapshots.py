"""os-snapshots: the snapshots of the project's volumes."""

from typing import Any

from nova import exception
from nova.api.compute.volumes.volumes import checked_text
from nova.api.request import Request, is_true, iso_precise
from nova.api.router import accepts
from nova.api.validation.fields import Array, Field, Object, Out, View
from nova.api.validation.formats import is_uuid
from nova.api.validation.types import ANY_QUERY, BOOLEAN, INTEGER, OFFSET_QUERY, STRING, STRING_OR_NULL
from nova.objects.volumes.volume import SnapshotRequest

CREATE = Object({"snapshot": Field(Object({
    "volume_id": Field(STRING, required=True), "force": BOOLEAN, "display_name": STRING, "display_description": STRING,
}), required=True)})

SNAPSHOT = View([
    Out("id", STRING, "uuid"), Out("volumeId", STRING, "volume_id"), Out("status", STRING),
    Out("size", INTEGER, "size_gb"),
    Out("createdAt", STRING_OR_NULL, lambda snapshot, _req: iso_precise(snapshot.created_at)),
    Out("displayName", STRING, "name"), Out("displayDescription", STRING, "description"),
])
_LIST = Object({"snapshots": Array(SNAPSHOT)})
_SINGLE_SNAPSHOT = Object({"snapshot": SNAPSHOT})


def _list(req: Request) -> dict[str, Any]:
    snapshots = req.clients.volume_snapshots.index(req.ctx, *req.offset_page())
    return {"snapshots": [SNAPSHOT.render(snapshot, req) for snapshot in snapshots]}


@accepts(query=OFFSET_QUERY, answer=_LIST)
def index(req: Request) -> dict[str, Any]:
    """List the snapshots of the project's volumes."""
    return _list(req)


@accepts(query=OFFSET_QUERY, answer=_LIST)
def detail(req: Request) -> dict[str, Any]:
    """List the snapshots of the project's volumes with details."""
    return _list(req)


@accepts(query=ANY_QUERY, answer=_SINGLE_SNAPSHOT)
def show(req: Request) -> dict[str, Any]:
    """Show a snapshot of a volume."""
    snapshot = req.clients.volume_snapshots.get(req.ctx, req.uuid(exception.SnapshotNotFound, "snapshot_id"))
    return {"snapshot": SNAPSHOT.render(snapshot, req)}


@accepts(body=CREATE, answer=_SINGLE_SNAPSHOT)
def create(req: Request) -> dict[str, Any]:
    """Create a snapshot of a volume; ``force``: also of a volume in use."""
    wanted = req.body["snapshot"]
    if not is_uuid(wanted["volume_id"]):
        raise exception.VolumeNotFound(volume_id=wanted["volume_id"])
    request = SnapshotRequest(
        volume_id=wanted["volume_id"], force=is_true(wanted.get("force", False)),
        name=checked_text("display_name", wanted.get("display_name")),
        description=checked_text("display_description", wanted.get("display_description")))
    return {"snapshot": SNAPSHOT.render(req.clients.volume_snapshots.create(req.ctx, request), req)}


@accepts()
def delete(req: Request) -> None:
    """Delete a snapshot of a volume."""
    req.clients.volume_snapshots.delete(req.ctx, req.uuid(exception.SnapshotNotFound, "snapshot_id"))
