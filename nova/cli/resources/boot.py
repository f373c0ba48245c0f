"""Commands that boot, rebuild, rescue and resize servers, and manage passwords of guests."""

import argparse
import base64
import getpass
import os
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from nova.cli import find, progress
from nova.cli.client import Nova
from nova.cli.declare import SERVER, arg, doing, either, flag, pairs, showing, truth, without_none
from nova.cli.errors import CommandError, UsageError
from nova.cli.resources.servers import MINIMAL, details

# Keys of --block-device, with the names of the fields in the API.
_DEVICE = {"id": "uuid", "source": "source_type", "dest": "destination_type", "bus": "disk_bus", "type": "device_type",
           "device": "device_name", "size": "volume_size", "format": "guest_format", "bootindex": "boot_index",
           "shutdown": "delete_on_termination", "tag": "tag", "volume_type": "volume_type"}
_NIC = ("net-id", "net-name", "port-id", "v4-fixed-ip", "v6-fixed-ip", "tag")
# The first minor microversion that requires "networks".
_NETWORKS_NEEDED = 37


@showing(
    arg("name", metavar="NAME", help="name of the new server"),
    arg("--flavor", metavar="FLAVOR", required=True, help="name or id of the flavor (see nova flavor-list)"),
    arg("--image", metavar="IMAGE", help="name or id of the image (see nova image-list)"),
    pairs("--image-with", help="boot from an image with this property"),
    arg("--boot-volume", metavar="VOLUME", help="boot from this volume"),
    arg("--snapshot", metavar="SNAPSHOT", help="boot from a new volume created from this snapshot"),
    arg("--min-count", metavar="N", type=int, help="minimum number of servers"),
    arg("--max-count", metavar="N", type=int, help="maximum number of servers"),
    pairs("--meta", help="metadata of the server; may be repeated"),
    arg("--key-name", metavar="NAME", help="key pair for logins to the guest"),
    arg("--user-data", metavar="FILE", help="file with user data for the guest"),
    arg("--availability-zone", metavar="ZONE", help="availability zone of the server"),
    arg("--security-groups", metavar="NAME,NAME", help="security groups of the interfaces"),
    arg("--block-device-mapping", metavar="DEVICE=ID:TYPE:SIZE:DELETE", action="append", default=[],
        help="attach a volume, or a new volume from a snapshot (TYPE snap); SIZE in GiB"),
    arg("--block-device", metavar="KEY=VALUE,…", action="append", default=[],
        help=f"add a disk; keys: {', '.join(_DEVICE)}"),
    arg("--swap", metavar="MIB", type=int, help="size of a local swap disk"),
    arg("--ephemeral", metavar="size=GIB[,format=FORMAT]", action="append", default=[], help="add a local disk"),
    pairs("--hint", help="scheduler hint; may be repeated"),
    arg("--nic", metavar="auto|none|KEY=VALUE,…", action="append", default=[],
        help=f"add an interface; keys: {', '.join(_NIC)} (default: auto)"),
    arg("--config-drive", metavar="BOOLEAN", type=truth, help="provide the metadata on a config drive"),
    arg("--admin-pass", metavar="PASSWORD", help="password of the guest administrator"),
    arg("--access-ip-v4", metavar="ADDRESS", help="IPv4 address for access to the server"),
    arg("--access-ip-v6", metavar="ADDRESS", help="IPv6 address for access to the server"),
    arg("--description", metavar="TEXT", since=19),
    arg("--tags", metavar="TAG,TAG", since=52),
    flag("--return-reservation-id", help="show the reservation id instead of the server"),
    arg("--trusted-image-certificate-id", metavar="ID", action="append", since=63,
        help="id of a certificate trusted for the image signature"),
    arg("--host", metavar="HOST", since=74, help="create the server on this host (administrators)"),
    arg("--hypervisor-hostname", metavar="NAME", since=74, help="create the server on this node (administrators)"),
    arg("--hostname", metavar="NAME", since=90, help="host name that the metadata service reports to the guest"),
    flag("--poll", help="report the progress until the server is active"))
