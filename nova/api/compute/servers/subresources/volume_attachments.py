"""servers/{server_id}/os-volume_attachments: the volumes of a server."""

from typing import Any

from nova import exception
from nova.api.compute.servers.servers import authorize, authorized_get, operate
from nova.api.request import Request, is_true
from nova.api.router import accepts
from nova.api.validation.fields import Field, Object, Out, Plain, Query, View, listed, single
from nova.api.validation.types import ANY_QUERY, BOOLEAN, LIMIT, STRING, STRING_OR_NULL, TAG, TRUTH, UUID
from nova.objects.servers.instance import Instance
from nova.objects.volumes.volume import Attachment, AttachmentChanges

POLICY = "os_compute_api:os-volumes-attachments:"

_DEVICE = Plain(type=["string", "null"], pattern="(^/dev/x{0,1}[a-z]{0,1}d{0,1})([a-z]+)[0-9]*$")
CREATE = Object({"volumeAttachment": Field(Object({
    "volumeId": Field(UUID, required=True), "device": _DEVICE, "tag": Field(TAG, since=49),
    "delete_on_termination": Field(BOOLEAN, since=79),
}), required=True)})
UPDATE = Object({"volumeAttachment": Field(Object({
    "volumeId": Field(UUID, required=True), "device": Field(_DEVICE, since=85), "tag": Field(TAG, since=85),
    "delete_on_termination": Field(BOOLEAN, since=85), "serverId": Field(UUID, since=85), "id": Field(UUID, since=85),
}), required=True)})


def _view(ids_until: int) -> View:
    return View([
        Out("id", STRING, "volume_id", until=ids_until), Out("attachment_id", STRING_OR_NULL, since=ids_until + 1),
        Out("bdm_uuid", STRING_OR_NULL, since=ids_until + 1), Out("volumeId", STRING, "volume_id"),
        Out("serverId", STRING, "instance_uuid"), Out("device", STRING_OR_NULL, "device_name"),
        Out("tag", STRING_OR_NULL, since=70), Out("delete_on_termination", TRUTH, since=79)])


# The response to POST contains the volume's id as "id" until 2.100, and no body from 2.101.
SHOWN, CREATED = _view(88), _view(100)


def _attachments(req: Request, server: Instance) -> list[Attachment]:
    """Return the volume attachments of a server, from 2.89 without pending ones, which have no attachment id yet."""
    return [Attachment(
        volume_id=device.volume_id or "", instance_uuid=server.uuid, device_name=device.device_name,
        attachment_id=device.attachment_id, bdm_uuid=device.uuid, tag=device.tag,
        delete_on_termination=device.delete_on_termination)
        for device in server.volumes if device.attachment_id or req.version < 89]


def _attachment(req: Request, server: Instance) -> Attachment:
    """Return the attachment of the URL. Raises VolumeNotAttached."""
    for attached in _attachments(req, server):
        if attached.volume_id == req.params["id"]:
            return attached
    raise exception.VolumeNotAttached(instance_uuid=server.uuid, volume_id=req.params["id"])


@accepts(query=Query({"limit": LIMIT, "offset": LIMIT}, strict=75), answer=listed("volumeAttachments", SHOWN))
def index(req: Request) -> list[Attachment]:
    """List the volumes of a server."""
    attachments = _attachments(req, authorized_get(req, POLICY + "index"))
    limit, start = req.offset_page()
    return attachments[start:start + limit]


@accepts(query=ANY_QUERY, answer=single("volumeAttachment", SHOWN))
def show(req: Request) -> Attachment:
    """Show a volume attachment of a server."""
    return _attachment(req, authorized_get(req, POLICY + "show"))


@accepts(body=CREATE, answer=Object({"volumeAttachment": Field(CREATED, until=100)}), errors=(409,))
def create(req: Request) -> dict[str, Any] | None:
    """Attach a volume. The attachment completes after the response, when the status of the volume is in-use."""
    authorize(req, POLICY + "create")
    wanted = req.body["volumeAttachment"]
    accepted = operate(req, "attach_volume", {
        "volume_id": wanted["volumeId"], "device_name": wanted.get("device"), "tag": wanted.get("tag"),
        "delete_on_termination": is_true(wanted.get("delete_on_termination", False)),
        "shelved": req.version >= 20, "shares": req.version >= 60})
    if req.version >= 101:
        return None
    return {"volumeAttachment": CREATED.render(Attachment(**accepted.answer), req)}


@accepts(body=UPDATE, errors=(409,))
def update(req: Request) -> None:
    """Change delete_on_termination of an attached volume, or replace the volume by another one."""
    server = authorized_get(req, POLICY + ("update" if _same_volume(req) else "swap"))
    attachment, wanted = _attachment(req, server), req.body["volumeAttachment"]
    for name, value in (("id", attachment.volume_id), ("serverId", server.uuid), ("device", attachment.device_name),
                        ("tag", attachment.tag)):
        if wanted.get(name, value) != value:
            raise exception.InvalidInput(reason=f"{name} of an attachment cannot be changed.")
    ends = is_true(wanted["delete_on_termination"]) if "delete_on_termination" in wanted else None
    if not _same_volume(req):
        operate(req, "swap_volume", {"volume_id": attachment.volume_id, "new_volume_id": wanted["volumeId"],
                                     "delete_on_termination": ends})
    elif ends is not None:
        changes = AttachmentChanges(delete_on_termination=ends)
        req.clients.volumes.update_attachment(req.ctx, server.uuid, attachment.volume_id, changes, req.scope)


def _same_volume(req: Request) -> bool:
    """Return True if the request does not replace the volume. Before 2.85 every request replaces it."""
    return req.version >= 85 and req.body["volumeAttachment"]["volumeId"] == req.params["id"]


@accepts(errors=(409,))
def delete(req: Request) -> None:
    """Detach a volume from a server."""
    authorize(req, POLICY + "delete")
    operate(req, "detach_volume", {"volume_id": req.params["id"], "shelved": req.version >= 20})
