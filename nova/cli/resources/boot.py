"""boot: a new server, from all that may be said of one."""

from __future__ import annotations

import argparse
import base64
import os
from collections.abc import Mapping, Sequence
from typing import Any

from nova.cli import find, progress
from nova.cli.client import Nova
from nova.cli.declare import arg, flag, pairs, showing, truth
from nova.cli.errors import CommandError, UsageError
from nova.cli.resources.servers import details

# Keys of --block-device, and what the API calls them.
_DEVICE = {"id": "uuid", "source": "source_type", "dest": "destination_type", "bus": "disk_bus", "type": "device_type",
           "device": "device_name", "size": "volume_size", "format": "guest_format", "bootindex": "boot_index",
           "shutdown": "delete_on_termination", "tag": "tag", "volume_type": "volume_type"}
_NIC = ("net-id", "net-name", "port-id", "v4-fixed-ip", "v6-fixed-ip", "tag")
# From here on "networks" is not optional.
_NETWORKS_NEEDED = 37


@showing(
    arg("name", metavar="NAME", help="of the new server"),
    arg("--flavor", metavar="FLAVOR", required=True, help="name or id (nova flavor-list)"),
    arg("--image", metavar="IMAGE", help="name or id (nova image-list)"),
    pairs("--image-with", help="the image with this property"),
    arg("--boot-volume", metavar="VOLUME", help="start from this volume"),
    arg("--snapshot", metavar="SNAPSHOT", help="start from a volume that is made of this snapshot"),
    arg("--min-count", metavar="N", type=int, help="so many servers at least"),
    arg("--max-count", metavar="N", type=int, help="so many servers at most"),
    pairs("--meta", help="metadata; may be given several times"),
    arg("--key-name", metavar="NAME", help="the key pair that may log in"),
    arg("--user-data", metavar="FILE", help="what the metadata service hands to the guest"),
    arg("--availability-zone", metavar="ZONE", help="where it shall be"),
    arg("--security-groups", metavar="NAME,NAME", help="of its interfaces"),
    arg("--block-device-mapping", metavar="DEVICE=ID:TYPE:SIZE:DELETE", action="append", default=[],
        help="a volume, or a snapshot (TYPE snap); SIZE in GiB"),
    arg("--block-device", metavar="KEY=VALUE,…", action="append", default=[],
        help=f"a disk; keys: {', '.join(_DEVICE)}"),
    arg("--swap", metavar="MIB", type=int, help="a local swap disk"),
    arg("--ephemeral", metavar="size=GIB[,format=FORMAT]", action="append", default=[], help="a local disk"),
    pairs("--hint", help="a hint to the scheduler; may be given several times"),
    arg("--nic", metavar="auto|none|KEY=VALUE,…", action="append", default=[],
        help=f"an interface; keys: {', '.join(_NIC)} (default: auto)"),
    arg("--config-drive", metavar="BOOLEAN", type=truth, help="with a disk that holds its metadata"),
    arg("--admin-pass", metavar="PASSWORD", help="of the guest's administrator"),
    arg("--access-ip-v4", metavar="ADDRESS", help="an address under which it can be reached"),
    arg("--access-ip-v6", metavar="ADDRESS", help="an address under which it can be reached"),
    arg("--description", metavar="TEXT", since=19),
    arg("--tags", metavar="TAG,TAG", since=52),
    flag("--return-reservation-id", help="show the id of the reservation instead of a server"),
    arg("--trusted-image-certificate-id", metavar="ID", action="append", since=63,
        help="a certificate that the image's signature may be of"),
    arg("--host", metavar="HOST", since=74, help="on this host (administrators)"),
    arg("--hypervisor-hostname", metavar="NAME", since=74, help="on this node (administrators)"),
    arg("--hostname", metavar="NAME", since=90, help="the host name that the metadata service tells"),
    flag("--poll", help="wait until it runs, and show how far it is"))
