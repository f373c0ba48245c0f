"""Servers of the REST API, and their representation as instances."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nova.ec2 import ids
from nova.ec2.actions import TAG_SET, Call, Item, tag_set
from nova.ec2.render import timestamp
from nova.ec2.rest import OLD, path_of
from nova.objects.accounts.ec2_id import INSTANCE
from nova.objects.base import utcnow

Server = Mapping[str, Any]

# The metadata item of servers whose termination is disabled.
PROTECTION = "ec2:disable-api-termination"
# Elements of an item that belong to its reservation.
INTERNAL = frozenset({"reservationId", "ownerId"})
# Maximum number of servers that are read one by one; more are read as a list.
_FEW = 10
# Time for which terminated instances are listed.
_SHOWN_AFTER_DELETION = datetime.timedelta(hours=1)

PENDING, RUNNING, SHUTTING_DOWN, TERMINATED, STOPPING, STOPPED = (
    (0, "pending"), (16, "running"), (32, "shutting-down"), (48, "terminated"), (64, "stopping"), (80, "stopped"))
_BY_STATUS = {
    "BUILD": PENDING, "REBUILD": PENDING, "ACTIVE": RUNNING, "REBOOT": RUNNING, "HARD_REBOOT": RUNNING,
    "PASSWORD": RUNNING, "RESCUE": RUNNING, "MIGRATING": RUNNING, "RESIZE": RUNNING, "VERIFY_RESIZE": RUNNING,
    "REVERT_RESIZE": RUNNING, "DELETED": TERMINATED, "SOFT_DELETED": TERMINATED}
_BY_TASK = {"deleting": SHUTTING_DOWN, "soft-deleting": SHUTTING_DOWN, "powering-off": STOPPING,
            "powering-on": PENDING}


def state_of(server: Server) -> Item:
    """Return the state of an instance. Paused, suspended, shelved and failed servers count as stopped."""
    state = _BY_TASK.get(server.get("OS-EXT-STS:task_state") or "")
    if state is None or server["status"] == "DELETED":
        state = _BY_STATUS.get(server["status"], STOPPED)
    return {"code": state[0], "name": state[1]}


def is_protected(server: Server) -> bool:
    """Return True if TerminateInstances must refuse to delete the server. The REST API ignores this protection."""
    return PROTECTION in (server.get("metadata") or {})


def tags_of(server: Server) -> dict[str, str]:
    return {key: value for key, value in (server.get("metadata") or {}).items() if key != PROTECTION}


def get(call: Call, number: int) -> dict[str, Any]:
    """Return a server. Raises InvalidInstanceID.NotFound if the REST API does not show it to the caller."""
    uuid = call.ids.uuid(INSTANCE, number)
    server: dict[str, Any] | None = call.rest.find(path_of("servers", uuid), "server")
    if server is None:
        raise ids.missing(INSTANCE, number)
    return server


def get_all(call: Call, numbers: Sequence[int], ended: bool = False) -> list[dict[str, Any]]:
    """Return servers, in the order of ``numbers``; ``ended``: also those that were deleted within the last hour. Raises
    InvalidInstanceID.NotFound unless the REST API shows all of them."""
    uuids = call.ids.uuids(INSTANCE, numbers)
    servers = [call.rest.find(path_of("servers", uuid), "server") for uuid in uuids]
    deleted = {server["id"]: server for server in _ended(call)} if ended and None in servers else {}
    shown = []
    for number, uuid, server in zip(numbers, uuids, servers, strict=True):
        if (server := server or deleted.get(uuid)) is None:
            raise ids.missing(INSTANCE, number)
        shown.append(server)
    return shown


def _ended(call: Call) -> list[dict[str, Any]]:
    """Return the servers of the project that were deleted within the last hour."""
    since = (utcnow() - _SHOWN_AFTER_DELETION).strftime("%Y-%m-%dT%H:%M:%SZ")
    changed = call.rest.list("/servers/detail", "servers", **{"changes-since": since})
    return [server for server in changed if server["status"] == "DELETED"]


def act(call: Call, uuid: str, action: str, value: Any = None) -> Any:
    """Request an action of a server."""
    return call.rest.request("POST", path_of("servers", uuid, "action"), {action: value}, codes={
        404: "InvalidInstanceID.NotFound", 409: "IncorrectInstanceState"})


def visible(call: Call, numbers: Sequence[int] = ()) -> list[dict[str, Any]]:
    """Return the servers of the project, newest first, then those deleted within the last hour. If ``numbers`` are a
    few ids, only these servers are read. Raises InvalidInstanceID.NotFound for an unknown id."""
    if numbers and len(numbers) <= _FEW:
        uuids = call.ids.uuids(INSTANCE, numbers)
        servers = [call.rest.find(path_of("servers", uuid), "server") for uuid in dict.fromkeys(uuids)]
        current = [server for server in servers if server is not None]
        if len(current) == len(servers):
            return current
    else:
        current = call.rest.list("/servers/detail", "servers")
    listed = {server["id"] for server in current}
    return current + [server for server in _ended(call) if server["id"] not in listed]


def group_names(call: Call, numbers: Sequence[int], names: Sequence[str]) -> list[str]:
    """Return the names of security groups that are given by ids and by names. Raises InvalidGroup.NotFound."""
    all_names = list(names)
    for number, uuid in zip(numbers, call.ids.uuids("sg", numbers) if numbers else (), strict=True):
        group = call.rest.find(path_of("os-security-groups", uuid), "security_group", version=OLD)
        if group is None:
            raise ids.missing("sg", number)
        all_names.append(group["name"])
    return list(dict.fromkeys(all_names))


def views(call: Call, servers: Sequence[Server]) -> list[Item]:
    """Return the EC2 instances for servers that the REST API has returned to the caller."""
    identities = call.ids.assign(INSTANCE, (server["id"] for server in servers))
    images = call.ids.texts("ami", (_image(server) for server in servers))
    groups = _groups(call) if any(server.get("security_groups") for server in servers) else {}
    has_volumes = any(server.get("os-extended-volumes:volumes_attached") for server in servers)
    attached = _attachments(call, servers) if has_volumes else {}
    items = []
    for server in servers:
        identity = identities.get(server["id"])
        if identity is None:
            continue  # the server was purged in the meantime
        item = _view(server, images)
        item |= {
            "instanceId": ids.text(INSTANCE, identity.number), "reservationId": identity.reservation_id,
            "amiLaunchIndex": identity.launch_index, "rootDeviceName": identity.root_device_name or None,
            "groupSet": [{"groupId": groups.get(group["name"]), "groupName": group["name"]}
                         for group in server.get("security_groups") or ()],
            "blockDeviceMapping": attached.get(server["id"], [])}
        items.append(item)
    return items


def _image(server: Server) -> str:
    return server["image"]["id"] if isinstance(server["image"], Mapping) else ""


def _groups(call: Call) -> dict[str, str]:
    """Return the ids of the caller's security groups by name."""
    groups = call.rest.list("/os-security-groups", "security_groups", version=OLD, paged="offset")
    texts = call.ids.texts("sg", (group["id"] for group in groups))
    return {group["name"]: texts[group["id"]] for group in groups}


