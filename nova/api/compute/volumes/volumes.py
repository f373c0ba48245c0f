"""os-volumes and os-snapshots: the project's volumes, embedded or of a volume service, and their snapshots."""

from typing import Any

from nova import exception
from nova.api.request import Request, is_true, iso_precise, whole
from nova.api.router import accepts
from nova.api.validation.fields import Array, Field, Object, Out, Plain, View, listed, single
from nova.api.validation.formats import is_uuid
from nova.api.validation.types import ANY_QUERY, BOOLEAN, INTEGER, OFFSET_QUERY, OPEN, STRING, STRING_OR_NULL
from nova.conf import CONF
from nova.conf.storage import EMBEDDED
from nova.objects.base import new_uuid
from nova.objects.volumes import volume as volume_states
from nova.objects.volumes.volume import SnapshotRequest, Volume, VolumeSnapshot

# Maximum number of characters of a name, a description, and a key or value of metadata.
_LONGEST = 255
# Maximum size of a volume in GiB.
_BIGGEST = 2**31 - 1

CREATE = Object({"volume": Field(Object({
    "volume_type": STRING, "metadata": OPEN, "snapshot_id": STRING,
    "size": Field(Plain(type=["integer", "string"], pattern="^[0-9]+$", minimum=1), required=True),
    "availability_zone": STRING, "display_name": STRING, "display_description": STRING,
}), required=True)})


def _attachments(volume: Volume, _req: Request) -> list[dict[str, Any]]:
    """Return the attachments of a volume; a detached one has an empty attachment, as clients expect."""
    if volume.instance_uuid is None or volume.status not in (volume_states.IN_USE, volume_states.DETACHING):
        return [{}]
    return [{"id": volume.uuid, "volumeId": volume.uuid, "serverId": volume.instance_uuid,
             "device": volume.device_name}]


VOLUME = View([
    Out("id", STRING, "uuid"), Out("status", STRING), Out("size", INTEGER, "size_gb"),
    Out("availabilityZone", STRING, lambda volume, _req: volume.availability_zone or CONF.default_availability_zone),
    Out("createdAt", STRING_OR_NULL, lambda volume, _req: iso_precise(volume.created_at)),
    Out("displayName", STRING, "name"), Out("displayDescription", STRING, "description"),
    Out("volumeType", STRING_OR_NULL, "volume_type"), Out("snapshotId", STRING_OR_NULL, "snapshot_id"),
    Out("metadata", OPEN), Out("attachments", Array(OPEN), _attachments)])
_VOLUMES, _VOLUME = listed("volumes", VOLUME), single("volume", VOLUME)


@accepts(query=OFFSET_QUERY, answer=_VOLUMES)
def index(req: Request) -> list[Volume]:
    """List the volumes of the project."""
    return req.clients.volumes.index(req.ctx, req.ctx.project_id, *req.offset_page())


@accepts(query=OFFSET_QUERY, answer=_VOLUMES)
def detail(req: Request) -> list[Volume]:
    """List the volumes of the project with details."""
    return req.clients.volumes.index(req.ctx, req.ctx.project_id, *req.offset_page())


@accepts(query=ANY_QUERY, answer=_VOLUME)
def show(req: Request) -> Volume:
    """Show a volume."""
    return req.clients.volumes.get(req.ctx, req.uuid(exception.VolumeNotFound, "volume_id"), req.scope)