def boot(nova: Nova, args: argparse.Namespace) -> Any:
    """Boot a new server."""
    body: dict[str, Any] = {"server": _server(nova, args)}
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
        raise UsageError("No boot source: specify --image, --boot-volume, --snapshot or --block-device")
    return without_none({
        "name": args.name, "flavorRef": find.flavor(nova, args.flavor)["id"], "imageRef": image,
        "min_count": args.min_count, "max_count": args.max_count, "metadata": dict(args.meta) or None,
        "key_name": args.key_name, "user_data": _file_of(args.user_data) if args.user_data else None,
        "availability_zone": args.availability_zone, "networks": _networks(nova, args.nic),
        "security_groups": [{"name": name} for name in args.security_groups.split(",")] if args.security_groups
        else None,
        "block_device_mapping_v2": _devices(args, image) or None, "config_drive": args.config_drive,
        "adminPass": args.admin_pass, "accessIPv4": args.access_ip_v4, "accessIPv6": args.access_ip_v6,
        "description": args.description, "tags": args.tags.split(",") if args.tags else None,
        "return_reservation_id": args.return_reservation_id or None,
        "trusted_image_certificates": _certificates(args.trusted_image_certificate_id), "host": args.host,
        "hypervisor_hostname": args.hypervisor_hostname, "hostname": args.hostname})


def _file_of(path: str) -> str:
    """Return the contents of a file in base64. Raises CommandError if the file cannot be read."""
    try:
        with open(path, "rb") as file:
            return base64.b64encode(file.read()).decode()
    except OSError as error:
        raise CommandError(f"Cannot read {path}: {error.strerror}") from error


def _certificates(given: Sequence[str] | None) -> list[str] | None:
    """Return the certificate ids of the options, or else of OS_TRUSTED_IMAGE_CERTIFICATE_IDS, or None."""
    from_environment = os.environ.get("OS_TRUSTED_IMAGE_CERTIFICATE_IDS", "")
    return list(given or []) or [certificate for certificate in from_environment.split(",") if certificate] or None


def _image(nova: Nova, args: argparse.Namespace) -> str | None:
    if args.image:
        return str(find.image(nova, args.image)["id"])
    if not args.image_with:
        return None
    fitting = [image for image in find.images(nova) if all(
        str({**image, **image.get("metadata", {})}.get(name)) == value for name, value in args.image_with)]
    if not fitting:
        wanted = ", ".join("=".join(pair) for pair in args.image_with)
        raise CommandError(f"No image has the properties {wanted}; nova image-list lists the images")
    return str(fitting[0]["id"])


def _hints(given: Sequence[tuple[str, str]]) -> dict[str, Any]:
    hints: dict[str, Any] = {}
    for name, value in given:
        previous = hints.get(name)
        hints[name] = value if previous is None else [*(previous if isinstance(previous, list) else [previous]), value]
    return hints


def _networks(nova: Nova, given: Sequence[str]) -> Any:
    exclusive = [option for option in given if option in ("auto", "none")]
    if exclusive and len(given) > 1:
        raise UsageError(f"--nic {exclusive[0]} excludes any other --nic")
    if exclusive:
        return exclusive[0]
    if not given:
        return "auto" if nova.version >= _NETWORKS_NEEDED else None
    return [_nic(nova, words("--nic", option, _NIC)) for option in given]


def _nic(nova: Nova, keys: Mapping[str, str]) -> dict[str, str]:
    if sum(name in keys for name in ("net-id", "net-name", "port-id")) != 1:
        raise UsageError("--nic needs exactly one of net-id, net-name and port-id")
    if "v4-fixed-ip" in keys and "v6-fixed-ip" in keys:
        raise UsageError("--nic accepts only one of v4-fixed-ip and v6-fixed-ip")
    if "port-id" in keys:
        nic = {"port": keys["port-id"]}
    else:
        nic = {"uuid": keys.get("net-id") or str(find.network(nova, keys["net-name"])["id"])}
    fixed = keys.get("v4-fixed-ip") or keys.get("v6-fixed-ip")
    return nic | ({"fixed_ip": fixed} if fixed else {}) | ({"tag": keys["tag"]} if "tag" in keys else {})


