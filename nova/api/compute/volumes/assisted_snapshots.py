"""os-assisted-volume-snapshots: snapshots of volume files in use by a guest, requested by the volume service."""

from typing import Any

import msgspec

from nova import exception
from nova.api.errors import as_invalid
from nova.api.request import Request
from nova.api.router import accepts
from nova.api.validation.fields import Field, Object, Query, enum, string
from nova.api.validation.formats import is_uuid
from nova.api.validation.types import STRING

_TEXT = string(minLength=1)
_TYPE = "qcow2"
_LONGEST_NAME = 255
CREATE = Object({"snapshot": Field(Object({
    "volume_id": Field(_TEXT, required=True),
    "create_info": Field(Object({
        "snapshot_id": Field(_TEXT, required=True), "type": Field(enum(_TYPE), required=True),
        "new_file": Field(_TEXT, required=True), "id": _TEXT,
    }), required=True),
}), required=True)})


@accepts(body=CREATE, answer=Object({"snapshot": Object({"id": STRING, "volumeId": STRING})}))
def create(req: Request) -> dict[str, Any]:
    """Switch the guest of a volume to the file ``new_file``, whose backing file is the current file of the volume."""
    wanted = req.body["snapshot"]
    volume, create_info = wanted["volume_id"], wanted["create_info"]
    if not is_uuid(create_info["snapshot_id"]):
        raise exception.InvalidInput(reason="snapshot_id is not a UUID.")
    request = {"volume_id": volume, "snapshot_id": create_info["snapshot_id"],
               "new_file": _name("new_file", create_info["new_file"])}
    _operate(req, volume, "volume_snapshot_create", request)
    return {"snapshot": {"id": create_info.get("id", create_info["snapshot_id"]), "volumeId": volume}}


@accepts(query=Query({"delete_info": STRING}, strict=75))
def delete(req: Request) -> None:
    """Merge a file of a volume into another one while the guest uses them."""
    delete_info, ident = _delete_info(req.arg("delete_info")), req.params["id"]
    if not is_uuid(ident):
        raise exception.SnapshotNotFound(snapshot_id=ident)
    _operate(req, delete_info.pop("volume_id"), "volume_snapshot_delete", {"snapshot_id": ident, **delete_info})


def _operate(req: Request, volume: str, name: str, request: dict[str, Any]) -> None:
    """Start an operation on the server of a volume. Raises Invalid for errors that are 404 or 409 elsewhere."""
    with as_invalid(exception.Conflict, exception.VolumeNotAttached, exception.VolumeNotFound,
                    exception.InstanceNotFound):
        server = req.clients.volume_snapshots.server_of(req.ctx, volume) if is_uuid(volume) else None
        if server is None:
            raise exception.Invalid(f"No server has volume {volume}.")
        req.clients.servers.operate(req.ctx, server, name, {"volume_id": volume, **request})


def _delete_info(text: str | None) -> dict[str, Any]:
    try:
        info = msgspec.json.decode(text or "")  # msgspec rejects characters that a response cannot contain.
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise exception.InvalidInput(reason="delete_info is not JSON.") from error
    if not isinstance(info, dict) or not isinstance(info.get("volume_id"), str):
        raise exception.InvalidInput(reason="delete_info has no volume_id.")
    if info.get("type", _TYPE) != _TYPE:
        raise exception.InvalidInput(reason=f"type in delete_info is not {_TYPE}.")
    top, base = (_name(name, info[name]) if info.get(name) is not None else None
                 for name in ("file_to_merge", "merge_target_file"))
    if base is not None and top is None:
        raise exception.InvalidInput(reason="delete_info has a merge_target_file, but no file_to_merge.")
    return {"volume_id": info["volume_id"], "file_to_merge": top, "merge_target_file": base}


def _name(field: str, given: object) -> str:
    """Return ``given`` if it is a file name without a directory. Raises InvalidInput naming the field."""
    if (not isinstance(given, str) or not given.isprintable() or "/" in given or given in ("", ".", "..")
            or len(given.encode()) > _LONGEST_NAME):
        raise exception.InvalidInput(reason=f"{field} must be a file name without a directory.")
    return given
