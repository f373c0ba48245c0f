"""Instances: servers of Nova."""

from __future__ import annotations

import base64
import datetime
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nova.ec2 import ids, images, servers, volumes
from nova.ec2.actions import Action, Call, Item, Listing, identifier, selected
from nova.ec2.errors import Ec2Error, bad_value, missing_parameter, unsupported
from nova.ec2.parameters import TAG_SPECIFICATION, Encoded, Flag, Integer, Kind, Many, Struct, Text, tags_for
from nova.ec2.rest import OLD, path_of
from nova.objects.accounts.ec2_id import INSTANCE
from nova.objects.base import utcnow

# Maximum number of instances that a request changes: each needs requests of its own to the REST API.
_MOST_CHANGED = 100
_IDS = Many(identifier(INSTANCE), required=True, most=_MOST_CHANGED)
_NAME = "instance"
_MISSING = ids.MISSING[INSTANCE]


def describe(call: Call) -> list[Item]:
    """List instances, including those that were terminated within the last hour."""
    numbers = call.args["InstanceId"]
    return selected(servers.views(call, servers.visible(call, numbers)), INSTANCE, "instanceId", numbers)


def _reservations(call: Call, items: list[Item]) -> list[Item]:
    """Return the reservations of instances, with the instances in them."""
    reservations: dict[str, Item] = {}
    for item in items:
        group = reservations.setdefault(item["reservationId"], {
            "reservationId": item["reservationId"], "ownerId": item["ownerId"], "groupSet": item["groupSet"],
            "instancesSet": []})
        group["instancesSet"].append({name: value for name, value in item.items() if name not in servers.INTERNAL})
    return list(reservations.values())


# --- RunInstances ----------------------------------------------------------------------------------------
def run(call: Call) -> Mapping[str, Any]:
    """Create servers by one REST request. A request with a ClientToken can be repeated."""
    args = call.args
    if args["MinCount"] > args["MaxCount"]:
        raise bad_value("MinCount", "it is greater than MaxCount.")
    if args["InstanceInitiatedShutdownBehavior"] == "terminate":
        raise unsupported("Instances that terminate on shutdown are not supported.")
    tags = tags_for(args["TagSpecification"], "instance")
    metadata = {**tags, servers.PROTECTION: "True"} if args["DisableApiTermination"] else tags
    body: dict[str, Any] = {
        "name": tags.get("Name") or _NAME, "imageRef": images.get(call, args["ImageId"])["id"],
        "flavorRef": _flavor(call, args["InstanceType"]), "metadata": metadata,
        "min_count": args["MinCount"], "max_count": args["MaxCount"], "return_reservation_id": True}
    if args["KeyName"]:
        body["key_name"] = args["KeyName"]
    if args["UserData"]:
        body["user_data"] = base64.b64encode(args["UserData"]).decode()
    if args["Placement"]["AvailabilityZone"]:
        if ":" in args["Placement"]["AvailabilityZone"]:
            raise bad_value("Placement.AvailabilityZone", "the name of a zone is expected.")
        body["availability_zone"] = args["Placement"]["AvailabilityZone"]
    groups = servers.group_names(call, args["SecurityGroupId"], args["SecurityGroup"])
    if groups:
        body["security_groups"] = [{"name": name} for name in groups]
    devices = _devices(call, args["BlockDeviceMapping"], body["imageRef"])
    if devices:
        body["block_device_mapping_v2"] = devices
    headers = {"Idempotency-Key": f"ec2-{args['ClientToken']}"} if args["ClientToken"] else {}
    answer = call.rest.request("POST", "/servers", {"server": body}, OLD, headers=headers, codes={
        413: "InstanceLimitExceeded", 404: "InvalidParameterValue"})
    created = call.rest.list("/servers/detail", "servers", reservation_id=f"^{answer['reservation_id']}$")
    items = sorted(servers.views(call, created), key=lambda item: int(item["amiLaunchIndex"]))
    return _reservations(call, items)[0] if items else {"reservationId": answer["reservation_id"]}


def _flavor(call: Call, name: str) -> str:
    """Return the id of the flavor with this name. Raises InvalidParameterValue."""
    for flavor in call.rest.list("/flavors", "flavors"):
        if flavor["name"] == name:
            return str(flavor["id"])
    raise bad_value("InstanceType", f"the type {name} does not exist.")


_EBS = Struct({"SnapshotId": identifier("snap"), "VolumeSize": Integer(least=1), "VolumeType": Text(),
               "DeleteOnTermination": Flag(), "Encrypted": Flag()})