def words(option: str, text: str, keys: Sequence[str]) -> dict[str, str]:
    """Parse KEY=VALUE,KEY=VALUE with the given keys. Raises UsageError, which names the option."""
    values = {}
    for word in text.split(","):
        key, equals, value = word.partition("=")
        if not equals or key not in keys:
            raise UsageError(f"{option} {text}: {word!r} is not KEY=VALUE with a key of {', '.join(keys)}")
        values[key] = value
    return values


def _devices(args: argparse.Namespace, image: str | None) -> list[dict[str, Any]]:
    devices: list[dict[str, Any]] = []
    if args.boot_volume:
        devices.append(_device(args.boot_volume, "volume", 0, delete_on_termination=False))
    if args.snapshot:
        devices.append(_device(args.snapshot, "snapshot", 0, delete_on_termination=False))
    devices += [_mapped(option, bool(image or devices)) for option in args.block_device_mapping]
    devices += [_described(option) for option in args.block_device]
    devices += [_local(words("--ephemeral", option, ("size", "format"))) for option in args.ephemeral]
    if args.swap:
        devices.append({**_local({"size": args.swap}), "guest_format": "swap"})
    if devices and image:
        devices.insert(0, {**_device(image, "image", 0), "destination_type": "local"})
    return devices


def _device(uuid: str, source: str, boot_index: int, **more: Any) -> dict[str, Any]:
    return {"uuid": uuid, "source_type": source, "destination_type": "volume", "boot_index": boot_index,
            "delete_on_termination": True, **more}


def _local(keys: Mapping[str, Any]) -> dict[str, Any]:
    if "size" not in keys:
        raise UsageError("--ephemeral needs size=GIB")
    device = {"source_type": "blank", "destination_type": "local", "boot_index": -1, "delete_on_termination": True,
            "volume_size": _number("size", keys["size"])}
    return device | ({"guest_format": keys["format"]} if "format" in keys else {})


def _mapped(text: str, has_boot_device: bool) -> dict[str, Any]:
    name, equals, rest = text.partition("=")
    uuid, kind, size, delete = [*rest.split(":"), "", "", ""][:4]
    if not equals or not uuid:
        raise UsageError(f"--block-device-mapping {text}: not DEVICE=ID:TYPE:SIZE:DELETE")
    device = _device(uuid, "snapshot" if kind.startswith("snap") else "volume", -1 if has_boot_device else 0,
                     device_name=name, delete_on_termination=delete not in ("", "0"))
    return device | ({"volume_size": _number("SIZE", size)} if size else {})


def _described(text: str) -> dict[str, Any]:
    keys = words("--block-device", text, tuple(_DEVICE))
    device: dict[str, Any] = {_DEVICE[key]: value for key, value in keys.items()}
    for name in ("volume_size", "boot_index"):
        if name in device:
            device[name] = _number(name, device[name])
    if "delete_on_termination" in device:
        device["delete_on_termination"] = device["delete_on_termination"] == "remove"
    elif device.get("destination_type") == "local":
        device["delete_on_termination"] = True
    return {"boot_index": -1, **device}


def _number(name: str, text: Any) -> int:
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"{name}: {text!r} is not a number") from None


# --- existing servers ------------------------------------------------------------------------------------
_POLL = flag("--poll", help="report the progress until the operation completes")


@showing(
    SERVER, arg("image", metavar="IMAGE", help="name or id of the image"),
    arg("--rebuild-password", metavar="PASSWORD", help="password of the guest administrator"), _POLL, MINIMAL,
    flag("--preserve-ephemeral", help="keep the ephemeral disks"), arg("--name", metavar="NAME", help="the new name"),
    arg("--description", metavar="TEXT", since=19), pairs("--meta", help="metadata of the server; may be repeated"),
    either(arg("--key-name", metavar="NAME", since=54, help="key pair for logins to the guest"),
           flag("--key-unset", since=54, help="remove the key pair of the server")),
    either(arg("--user-data", metavar="FILE", since=57, help="file with user data for the guest"),
           flag("--user-data-unset", since=57, help="remove the user data of the server")),
    either(arg("--trusted-image-certificate-id", metavar="ID", action="append", since=63,
               help="id of a certificate trusted for the image signature"),
           flag("--trusted-image-certificates-unset", since=63, help="remove the server's trusted image certificates")),
    arg("--hostname", metavar="NAME", since=90, help="host name that the metadata service reports to the guest"))