def boot(nova: Nova, args: argparse.Namespace) -> Any:
    """Boot a new server."""
    server = _server(nova, args)
    body: dict[str, Any] = {"server": server}
    if args.hint:
        body["os:scheduler_hints"] = _hints(args.hint)
    created = nova.post("/servers", body)
    if args.return_reservation_id:
        return {"reservation_id": created["reservation_id"]}
    made = created["server"]
    if args.poll:
        progress.wait(nova, made["id"], "building", ("ACTIVE",))
    return details(nova, made["id"], **{name: made[name] for name in ("adminPass",) if name in made})


def _server(nova: Nova, args: argparse.Namespace) -> dict[str, Any]:
    image = _image(nova, args)
    if image is None and not (args.boot_volume or args.snapshot or args.block_device or args.block_device_mapping):
        raise UsageError("What shall it start from? Give --image, --boot-volume, --snapshot or --block-device")
    values = {
        "name": args.name, "flavorRef": find.flavor(nova, args.flavor)["id"], "imageRef": image,
        "min_count": args.min_count, "max_count": args.max_count, "metadata": dict(args.meta) or None,
        "key_name": args.key_name, "user_data": file_of(args.user_data) if args.user_data else None,
        "availability_zone": args.availability_zone, "networks": _networks(nova, args.nic),
        "security_groups": [{"name": name} for name in args.security_groups.split(",")] if args.security_groups
        else None,
        "block_device_mapping_v2": _devices(args, image) or None, "config_drive": args.config_drive,
        "adminPass": args.admin_pass, "accessIPv4": args.access_ip_v4, "accessIPv6": args.access_ip_v6,
        "description": args.description, "tags": args.tags.split(",") if args.tags else None,
        "return_reservation_id": args.return_reservation_id or None,
        "trusted_image_certificates": certificates(args.trusted_image_certificate_id), "host": args.host,
        "hypervisor_hostname": args.hypervisor_hostname, "hostname": args.hostname}
    return {name: value for name, value in values.items() if value is not None}


