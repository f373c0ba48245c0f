"""Commands that rebuild, rescue and resize servers, and manage passwords of guests."""

import argparse
import base64
import getpass
import subprocess
from typing import Any

from nova.cli import find, progress
from nova.cli.client import Nova
from nova.cli.declare import SERVER, arg, doing, either, flag, pairs, showing, without_none
from nova.cli.errors import UsageError
from nova.cli.resources.boot import certificates, file_of
from nova.cli.resources.servers import MINIMAL, details

_POLL = flag("--poll", help="report the progress until the operation completes")


@showing(
    SERVER, arg("image", metavar="IMAGE", help="name or id of the image"),
    arg("--rebuild-password", metavar="PASSWORD", help="password of the guest administrator"), _POLL, MINIMAL,
    flag("--preserve-ephemeral", help="keep the ephemeral disks"), arg("--name", metavar="NAME", help="the new name"),
    arg("--description", metavar="TEXT", since=19), pairs("--meta", help="metadata of the server; may be repeated"),
    either(arg("--key-name", metavar="NAME", since=54, help="key pair for logins to the guest"),
           flag("--key-unset", since=54, help="remove the key pair")),
    either(arg("--user-data", metavar="FILE", since=57, help="user data for the guest"),
           flag("--user-data-unset", since=57, help="remove the user data")),
    either(arg("--trusted-image-certificate-id", metavar="ID", action="append", since=63,
               help="id of a certificate trusted for the image signature"),
           flag("--trusted-image-certificates-unset", since=63, help="remove the trusted certificates")),
    arg("--hostname", metavar="NAME", since=90, help="host name that the metadata service reports to the guest"))
def rebuild(nova: Nova, args: argparse.Namespace) -> Any:
    """Rebuild a server: recreate its disks from an image."""
    server = find.server(nova, args.server)
    wanted = without_none({
        "imageRef": find.image(nova, args.image)["id"], "adminPass": args.rebuild_password, "name": args.name,
        "description": args.description, "metadata": dict(args.meta) or None, "key_name": args.key_name,
        "preserve_ephemeral": args.preserve_ephemeral or None, "hostname": args.hostname,
        "user_data": file_of(args.user_data) if args.user_data else None,
        "trusted_image_certificates": certificates(args.trusted_image_certificate_id)})
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
         arg("--image", metavar="IMAGE", help="the rescue system (default: the server's image)"))
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
                   help="file with the private key; without it the encrypted password is printed"))
def get_password(nova: Nova, args: argparse.Namespace) -> None:
    """Show the administrator password that the guest has reported."""
    password = nova.get(f"{find.server_path(nova, args.server)}/os-server-password")["password"]
    if password and args.private_key:  # The guest encrypted it with the public key.
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
