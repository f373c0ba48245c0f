"""Volumes and snapshots of the volume service, as nova-api shows them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nova.ec2 import ids, servers
from nova.ec2.actions import TAG_SET, Action, Call, Item, Listing, identifier, selected, tag_set
from nova.ec2.errors import Ec2Error, missing_parameter, unsupported
from nova.ec2.parameters import TAG_SPECIFICATION, Flag, Integer, Many, Text, tags_for
from nova.ec2.render import timestamp
from nova.ec2.rest import OLD, path_of
from nova.objects.accounts.ec2_id import INSTANCE

# EC2 volume type that stands for the default type of the volume service.
_STANDARD = "standard"
_STATES = {"available": "available", "in-use": "in-use", "creating": "creating", "downloading": "creating",
           "attaching": "available", "reserved": "available", "detaching": "in-use", "deleting": "deleting"}
_ATTACHMENT_STATES = {"attaching": "attaching", "detaching": "detaching"}
_SNAPSHOT_STATES = {"available": "completed", "creating": "pending", "deleting": "pending"}
# The metadata item of a volume with the ClientToken of the request that created it.
_REQUEST = "ec2:client-token"
_REMOVAL_ERRORS = {400: "VolumeInUse", 404: "InvalidVolume.NotFound", 409: "VolumeInUse"}


def _get(call: Call, number: int) -> dict[str, Any]:
    """Return a volume. Raises InvalidVolume.NotFound if the REST API does not show it to the caller."""
    volume: dict[str, Any] | None = call.rest.find(path_of("os-volumes", call.ids.uuid("vol", number)), "volume", OLD)
    if volume is None:
        raise ids.missing("vol", number)
    return volume


def tags_of(volume: Mapping[str, Any]) -> dict[str, str]:
    return {key: str(value) for key, value in (volume.get("metadata") or {}).items() if key != _REQUEST}


def _attachments(volume: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [attachment for attachment in volume["attachments"] if attachment.get("serverId")]


def _views(call: Call, volumes: list[dict[str, Any]]) -> list[Item]:
    texts = call.ids.texts("vol", (volume["id"] for volume in volumes))
    snapshots = call.ids.texts("snap", (volume["snapshotId"] for volume in volumes if volume.get("snapshotId")))
    instances = call.ids.texts(INSTANCE, (attachment["serverId"] for volume in volumes
                                          for attachment in _attachments(volume)))
    return [{
        "volumeId": texts[volume["id"]], "size": volume["size"],
        "snapshotId": snapshots.get(volume.get("snapshotId") or "", ""),
        "availabilityZone": volume["availabilityZone"], "status": _STATES.get(volume["status"], "error"),
        "createTime": timestamp(volume["createdAt"]), "volumeType": volume.get("volumeType") or _STANDARD,
        "encrypted": False, "attachmentSet": [{
            "volumeId": texts[volume["id"]], "instanceId": instances.get(attachment["serverId"]),
            "device": attachment.get("device"), "status": _ATTACHMENT_STATES.get(volume["status"], "attached"),
            "attachTime": timestamp(volume["createdAt"]), "deleteOnTermination": False}
            for attachment in _attachments(volume)],
        TAG_SET: tag_set(tags_of(volume)),
    } for volume in volumes]


def describe(call: Call) -> list[Item]:
    """List volumes."""
    volumes = call.rest.list("/os-volumes/detail", "volumes", OLD, paged="offset")
    return selected(_views(call, volumes), "vol", "volumeId", call.args["VolumeId"])


def create(call: Call) -> Mapping[str, Any]:
    """Create an empty volume, or a volume from a snapshot, by default with the size of the snapshot."""
    args = call.args
    tags = tags_for(args["TagSpecification"], "volume")
    if args["Encrypted"]:
        raise unsupported("Encrypted is not supported: the volume type decides on the encryption.")
    wanted: dict[str, Any] = {"size": args["Size"], "display_name": tags.get("Name", ""), "metadata": tags}
    if args["ClientToken"]:
        wanted["metadata"] = {**tags, _REQUEST: args["ClientToken"]}
        for volume in call.rest.list("/os-volumes/detail", "volumes", OLD, paged="offset"):
            if (volume.get("metadata") or {}).get(_REQUEST) == args["ClientToken"]:
                return _views(call, [volume])[0]
    if args["SnapshotId"] is not None:
        snapshot = get_snapshot(call, args["SnapshotId"])
        wanted |= {"snapshot_id": snapshot["id"], "size": args["Size"] or snapshot["size"]}
    if wanted["size"] is None:
        raise missing_parameter("Size")
    if args["AvailabilityZone"]:
        wanted["availability_zone"] = args["AvailabilityZone"]
    if args["VolumeType"] and args["VolumeType"] != _STANDARD:
        wanted["volume_type"] = args["VolumeType"]
    volume = call.rest.request("POST", "/os-volumes", {"volume": wanted}, OLD, codes={
        413: "VolumeLimitExceeded", 404: "InvalidParameterValue"})["volume"]
    return _views(call, [volume])[0]


def delete(call: Call) -> None:
    """Delete a volume that is not attached to an instance."""
    volume = _get(call, call.args["VolumeId"])
    call.rest.request("DELETE", path_of("os-volumes", volume["id"]), version=OLD, codes=_REMOVAL_ERRORS)


def attach(call: Call) -> Mapping[str, Any]:
    """Attach a volume to an instance."""
    args = call.args
    volume, server = _get(call, args["VolumeId"]), servers.get(call, args["InstanceId"])
    wanted = {"volumeId": volume["id"]} | ({"device": args["Device"]} if args["Device"] else {})
    made = call.rest.request(
        "POST", path_of("servers", server["id"], "os-volume_attachments"), {"volumeAttachment": wanted}, OLD, codes={
            400: "VolumeInUse" if _attachments(volume) else "InvalidParameterValue", 403: "AttachmentLimitExceeded",
            404: "InvalidVolume.NotFound", 409: "IncorrectState"})["volumeAttachment"]
    return _attachment(call, args["InstanceId"], made["device"], "attaching")


def _attachment(call: Call, instance: int, device: str | None, status: str) -> Item:
    return {"volumeId": ids.text("vol", call.args["VolumeId"]), "instanceId": ids.text(INSTANCE, instance),
            "device": device, "status": status, "attachTime": None, "deleteOnTermination": False}


def detach(call: Call) -> Mapping[str, Any]:
    """Detach a volume from its instance."""
    args, volume = call.args, _get(call, call.args["VolumeId"])
    attachments = _attachments(volume)
    if args["InstanceId"] is not None:
        server = servers.get(call, args["InstanceId"])
        attachments = [attachment for attachment in attachments if attachment["serverId"] == server["id"]]
    if not attachments:
        raise Ec2Error("IncorrectState", f"The volume '{ids.text('vol', args['VolumeId'])}' is not attached.")
    uuid = attachments[0]["serverId"]
    number = call.ids.assign(INSTANCE, [uuid])[uuid].number
    call.rest.request("DELETE", path_of("servers", uuid, "os-volume_attachments", volume["id"]), codes={
        400: "OperationNotPermitted", 403: "OperationNotPermitted", 404: "IncorrectState", 409: "IncorrectState"})
    return _attachment(call, number, attachments[0].get("device"), "detaching")


# --- snapshots --------------------------------------------------------------------------------------------
def get_snapshot(call: Call, number: int) -> dict[str, Any]:
    """Return a snapshot. Raises InvalidSnapshot.NotFound if the REST API does not show it to the caller."""
    uuid = call.ids.uuid("snap", number)
    snapshot: dict[str, Any] | None = call.rest.find(path_of("os-snapshots", uuid), "snapshot", OLD)
    if snapshot is None:
        raise ids.missing("snap", number)
    return snapshot


def _snapshot_views(call: Call, snapshots: list[dict[str, Any]]) -> list[Item]:
    texts = call.ids.texts("snap", (snapshot["id"] for snapshot in snapshots))
    volumes = call.ids.texts("vol", (snapshot["volumeId"] for snapshot in snapshots))
    return [{
        "snapshotId": texts[snapshot["id"]], "volumeId": volumes.get(snapshot["volumeId"]),
        "status": _SNAPSHOT_STATES.get(snapshot["status"], "error"), "startTime": timestamp(snapshot["createdAt"]),
        "progress": "100%" if snapshot["status"] == "available" else "0%", "ownerId": call.caller.project_id,
        "volumeSize": snapshot["size"], "description": snapshot.get("displayDescription") or "", "encrypted": False,
        TAG_SET: tag_set({"Name": snapshot["displayName"]} if snapshot.get("displayName") else {}),
    } for snapshot in snapshots]


def describe_snapshots(call: Call) -> list[Item]:
    """List the snapshots of the project's volumes."""
    snapshots = call.rest.list("/os-snapshots/detail", "snapshots", OLD, paged="offset")
    items = selected(_snapshot_views(call, snapshots), "snap", "snapshotId", call.args["SnapshotId"])
    owners = {call.caller.project_id if owner == "self" else owner for owner in call.args["Owner"]}
    return [item for item in items if not owners or item["ownerId"] in owners]


