"""Images of the image service, as nova-api shows them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nova.ec2 import ids, servers
from nova.ec2.actions import TAG_SET, Action, Call, Item, Listing, identifier, selected, tag_set
from nova.ec2.errors import unsupported
from nova.ec2.parameters import TAG_SPECIFICATION, Flag, Kind, Many, Struct, Text, tags_for
from nova.ec2.render import timestamp
from nova.ec2.rest import OLD, path_of
from nova.objects.accounts.ec2_id import INSTANCE
from nova.objects.base import is_canonical

# Prefix of the image properties that store tags. A tag key can contain only the characters of property names.
TAG = "ec2_tag:"
_DESCRIPTION = "description"
_STATES = {"ACTIVE": "available", "SAVING": "pending", "ERROR": "failed", "DELETED": "deregistered"}
_SELF = "self"


def tags_of(image: Mapping[str, Any]) -> dict[str, str]:
    return {name.removeprefix(TAG): str(value) for name, value in image["metadata"].items() if name.startswith(TAG)}


def _view(call: Call, image: Mapping[str, Any], identity: str) -> Item:
    """Return an EC2 image. nova-api shows no owners: a snapshot has its server's owner, other images are public."""
    properties = image["metadata"]
    owner = properties.get("owner_id") or (call.caller.project_id if "server" in image else "")
    return {
        "imageId": identity, "imageLocation": image["name"] or "",
        "imageState": _STATES.get(image["status"], "invalid"),
        "imageOwnerId": owner, "creationDate": timestamp(image["created"]), "isPublic": "server" not in image,
        "productCodes": [], "architecture": properties.get("hw_architecture") or properties.get("architecture")
        or "x86_64", "imageType": "machine", "name": image["name"] or "",
        "description": properties.get(_DESCRIPTION, ""), "rootDeviceType": "instance-store",
        "rootDeviceName": properties.get("root_device_name") or "/dev/vda", "blockDeviceMapping": [],
        "virtualizationType": "hvm", TAG_SET: tag_set(tags_of(image)), "hypervisor": "xen"}


def describe(call: Call) -> list[Item]:
    """List images."""
    images = call.rest.list("/images/detail", "images", OLD)
    texts = call.ids.texts("ami", (image["id"] for image in images))
    items = selected((_view(call, image, texts[image["id"]]) for image in images), "ami", "imageId",
                     call.args["ImageId"])
    owners = {call.caller.project_id if owner == _SELF else owner for owner in call.args["Owner"]}
    return [item for item in items if not owners or item["imageOwnerId"] in owners]


def get(call: Call, number: int) -> dict[str, Any]:
    """Return an image. Raises InvalidAMIID.NotFound if the REST API does not show it to the caller."""
    image: dict[str, Any] | None = call.rest.find(path_of("images", call.ids.uuid("ami", number)), "image", OLD)
    if image is None:
        raise ids.missing("ami", number)
    return image


def create(call: Call) -> Mapping[str, Any]:
    """Create an image of an instance."""
    args, server = call.args, servers.get(call, call.args["InstanceId"])
    properties = {f"{TAG}{key}": value for key, value in tags_for(args["TagSpecification"], "image").items()}
    if args["Description"]:
        properties[_DESCRIPTION] = args["Description"]
    answer = servers.act(call, server["id"], "createImage", {"name": args["Name"], "metadata": properties})
    return {"imageId": call.ids.texts("ami", [answer["image_id"]])[answer["image_id"]]}


def register(_call: Call) -> None:
    """Refuse the registration of an image: images are uploaded to the image service."""
    raise unsupported("Images are registered with the image service.")


def deregister(call: Call) -> None:
    """Delete an image."""
    image = get(call, call.args["ImageId"])
    call.rest.request("DELETE", path_of("images", image["id"]), version=OLD, codes={404: "InvalidAMIID.NotFound"})


def describe_attribute(call: Call) -> Mapping[str, Any]:
    """Show an attribute of an image."""
    name, image = call.args["Attribute"], get(call, call.args["ImageId"])
    answer = {"imageId": ids.text("ami", call.args["ImageId"])}
    if name == "description":
        return answer | {name: {"value": image["metadata"].get(_DESCRIPTION, "")}}
    if name == "launchPermission":
        return answer | {name: [] if "server" in image else [{"group": "all"}]}
    if name in ("kernel", "ramdisk"):
        return answer | {name: {"value": _related(call, image["metadata"].get(f"{name}_id", ""))}}
    return answer | {name: []}


