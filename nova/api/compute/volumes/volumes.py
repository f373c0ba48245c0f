"""os-volumes: the project's volumes, embedded or of a volume service."""

from typing import Any

from nova import exception
from nova.api.request import Request, iso_precise, whole
from nova.api.router import accepts
from nova.api.validation.fields import Array, Field, Object, Out, Plain, View
from nova.api.validation.formats import is_uuid
from nova.api.validation.types import ANY_QUERY, INTEGER, OFFSET_QUERY, OPEN, STRING, STRING_OR_NULL
from nova.conf import CONF
from nova.conf.volume import EMBEDDED
from nova.objects.base import new_uuid
from nova.objects.volumes import volume as volume_states
from nova.objects.volumes.volume import Volume

# Maximum number of characters of a name, a description, and a key or value of metadata.
_LONGEST = 255
# Maximum size in GiB.
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
    Out("metadata", OPEN), Out("attachments", Array(OPEN), _attachments),
])
_LIST = Object({"volumes": Array(VOLUME)})
_SINGLE_VOLUME = Object({"volume": VOLUME})


def _list(req: Request) -> dict[str, Any]:
    volumes = req.clients.volumes.index(req.ctx, req.ctx.project_id, *req.offset_page())
    return {"volumes": [VOLUME.render(volume, req) for volume in volumes]}


@accepts(query=OFFSET_QUERY, answer=_LIST)
def index(req: Request) -> dict[str, Any]:
    """List the volumes of the project."""
    return _list(req)


@accepts(query=OFFSET_QUERY, answer=_LIST)
def detail(req: Request) -> dict[str, Any]:
    """List the volumes of the project with details."""
    return _list(req)


@accepts(query=ANY_QUERY, answer=_SINGLE_VOLUME)
def show(req: Request) -> dict[str, Any]:
    """Show a volume."""
    volume = req.clients.volumes.get(req.ctx, req.uuid(exception.VolumeNotFound, "volume_id"), req.scope)
    return {"volume": VOLUME.render(volume, req)}


@accepts(body=CREATE, answer=_SINGLE_VOLUME)
def create(req: Request) -> dict[str, Any]:
    """Create an empty volume, or one of a snapshot; the data of an embedded one are made where a server first needs
    them."""
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
    volume = Volume(
        uuid=new_uuid(), project_id=req.ctx.project_id or "", user_id=req.ctx.user_id or "",
        name=checked_text("display_name", wanted.get("display_name")),
        description=checked_text("display_description", wanted.get("display_description")),
        size_gb=size, snapshot_id=snapshot, volume_type=checked_text("volume_type", wanted.get("volume_type")) or None,
        availability_zone=checked_text("availability_zone", wanted.get("availability_zone")),
        metadata={checked_text("metadata", key): checked_text("metadata", value)
                  for key, value in wanted.get("metadata", {}).items()})
    return {"volume": VOLUME.render(req.clients.volumes.create(req.ctx, volume), req)}


def checked_text(name: str, value: Any) -> str:
    """Return a text of a volume, "" for null. Raises InvalidInput naming the field."""
    text = "" if value is None else value
    if not isinstance(text, str) or len(text) > _LONGEST:
        raise exception.InvalidInput(reason=f"{name} must be text of at most {_LONGEST} characters.")
    return text


@accepts()
def delete(req: Request) -> None:
    """Delete a volume that no server has."""
    req.clients.volumes.delete(req.ctx, req.uuid(exception.VolumeNotFound, "volume_id"), req.scope)
