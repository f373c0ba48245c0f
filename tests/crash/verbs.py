"""The requests of a storm's clients, their frequency, and the accepted responses."""

from __future__ import annotations

import dataclasses
import uuid as uuidlib
from typing import Any

# Relative frequency of each verb. "delete" is immediate; "soft-delete" can be restored for a while.
WEIGHTS = {
    "create": 26, "create-many": 4, "create-on-volume": 5, "delete": 10, "soft-delete": 5, "restore": 4,
    "stop": 7, "start": 7, "reboot-soft": 4, "reboot-hard": 5, "pause": 4, "unpause": 4, "suspend": 4, "resume": 4,
    "resize": 7, "migrate": 5, "confirm": 5, "revert": 5, "live-migrate": 6, "abort": 3, "force": 3, "evacuate": 3,
    "attach": 8, "detach": 5, "swap": 6, "attach-share": 7, "detach-share": 5, "attach-interface": 6,
    "detach-interface": 5, "add-group": 3, "remove-group": 3,
    "image": 3, "backup": 2, "shelve": 5, "unshelve": 6, "rescue": 5, "unrescue": 5, "rebuild": 5,
    "metadata": 4, "events": 4, "show": 4, "list": 2,
    # Requests that must be refused, and a request that is accepted but ends without a valid host.
    "no-flavor": 2, "no-name": 1, "no-action": 1, "no-server": 2, "no-room": 1,
}
# Verbs that create servers; the server is stored in the slot of the request.
CREATES = frozenset({"create", "create-many", "create-on-volume", "no-room"})
# Verbs for a running live migration, which is requested first.
STEERS = frozenset({"abort", "force"})
# Verbs for the server of an earlier request, since they would hardly ever succeed for a random server.
FOLLOWS = {"restore": "soft-delete", "unrescue": "rescue", "swap": "attach", "attach-share": "stop",
           "detach-share": "attach-share"}
# External events that no server waits for, and that must have no effect.
_EVENTS = ("network-changed", "network-vif-plugged", "network-vif-unplugged", "network-vif-deleted", "volume-extended",
           "volume-reimaged", "power-update")

_ACTIONS: dict[str, dict[str, Any]] = {
    "stop": {"os-stop": None}, "start": {"os-start": None}, "pause": {"pause": None}, "unpause": {"unpause": None},
    "suspend": {"suspend": None}, "resume": {"resume": None}, "no-action": {"explode": None},
    "reboot-soft": {"reboot": {"type": "SOFT"}}, "reboot-hard": {"reboot": {"type": "HARD"}},
    "resize": {"resize": {"flavorRef": "larger"}}, "migrate": {"migrate": None}, "confirm": {"confirmResize": None},
    "revert": {"revertResize": None}, "live-migrate": {"os-migrateLive": {"host": None, "block_migration": "auto"}},
    "image": {"createImage": {"name": "image"}}, "shelve": {"shelve": None}, "unshelve": {"unshelve": None},
    "backup": {"createBackup": {"name": "backup", "backup_type": "daily", "rotation": 2}},
    "rescue": {"rescue": None}, "unrescue": {"unrescue": None}, "evacuate": {"evacuate": {}},
    "delete": {"forceDelete": None}, "restore": {"restore": None}}

# The accepted statuses, besides 503 (a part of Nova is unavailable).
RIGHT = {
    **{verb: {202} for verb in CREATES}, "metadata": {200, 404, 409}, "show": {200, 404}, "list": {200},
    "no-flavor": {400}, "no-name": {400}, "no-server": {404},
    **{verb: {202, 404, 409} for verb in _ACTIONS}, "no-action": {400, 404},
    "delete": {202, 404}, "soft-delete": {204, 404}, "rescue": {200, 404, 409},
    "rebuild": {202, 404, 409}, "attach-interface": {200, 404, 409}, "detach-interface": {202, 404, 409},
    # 400: the same flavor; the volume belongs to another server; the volume is still being attached.
    "resize": {202, 400, 404, 409}, "attach": {202, 400, 404, 409}, "detach": {202, 400, 404, 409},
    # 400: the new volume belongs to a server, or the old volume is still being attached.
    "swap": {202, 400, 404, 409},
    # 400: the resize is being confirmed or reverted.
    "confirm": {204, 400, 404, 409}, "revert": {202, 400, 404, 409},
    "attach-share": {201, 404, 409}, "detach-share": {200, 404, 409},
    # 400: the host is up; the migration is in the wrong phase.
    "evacuate": {200, 400, 404, 409}, "abort": {202, 400, 404, 409}, "force": {202, 400, 404, 409},
    # 400: the server is already in the group, or is not in it.
    "add-group": {202, 400, 404}, "remove-group": {202, 400, 404},
    # 207: some of the servers have no host; 404: no server exists.
    "events": {200, 207, 404}}