_DEVICE = Struct({"DeviceName": Text(), "VirtualName": Text(), "NoDevice": Text(), "Ebs": _EBS})


def _devices(call: Call, mappings: Sequence[Mapping[str, Any]], image: str) -> list[dict[str, Any]]:
    """Return the block devices in the format of Nova. The root disk is always created from the image."""
    devices: list[dict[str, Any]] = []
    for position, mapping in enumerate(mappings, 1):
        ebs, virtual = mapping["Ebs"], mapping["VirtualName"]
        if mapping["NoDevice"] is not None:
            continue
        device: dict[str, Any] = {"boot_index": -1}
        if mapping["DeviceName"]:
            name = mapping["DeviceName"]
            device["device_name"] = name if name.startswith("/dev/") else f"/dev/{name}"
        if virtual is not None and virtual.startswith("ephemeral"):
            device |= {"source_type": "blank", "destination_type": "local"}
        elif virtual == "swap":
            device |= {"source_type": "blank", "destination_type": "local", "guest_format": "swap"}
        elif ebs["SnapshotId"] is not None:
            device |= {"source_type": "snapshot", "destination_type": "volume",
                       "uuid": volumes.get_snapshot(call, ebs["SnapshotId"])["id"]}
        elif ebs["VolumeSize"] is not None:
            device |= {"source_type": "blank", "destination_type": "volume"}
        else:
            raise bad_value(f"BlockDeviceMapping.{position}", "Ebs.SnapshotId, Ebs.VolumeSize or VirtualName is "
                                                              "expected.")
        if ebs["Encrypted"]:
            raise unsupported("Encrypted is not supported: the volume type decides on the encryption.")
        if ebs["VolumeSize"] is not None:
            device["volume_size"] = ebs["VolumeSize"]
        if device["destination_type"] == "volume":
            device["delete_on_termination"] = ebs["DeleteOnTermination"] is not False
        devices.append(device)
    if devices:
        devices.insert(0, {"source_type": "image", "destination_type": "local", "boot_index": 0, "uuid": image,
                           "delete_on_termination": True})
    return devices


# --- states -----------------------------------------------------------------------------------------------
def _changing(change: Callable[[Call, Mapping[str, Any]], None],
              ended: bool = False) -> Callable[[Call], Mapping[str, Any]]:
    """Return an action that changes the state of instances, but changes no instance unless all exist. ``ended``:
    instances that were terminated within the last hour count as existing."""
    def action(call: Call) -> Mapping[str, Any]:
        numbers = list(dict.fromkeys(call.args["InstanceId"]))
        current = servers.get_all(call, numbers, ended)
        items = []
        for number, server in zip(numbers, current, strict=True):
            change(call, server)
            after = call.rest.find(path_of("servers", server["id"]), "server")
            items.append({"instanceId": ids.text(INSTANCE, number),
                          "currentState": servers.state_of(after or {"status": "DELETED"}),
                          "previousState": servers.state_of(server)})
        return {"instancesSet": items}

    return action


# Actions of the REST API that start servers in other states than SHUTOFF.
_STARTS = {"PAUSED": "unpause", "SUSPENDED": "resume", "SHELVED": "unshelve", "SHELVED_OFFLOADED": "unshelve"}


def _terminate(call: Call, server: Mapping[str, Any]) -> None:
    if server["status"] == "DELETED":
        return  # nothing to do: an earlier request deleted the server
    if servers.is_protected(server):
        raise Ec2Error("OperationNotPermitted", "The instance may not be terminated. Modify its "
                                                "'disableApiTermination' attribute and try again.")
    try:
        call.rest.request("DELETE", path_of("servers", server["id"]), codes={
            404: _MISSING, 409: "OperationNotPermitted"})
    except Ec2Error as error:
        if error.code != _MISSING:
            raise


def _stop(call: Call, server: Mapping[str, Any]) -> None:
    if call.args.get("Hibernate"):
        raise unsupported("Hibernation is not supported.")
    if servers.state_of(server)["name"] != "stopped":
        servers.act(call, server["id"], "os-stop")


def _start(call: Call, server: Mapping[str, Any]) -> None:
    if server["status"] != "ACTIVE":
        servers.act(call, server["id"], _STARTS.get(server["status"], "os-start"))