def file_of(path: str) -> str:
    """A file as the API wants it. Raises CommandError if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return base64.b64encode(file.read()).decode()
    except OSError as error:
        raise CommandError(f"Cannot read {path}: {error.strerror}") from error


def certificates(given: Sequence[str] | None) -> list[str] | None:
    """What was given, else the ids in OS_TRUSTED_IMAGE_CERTIFICATE_IDS."""
    from_environment = os.environ.get("OS_TRUSTED_IMAGE_CERTIFICATE_IDS", "")
    return list(given or []) or [one for one in from_environment.split(",") if one] or None


def _image(nova: Nova, args: argparse.Namespace) -> str | None:
    if args.image:
        return str(find.image(nova, args.image)["id"])
    if not args.image_with:
        return None
    fitting = [image for image in find.images(nova) if all(
        str({**image, **image.get("metadata", {})}.get(name)) == value for name, value in args.image_with)]
    if not fitting:
        wanted = ", ".join("=".join(one) for one in args.image_with)
        raise CommandError(f"No image has {wanted}; nova image-list shows all")
    return str(fitting[0]["id"])


def _hints(given: Sequence[tuple[str, str]]) -> dict[str, Any]:
    hints: dict[str, Any] = {}
    for name, value in given:
        known = hints.get(name)
        hints[name] = value if known is None else [*(known if isinstance(known, list) else [known]), value]
    return hints


# --- networks ----------------------------------------------------------------------------------------
def _networks(nova: Nova, given: Sequence[str]) -> Any:
    alone = [one for one in given if one in ("auto", "none")]
    if alone and len(given) > 1:
        raise UsageError(f"--nic {alone[0]} excludes any other --nic")
    if alone:
        return alone[0]
    if not given:
        return "auto" if nova.version >= _NETWORKS_NEEDED else None
    return [_nic(nova, words("--nic", one, _NIC)) for one in given]


def _nic(nova: Nova, said: Mapping[str, str]) -> dict[str, str]:
    if sum(name in said for name in ("net-id", "net-name", "port-id")) != 1:
        raise UsageError("--nic wants one of net-id, net-name and port-id")
    if "v4-fixed-ip" in said and "v6-fixed-ip" in said:
        raise UsageError("--nic wants one of v4-fixed-ip and v6-fixed-ip")
    if "port-id" in said:
        nic = {"port": said["port-id"]}
    else:
        nic = {"uuid": said.get("net-id") or str(find.network(nova, said["net-name"])["id"])}
    fixed = said.get("v4-fixed-ip") or said.get("v6-fixed-ip")
    return nic | ({"fixed_ip": fixed} if fixed else {}) | ({"tag": said["tag"]} if "tag" in said else {})


def words(option: str, text: str, known: Sequence[str]) -> dict[str, str]:
    """KEY=VALUE,KEY=VALUE. Raises UsageError, which names the option."""
    said = {}
    for word in text.split(","):
        key, equals, value = word.partition("=")
        if not equals or key not in known:
            raise UsageError(f"{option} {text}: {word!r} is not KEY=VALUE with a key of {', '.join(known)}")
        said[key] = value
    return said


# --- disks -------------------------------------------------------------------------------------------
def _devices(args: argparse.Namespace, image: str | None) -> list[dict[str, Any]]:
    devices: list[dict[str, Any]] = []
    if args.boot_volume:
        devices.append(_device(args.boot_volume, "volume", 0, delete_on_termination=False))
    if args.snapshot:
        devices.append(_device(args.snapshot, "snapshot", 0, delete_on_termination=False))
    devices += [_mapped(one, bool(image or devices)) for one in args.block_device_mapping]
    devices += [_described(one) for one in args.block_device]
    devices += [_local(words("--ephemeral", one, ("size", "format"))) for one in args.ephemeral]
    if args.swap:
        devices.append({**_local({"size": args.swap}), "guest_format": "swap"})
    if devices and image:
        devices.insert(0, {**_device(image, "image", 0), "destination_type": "local"})
    return devices


def _device(uuid: str, source: str, boot_index: int, **more: Any) -> dict[str, Any]:
    return {"uuid": uuid, "source_type": source, "destination_type": "volume", "boot_index": boot_index,
            "delete_on_termination": True, **more}


def _local(said: Mapping[str, Any]) -> dict[str, Any]:
    if "size" not in said:
        raise UsageError("--ephemeral wants size=GIB")
    made = {"source_type": "blank", "destination_type": "local", "boot_index": -1, "delete_on_termination": True,
            "volume_size": _number("size", said["size"])}
    return made | ({"guest_format": said["format"]} if "format" in said else {})


def _mapped(text: str, others: bool) -> dict[str, Any]:
    name, equals, rest = text.partition("=")
    uuid, kind, size, delete = [*rest.split(":"), "", "", ""][:4]
    if not equals or not uuid:
        raise UsageError(f"--block-device-mapping {text}: not DEVICE=ID:TYPE:SIZE:DELETE")
    made = _device(uuid, "snapshot" if kind.startswith("snap") else "volume", -1 if others else 0, device_name=name,
                   delete_on_termination=delete not in ("", "0"))
    return made | ({"volume_size": _number("SIZE", size)} if size else {})


def _described(text: str) -> dict[str, Any]:
    said = words("--block-device", text, tuple(_DEVICE))
    made: dict[str, Any] = {_DEVICE[key]: value for key, value in said.items()}
    for name in ("volume_size", "boot_index"):
        if name in made:
            made[name] = _number(name, made[name])
    if "delete_on_termination" in made:
        made["delete_on_termination"] = made["delete_on_termination"] == "remove"
    elif made.get("destination_type") == "local":
        made["delete_on_termination"] = True
    return {"boot_index": -1, **made}


def _number(name: str, text: Any) -> int:
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"{name}: {text!r} is not a number") from None