def create_snapshot(call: Call) -> Mapping[str, Any]:
    """Create a snapshot of a volume, which may be in use."""
    volume = _get(call, call.args["VolumeId"])
    tags = tags_for(call.args["TagSpecification"], "snapshot")
    if set(tags) - {"Name"}:
        raise unsupported("A snapshot can have only the tag Name.")
    snapshot = call.rest.request("POST", "/os-snapshots", {"snapshot": {
        "volume_id": volume["id"], "force": True, "display_name": tags.get("Name", ""),
        "display_description": call.args["Description"] or ""}}, OLD, codes={413: "SnapshotLimitExceeded"})["snapshot"]
    return _snapshot_views(call, [snapshot])[0]


def delete_snapshot(call: Call) -> None:
    """Delete a snapshot."""
    snapshot = get_snapshot(call, call.args["SnapshotId"])
    call.rest.request("DELETE", path_of("os-snapshots", snapshot["id"]), version=OLD, codes={
        400: "InvalidSnapshot.InUse", 404: "InvalidSnapshot.NotFound", 409: "InvalidSnapshot.InUse"})


_FILTERS = {
    "attachment.attach-time": "attachmentSet.attachTime",
    "attachment.delete-on-termination": "attachmentSet.deleteOnTermination", "attachment.device":
    "attachmentSet.device", "attachment.instance-id": "attachmentSet.instanceId", "attachment.status":
    "attachmentSet.status", "availability-zone": "availabilityZone", "create-time": "createTime",
    "encrypted": "encrypted", "size": "size", "snapshot-id": "snapshotId", "status": "status", "volume-id": "volumeId",
    "volume-type": "volumeType"}