# Additional statuses for a server that boots from a volume, which has no disk to upload or to retain.
RIGHT_ON_VOLUME = {"image": {400}, "backup": {400}, "rescue": {400}}


@dataclasses.dataclass(frozen=True)
class World:
    """Resources for servers: two images, a volume, a share, a security group."""

    images: tuple[str, str]
    volume: str
    share: str
    group: str


def request(verb: str, target: str, name: str, world: World) -> tuple[str, str, Any]:
    """Return (method, path, body). The caller appends the id of an attached resource to the path if needed."""
    path = f"/servers/{target}"
    if verb in CREATES or verb in ("no-flavor", "no-name"):
        return "POST", "/servers", {"server": _server(verb, name, world)}
    match verb:
        case "no-server":
            return "POST", f"/servers/{uuidlib.uuid4()}/action", _ACTIONS["stop"]
        case "soft-delete":
            return "DELETE", path, None
        case "attach":
            return "POST", f"{path}/os-volume_attachments", {"volumeAttachment": {"volumeId": world.volume}}
        case "detach":
            return "DELETE", f"{path}/os-volume_attachments/{world.volume}", None
        case "swap":
            return "PUT", f"{path}/os-volume_attachments", {"volumeAttachment": {"volumeId": world.volume}}
        case "attach-share":
            return "POST", f"{path}/shares", {"share": {"share_id": world.share}}
        case "detach-share":
            return "DELETE", f"{path}/shares/{world.share}", None
        case "attach-interface":
            return "POST", f"{path}/os-interface", {"interfaceAttachment": {}}
        case "detach-interface":
            return "DELETE", f"{path}/os-interface", None
        case "abort":
            return "DELETE", f"{path}/migrations", None
        case "force":
            return "POST", f"{path}/migrations", {"force_complete": None}
        case "metadata":
            return "POST", f"{path}/metadata", {"metadata": {"said": name}}
        case "show":
            return "GET", path, None
        case "list":
            return "GET", "/servers/detail", None
        case "events":
            return "POST", "/os-server-external-events", {"events": [
                {"name": event, "server_uuid": target, "tag": "POWER_OFF" if event == "power-update" else world.volume}
                for event in _EVENTS]}
    return "POST", f"{path}/action", _action(verb, name, world)


def _server(verb: str, name: str, world: World) -> dict[str, Any]:
    server: dict[str, Any] = {"name": name, "flavorRef": "tiny", "imageRef": world.images[0], "networks": "auto"}
    own: dict[str, dict[str, Any]] = {
        "create-many": {"min_count": 1, "max_count": 3}, "no-room": {"flavorRef": "huge"},
        "no-flavor": {"flavorRef": "unknown"}, "no-name": {"name": ""},
        "create-on-volume": {"block_device_mapping_v2": [{
            "boot_index": 0, "uuid": world.images[0], "source_type": "image", "destination_type": "volume",
            "volume_size": 1, "delete_on_termination": True}]}}
    if verb == "create-on-volume":
        del server["imageRef"]
    return server | own.get(verb, {})


def _action(verb: str, name: str, world: World) -> dict[str, Any]:
    match verb:
        case "rebuild":  # from the current image, or from another image
            return {"rebuild": {"imageRef": world.images[len(name) % 2]}}
        case "add-group":
            return {"addSecurityGroup": {"name": world.group}}
        case "remove-group":
            return {"removeSecurityGroup": {"name": world.group}}
    return _ACTIONS[verb]