@accepts(body=CREATE, answer=_VOLUME)
def create(req: Request) -> Volume:
    """Create an empty volume, or a volume from a snapshot.

    The data of an embedded volume are created on the host of the first server that uses it."""
    wanted = req.body["volume"]
    size = whole(wanted["size"])
    if size > _BIGGEST:
        raise exception.InvalidInput(f"Invalid input for field/attribute size. It is greater than {_BIGGEST}.")
    snapshot = wanted.get("snapshot_id") or None
    embedded = CONF.volume.driver in EMBEDDED
    if snapshot is not None and (embedded or not is_uuid(snapshot)):
        raise exception.SnapshotNotFound(snapshot_id=snapshot)
    if embedded and wanted.get("volume_type"):
        raise exception.VolumeTypeNotFound(volume_type=wanted["volume_type"])
    return req.clients.volumes.create(req.ctx, Volume(
        uuid=new_uuid(), project_id=req.ctx.project_id or "", user_id=req.ctx.user_id or "",
        name=_text("display_name", wanted.get("display_name")),
        description=_text("display_description", wanted.get("display_description")),
        size_gb=size, snapshot_id=snapshot, volume_type=_text("volume_type", wanted.get("volume_type")) or None,
        availability_zone=_text("availability_zone", wanted.get("availability_zone")),
        metadata={_text("metadata", key): _text("metadata", value)
                  for key, value in wanted.get("metadata", {}).items()}))


def _text(name: str, value: Any) -> str:
    """Return a text of a volume, "" for null. Raises InvalidInput naming the field."""
    text = "" if value is None else value
    if not isinstance(text, str) or len(text) > _LONGEST:
        raise exception.InvalidInput(reason=f"{name} must be text of at most {_LONGEST} characters.")
    return text


@accepts()
def delete(req: Request) -> None:
    """Delete a volume that is not attached to a server."""
    req.clients.volumes.delete(req.ctx, req.uuid(exception.VolumeNotFound, "volume_id"), req.scope)


# -- snapshots ----------------------------------------------------------------------------------------------
CREATE_SNAPSHOT = Object({"snapshot": Field(Object({
    "volume_id": Field(STRING, required=True), "force": BOOLEAN, "display_name": STRING, "display_description": STRING,
}), required=True)})
SNAPSHOT = View([
    Out("id", STRING, "uuid"), Out("volumeId", STRING, "volume_id"), Out("status", STRING),
    Out("size", INTEGER, "size_gb"),
    Out("createdAt", STRING_OR_NULL, lambda snapshot, _req: iso_precise(snapshot.created_at)),
    Out("displayName", STRING, "name"), Out("displayDescription", STRING, "description")])
_SNAPSHOTS, _SNAPSHOT = listed("snapshots", SNAPSHOT), single("snapshot", SNAPSHOT)


@accepts(query=OFFSET_QUERY, answer=_SNAPSHOTS)
def snapshots(req: Request) -> list[VolumeSnapshot]:
    """List the snapshots of the project's volumes."""
    return req.clients.volume_snapshots.index(req.ctx, *req.offset_page())


@accepts(query=OFFSET_QUERY, answer=_SNAPSHOTS)
def snapshots_detail(req: Request) -> list[VolumeSnapshot]:
    """List the snapshots of the project's volumes with details."""
    return req.clients.volume_snapshots.index(req.ctx, *req.offset_page())


@accepts(query=ANY_QUERY, answer=_SNAPSHOT)
def show_snapshot(req: Request) -> VolumeSnapshot:
    """Show a snapshot of a volume."""
    return req.clients.volume_snapshots.get(req.ctx, req.uuid(exception.SnapshotNotFound, "snapshot_id"))


@accepts(body=CREATE_SNAPSHOT, answer=_SNAPSHOT)
def create_snapshot(req: Request) -> VolumeSnapshot:
    """Create a snapshot of a volume; ``force``: also of a volume in use."""
    wanted = req.body["snapshot"]
    if not is_uuid(wanted["volume_id"]):
        raise exception.VolumeNotFound(volume_id=wanted["volume_id"])
    return req.clients.volume_snapshots.create(req.ctx, SnapshotRequest(
        volume_id=wanted["volume_id"], force=is_true(wanted.get("force", False)),
        name=_text("display_name", wanted.get("display_name")),
        description=_text("display_description", wanted.get("display_description"))))


@accepts()
def delete_snapshot(req: Request) -> None:
    """Delete a snapshot of a volume."""
    req.clients.volume_snapshots.delete(req.ctx, req.uuid(exception.SnapshotNotFound, "snapshot_id"))