def _attachments(call: Call, servers: Iterable[Server]) -> dict[str, list[Item]]:
    """Return the attached volumes by server."""
    ends = {(server["id"], volume["id"]): volume.get("delete_on_termination", False) for server in servers
            for volume in server.get("os-extended-volumes:volumes_attached") or ()}
    volumes = call.rest.list("/os-volumes/detail", "volumes", version=OLD, paged="offset")
    texts = call.ids.texts("vol", (volume["id"] for volume in volumes))
    devices: dict[str, list[Item]] = {}
    for volume in volumes:
        for attachment in volume["attachments"]:
            key = (attachment.get("serverId", ""), volume["id"])
            if key in ends:
                devices.setdefault(key[0], []).append({"deviceName": attachment.get("device"), "ebs": {
                    "volumeId": texts[volume["id"]], "status": "attached", "deleteOnTermination": ends[key]}})
    return devices


def _addresses(server: Server) -> tuple[str | None, str | None]:
    """Return the first fixed and the first floating IPv4 address."""
    first: dict[str, str] = {}
    for addresses in server.get("addresses", {}).values():
        for address in addresses:
            if address["version"] == 4:
                first.setdefault(address.get("OS-EXT-IPS:type", "fixed"), address["addr"])
    return first.get("fixed"), first.get("floating")


def _view(server: Server, images: Mapping[str, str]) -> Item:
    fixed, floating = _addresses(server)
    fault = server.get("fault") if server["status"] == "ERROR" else None
    name = server.get("OS-EXT-SRV-ATTR:hostname") or server["name"]
    return {
        "instanceId": None, "reservationId": None, "ownerId": server["tenant_id"],
        "imageId": images.get(_image(server)), "instanceState": state_of(server), "privateDnsName": name,
        "dnsName": floating or "", "reason": "", "keyName": server.get("key_name"), "amiLaunchIndex": None,
        "productCodes": [], "instanceType": server["flavor"].get("original_name"),
        "launchTime": timestamp(server.get("OS-SRV-USG:launched_at") or server["created"]),
        "placement": {"availabilityZone": server.get("OS-EXT-AZ:availability_zone") or "", "tenancy": "default"},
        "monitoring": {"state": "disabled"}, "privateIpAddress": fixed, "ipAddress": floating, "groupSet": [],
        "stateReason": {"code": "Server.InternalError", "message": fault["message"]} if fault else None,
        "architecture": "x86_64", "rootDeviceType": "instance-store" if _image(server) else "ebs",
        "rootDeviceName": None, "blockDeviceMapping": [], "virtualizationType": "hvm", "hypervisor": "xen",
        TAG_SET: tag_set(tags_of(server)), "networkInterfaceSet": [], "ebsOptimized": False}