_SNAPSHOT_FILTERS = {
    "description": "description", "owner-id": "ownerId", "progress": "progress", "snapshot-id": "snapshotId",
    "start-time": "startTime", "status": "status", "volume-id": "volumeId", "volume-size": "volumeSize",
    "encrypted": "encrypted"}
_VOLUME = identifier("vol", required=True)

ACTIONS = (
    Listing("DescribeVolumes", describe, {"VolumeId": Many(identifier("vol"))}, key="volumeSet", filters=_FILTERS,
            ident="volumeId"),
    Action("CreateVolume", create, {
        "Size": Integer(least=1), "SnapshotId": identifier("snap"), "AvailabilityZone": Text(), "VolumeType": Text(),
        "Encrypted": Flag(), "ClientToken": Text(most=64, token=True), "TagSpecification": TAG_SPECIFICATION}),
    Action("DeleteVolume", delete, {"VolumeId": _VOLUME}),
    Action("AttachVolume", attach, {
        "VolumeId": _VOLUME, "InstanceId": identifier(INSTANCE, required=True), "Device": Text()}),
    Action("DetachVolume", detach, {
        "VolumeId": _VOLUME, "InstanceId": identifier(INSTANCE), "Device": Text(), "Force": Flag()}),
    Listing("DescribeSnapshots", describe_snapshots, {
        "SnapshotId": Many(identifier("snap")), "Owner": Many(Text(), most=50), "RestorableBy": Many(Text(), most=50)},
        key="snapshotSet", filters=_SNAPSHOT_FILTERS, ident="snapshotId"),
    Action("CreateSnapshot", create_snapshot, {
        "VolumeId": _VOLUME, "Description": Text(), "TagSpecification": TAG_SPECIFICATION}),
    Action("DeleteSnapshot", delete_snapshot, {"SnapshotId": identifier("snap", required=True)}),
)