def rebuild(nova: Nova, args: argparse.Namespace) -> Any:
    """Rebuild a server: recreate its disks from an image."""
    server = find.server(nova, args.server)
    wanted = without_none({
        "imageRef": find.image(nova, args.image)["id"], "adminPass": args.rebuild_password, "name": args.name,
        "description": args.description, "metadata": dict(args.meta) or None, "key_name": args.key_name,
        "preserve_ephemeral": args.preserve_ephemeral or None, "hostname": args.hostname,
        "user_data": _file_of(args.user_data) if args.user_data else None,
        "trusted_image_certificates": _certificates(args.trusted_image_certificate_id)})
    for name, unset in (("key_name", args.key_unset), ("user_data", args.user_data_unset),
                        ("trusted_image_certificates", args.trusted_image_certificates_unset)):
        if unset:
            wanted[name] = None
    answer = nova.action(server, "rebuild", wanted)["server"]
    if args.poll:
        progress.wait(nova, server["id"], "rebuilding", ("ACTIVE", "SHUTOFF"))
    return details(nova, server["id"], args.minimal,
                   **{name: answer[name] for name in ("adminPass",) if name in answer})


@showing(SERVER, arg("--password", metavar="PASSWORD", help="password of the administrator of the rescue system"),
         arg("--image", metavar="IMAGE", help="image of the rescue system (default: the server's image)"))
def rescue(nova: Nova, args: argparse.Namespace) -> Any:
    """Rescue a server: start it from a rescue image with its own disk attached."""
    wanted = without_none({"adminPass": args.password,
                           "rescue_image_ref": find.image(nova, args.image)["id"] if args.image else None})
    return nova.action(find.server(nova, args.server), "rescue", wanted or None)


@doing(SERVER, arg("flavor", metavar="FLAVOR", help="name or id of the new flavor"), _POLL)
def resize(nova: Nova, args: argparse.Namespace) -> None:
    """Resize a server; then confirm (nova resize-confirm) or revert (nova resize-revert) the resize."""
    server = find.server(nova, args.server)
    nova.action(server, "resize", {"flavorRef": find.flavor(nova, args.flavor)["id"]})
    if args.poll:
        progress.wait(nova, server["id"], "resizing", ("ACTIVE", "SHUTOFF", "VERIFY_RESIZE"))


@doing(SERVER)
def set_password(nova: Nova, args: argparse.Namespace) -> None:
    """Set the password of the guest administrator; the command prompts for it."""
    server = find.server(nova, args.server)
    password = getpass.getpass("New password: ")
    if password != getpass.getpass("Again: "):
        raise UsageError("The passwords differ")
    nova.action(server, "changePassword", {"adminPass": password})


@doing(SERVER, arg("private_key", metavar="PRIVATE-KEY", nargs="?",
                   help="file with the private key (default: print the encrypted password)"))
def get_password(nova: Nova, args: argparse.Namespace) -> None:
    """Show the administrator password that the guest has reported."""
    password = nova.get(f"{find.server_path(nova, args.server)}/os-server-password")["password"]
    if password and args.private_key:  # The guest encrypted the password with the public key.
        command = ["openssl", "pkeyutl", "-decrypt", "-inkey", args.private_key]
        try:
            result = subprocess.run(command, input=base64.b64decode(password), capture_output=True, check=True)
        except (OSError, subprocess.CalledProcessError, ValueError) as error:
            raise UsageError(f"Cannot decrypt the password with {args.private_key}: {error}") from error
        password = result.stdout.decode()
    print(password)


@doing(SERVER)
def clear_password(nova: Nova, args: argparse.Namespace) -> None:
    """Clear the stored administrator password; it stays valid in the guest."""
    nova.delete(f"{find.server_path(nova, args.server)}/os-server-password")