def reboot(call: Call) -> None:
    """Reboot instances."""
    for server in servers.get_all(call, list(dict.fromkeys(call.args["InstanceId"]))):
        servers.act(call, server["id"], "reboot", {"type": "SOFT"})


# --- attributes -------------------------------------------------------------------------------------------
_ATTRIBUTES = ("instanceType", "kernel", "ramdisk", "userData", "disableApiTermination", "rootDeviceName",
               "instanceInitiatedShutdownBehavior", "blockDeviceMapping", "groupSet", "sourceDestCheck",
               "ebsOptimized", "productCodes")
_PROTECTED = "disableApiTermination"
# Parameters of ModifyInstanceAttribute that are declared only to refuse them with a reason.
_UNCHANGEABLE = ("InstanceType", "UserData", "InstanceInitiatedShutdownBehavior", "EbsOptimized", "SourceDestCheck")


def describe_attribute(call: Call) -> Mapping[str, Any]:
    """Show an attribute of an instance."""
    name, server = call.args["Attribute"], servers.get(call, call.args["InstanceId"])
    view = servers.views(call, [server])[0]
    answer: dict[str, Any] = {"instanceId": view["instanceId"]}
    if name in ("blockDeviceMapping", "groupSet"):
        return answer | {name: view[name]}
    if name == "productCodes":
        return answer | {name: []}
    if name == "userData":
        if "OS-EXT-SRV-ATTR:user_data" not in server:
            raise unsupported("The policies of this cloud do not allow you to read user data.")
        return answer | {name: {"value": server["OS-EXT-SRV-ATTR:user_data"]}}
    if name == "sourceDestCheck":
        raise Ec2Error("InvalidParameterCombination", "Only instances in VPCs have the attribute sourceDestCheck.")
    values = {_PROTECTED: servers.is_protected(server), "instanceInitiatedShutdownBehavior": "stop",
              "ebsOptimized": False, "kernel": None, "ramdisk": None}
    return answer | {name: {"value": values[name] if name in values else view[name]}}


def modify_attribute(call: Call) -> None:
    """Change the security groups of an instance, or its protection against TerminateInstances."""
    args, server = call.args, servers.get(call, call.args["InstanceId"])
    protected = args["DisableApiTermination"]["Value"]
    if args["Attribute"] and protected is not None:
        raise Ec2Error("InvalidParameterCombination", "A request can modify only one attribute.")
    if args["Attribute"] == _PROTECTED:
        if args["Value"] is None:
            raise missing_parameter("Value")
        protected = Flag().read(args["Value"], "Value")
    if protected is not None:
        path = path_of("servers", server["id"], "metadata")
        if protected:
            call.rest.request("POST", path, {"metadata": {servers.PROTECTION: "True"}})
        else:
            call.rest.remove(path + path_of(servers.PROTECTION))
    elif args["GroupId"]:
        _change_groups(call, server, args["GroupId"])
    elif args["Attribute"] or any(args[name]["Value"] is not None for name in _UNCHANGEABLE):
        raise unsupported("Only the security groups (GroupId) of an instance and its DisableApiTermination can be "
                          "changed.")
    else:
        raise Ec2Error("InvalidParameterCombination", "No attributes specified.")


def _change_groups(call: Call, server: Mapping[str, Any], numbers: Sequence[int]) -> None:
    wanted = set(servers.group_names(call, numbers, []))
    current = {group["name"] for group in server.get("security_groups") or ()}
    for name in sorted(wanted - current):
        servers.act(call, server["id"], "addSecurityGroup", {"name": name})
    for name in sorted(current - wanted):
        servers.act(call, server["id"], "removeSecurityGroup", {"name": name})


def reset_attribute(call: Call) -> None:
    """Refuse to reset attributes: Nova does not store their original values."""
    servers.get(call, call.args["InstanceId"])
    raise unsupported("The attributes of an instance cannot be reset.")


# --- consoles ---------------------------------------------------------------------------------------------
def console_output(call: Call) -> Mapping[str, Any]:
    """Return the console log, or an empty text if the guest has not started yet."""
    server = servers.get(call, call.args["InstanceId"])
    try:
        output = call.rest.request("POST", path_of("servers", server["id"], "action"), {"os-getConsoleOutput": {}},
                                   codes={404: "", 409: ""})["output"]
    except Ec2Error as error:
        if error.code:
            raise
        output = ""  # The guest has not started yet.
    return {"instanceId": ids.text(INSTANCE, call.args["InstanceId"]), "timestamp": _now(),
            "output": base64.b64encode(output.encode()).decode()}