def _related(call: Call, uuid: str) -> str | None:
    """Return the EC2 id of the image that a property names, or None if the caller sees no such image."""
    shown = call.rest.find(path_of("images", uuid), "image", OLD) if is_canonical(uuid) else None
    return call.ids.texts("ami", [shown["id"]])[shown["id"]] if shown else None


def modify_attribute(call: Call) -> None:
    """Change the description of an image."""
    args, image = call.args, get(call, call.args["ImageId"])
    value = args["Description"]["Value"]
    if value is None and args["Attribute"] == "description":
        value = args["Value"]
    if value is None:
        raise unsupported("Only the description of an image can be changed here; use the image service to "
                          "change its permissions.")
    call.rest.request("POST", path_of("images", image["id"], "metadata"), {"metadata": {_DESCRIPTION: value}}, OLD,
                      codes={404: "InvalidAMIID.NotFound", 413: "ResourceLimitExceeded"})


def reset_attribute(call: Call) -> None:
    """Refuse to reset permissions, which can be changed only in the image service."""
    get(call, call.args["ImageId"])
    raise unsupported("The permissions of an image can be changed only in the image service.")


def set_tags(call: Call, uuid: str, tags: Mapping[str, str]) -> None:
    """Add tags to an image. Raises InvalidParameterValue for a key that no property can have."""
    call.rest.request("POST", path_of("images", uuid, "metadata"), {
        "metadata": {f"{TAG}{key}": value for key, value in tags.items()}}, OLD)


def remove_tag(call: Call, uuid: str, key: str) -> None:
    call.rest.remove(path_of("images", uuid, "metadata", f"{TAG}{key}"), OLD)


_FILTERS = {
    "architecture": "architecture", "creation-date": "creationDate", "description": "description",
    "hypervisor": "hypervisor", "image-id": "imageId", "image-type": "imageType", "is-public": "isPublic",
    "name": "name", "owner-id": "imageOwnerId", "root-device-name": "rootDeviceName",
    "root-device-type": "rootDeviceType", "state": "imageState", "virtualization-type": "virtualizationType"}
_IMAGE: dict[str, Kind] = {"ImageId": identifier("ami", required=True)}
_ATTRIBUTE = Text(required=True, choices=("description", "kernel", "ramdisk", "launchPermission", "productCodes",
                                          "blockDeviceMapping"))
_PERMISSION = Many(Struct({"UserId": Text(), "Group": Text()}), most=50)

ACTIONS = (
    Listing("DescribeImages", describe, {
        "ImageId": Many(identifier("ami")), "Owner": Many(Text(), most=50), "ExecutableBy": Many(Text(), most=50),
        "IncludeDeprecated": Flag()}, key="imagesSet", filters=_FILTERS, ident="imageId"),
    Action("CreateImage", create, {
        "InstanceId": identifier(INSTANCE, required=True), "Name": Text(required=True, least=1), "Description": Text(),
        "NoReboot": Flag(), "TagSpecification": TAG_SPECIFICATION}),
    Action("RegisterImage", register, {
        "ImageLocation": Text(most=1024), "Name": Text(), "Description": Text(), "Architecture": Text(),
        "RootDeviceName": Text(), "BlockDeviceMapping": Many(Struct({
            "DeviceName": Text(), "Ebs": Struct({"SnapshotId": identifier("snap")})}), most=50)}),
    Action("DeregisterImage", deregister, _IMAGE),
    Action("DescribeImageAttribute", describe_attribute, {**_IMAGE, "Attribute": _ATTRIBUTE}),
    Action("ModifyImageAttribute", modify_attribute, {
        **_IMAGE, "Attribute": Text(), "Value": Text(), "OperationType": Text(),
        "Description": Struct({"Value": Text()}),
        "UserId": Many(Text(), most=50), "UserGroup": Many(Text(), most=50),
        "LaunchPermission": Struct({"Add": _PERMISSION, "Remove": _PERMISSION})}),
    Action("ResetImageAttribute", reset_attribute, {**_IMAGE, "Attribute": Text(required=True, choices=(
        "launchPermission",))}),
)