def password_data(call: Call) -> Mapping[str, Any]:
    """Return the encrypted password that the guest stored."""
    server = servers.get(call, call.args["InstanceId"])
    password = call.rest.get(path_of("servers", server["id"], "os-server-password"), "password")
    return {"instanceId": ids.text(INSTANCE, call.args["InstanceId"]), "timestamp": _now(), "passwordData": password}


def _now() -> str:
    return utcnow().astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")


_FILTERS = {
    "architecture": "architecture", "availability-zone": "placement.availabilityZone",
    "block-device-mapping.device-name": "blockDeviceMapping.deviceName",
    "block-device-mapping.volume-id": "blockDeviceMapping.ebs.volumeId",
    "block-device-mapping.status": "blockDeviceMapping.ebs.status",
    "block-device-mapping.delete-on-termination": "blockDeviceMapping.ebs.deleteOnTermination",
    "dns-name": "dnsName", "group-id": "groupSet.groupId", "group-name": "groupSet.groupName",
    "image-id": "imageId", "instance-id": "instanceId", "instance-state-code": "instanceState.code",
    "instance-state-name": "instanceState.name", "instance-type": "instanceType", "instance.group-id":
    "groupSet.groupId", "instance.group-name": "groupSet.groupName", "ip-address": "ipAddress",
    "key-name": "keyName", "launch-index": "amiLaunchIndex", "launch-time": "launchTime", "owner-id": "ownerId",
    "private-dns-name": "privateDnsName", "private-ip-address": "privateIpAddress",
    "reservation-id": "reservationId", "root-device-name": "rootDeviceName", "root-device-type": "rootDeviceType",
    "state-reason-code": "stateReason.code", "virtualization-type": "virtualizationType",
    "hypervisor": "hypervisor", "tenancy": "placement.tenancy"}
_RUN: dict[str, Kind] = {
    "ImageId": identifier("ami", required=True), "MinCount": Integer(True, 1, 1000),
    "MaxCount": Integer(True, 1, 1000), "InstanceType": Text(required=True), "KeyName": Text(),
    "SecurityGroup": Many(Text(), most=50), "SecurityGroupId": Many(identifier("sg"), most=50), "UserData": Encoded(),
    "Placement": Struct({"AvailabilityZone": Text()}), "BlockDeviceMapping": Many(_DEVICE, most=50),
    "ClientToken": Text(most=64, token=True), "TagSpecification": TAG_SPECIFICATION,
    "Monitoring": Struct({"Enabled": Flag()}), "DisableApiTermination": Flag(),
    "InstanceInitiatedShutdownBehavior": Text(choices=("stop", "terminate"))}
_INSTANCE: dict[str, Kind] = {"InstanceId": identifier(INSTANCE, required=True)}
_MANY: dict[str, Kind] = {"InstanceId": _IDS}

ACTIONS = (
    Action("RunInstances", run, _RUN),
    Listing("DescribeInstances", describe, {"InstanceId": Many(identifier(INSTANCE))}, key="reservationSet",
            filters=_FILTERS, ident="instanceId", grouped=_reservations),
    Action("TerminateInstances", _changing(_terminate, ended=True), _MANY),
    Action("StopInstances", _changing(_stop), {**_MANY, "Force": Flag(), "Hibernate": Flag()}),
    Action("StartInstances", _changing(_start), _MANY),
    Action("RebootInstances", reboot, _MANY),
    Action("DescribeInstanceAttribute", describe_attribute, {
        **_INSTANCE, "Attribute": Text(required=True, choices=_ATTRIBUTES)}),
    Action("ModifyInstanceAttribute", modify_attribute, {
        **_INSTANCE, "GroupId": Many(identifier("sg"), most=50), "Attribute": Text(choices=_ATTRIBUTES),
        "Value": Text(), "InstanceType": Struct({"Value": Text()}), "DisableApiTermination": Struct({"Value": Flag()}),
        "UserData": Struct({"Value": Encoded()}), "InstanceInitiatedShutdownBehavior": Struct({"Value": Text()}),
        "EbsOptimized": Struct({"Value": Flag()}), "SourceDestCheck": Struct({"Value": Flag()})}),
    Action("ResetInstanceAttribute", reset_attribute, {**_INSTANCE, "Attribute": Text(required=True)}),
    Action("GetConsoleOutput", console_output, {**_INSTANCE, "Latest": Flag()}),
    Action("GetPasswordData", password_data, _INSTANCE),
)
