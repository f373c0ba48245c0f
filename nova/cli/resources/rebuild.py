"""Servers made anew: from an image, with another flavor, for repair; passwords of guests."""

from __future__ import annotations

import argparse
import getpass
from typing import Any

from nova.cli import find, progress
from nova.cli.client import Nova
from nova.cli.declare import SERVER, arg, doing, either, flag, pairs, showing
from nova.cli.errors import UsageError
from nova.cli.resources.boot import certificates, file_of
from nova.cli.resources.servers import MINIMAL, details

_POLL = flag("--poll", help="wait until it is done, and show how far it is")


@showing(
    SERVER, arg("image", metavar="IMAGE", help="name or id of the image"),
    arg("--rebuild-password", metavar="PASSWORD", help="of the guest's administrator"), _POLL, MINIMAL,
    flag("--preserve-ephemeral", help="keep the ephemeral disks"), arg("--name", metavar="NAME", help="the new name"),
    arg("--description", metavar="TEXT", since=19), pairs("--meta", help="metadata; may be given several times"),
    either(arg("--key-name", metavar="NAME", since=54, help="the key pair that may log in"),
           flag("--key-unset", since=54, help="no key pair")),
    either(arg("--user-data", metavar="FILE", since=57, help="what the metadata service hands to the guest"),
           flag("--user-data-unset", since=57, help="no user data")),
    either(arg("--trusted-image-certificate-id", metavar="ID", action="append", since=63,
               help="a certificate that the image's signature may be of"),
           flag("--trusted-image-certificates-unset", since=63, help="no such certificates")),
    arg("--hostname", metavar="NAME", since=90, help="the host name that the metadata service tells"))
def rebuild(nova: Nova, args: argparse.Namespace) -> Any:
    """Rebuild a server: make its disks anew from an image."""
    server = find.server(nova, args.server)
    given = {"imageRef": find.image(nova, args.image)["id"], "adminPass": args.rebuild_password, "name": args.name,
             "description": args.description, "metadata": dict(args.meta) or None, "key_name": args.key_name,
             "preserve_ephemeral": args.preserve_ephemeral or None, "hostname": args.hostname,
             "user_data": file_of(args.user_data) if args.user_data else None,
             "trusted_image_certificates": certificates(args.trusted_image_certificate_id)}
    wanted: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    for name, unset in (("key_name", args.key_unset), ("user_data", args.user_data_unset),
                        ("trusted_image_certificates", args.trusted_image_certificates_unset)):
        if unset:
            wanted[name] = None
    answer = nova.action(server, "rebuild", wanted)["server"]
    if args.poll:
        progress.wait(nova, server["id"], "rebuilding", ("ACTIVE", "SHUTOFF"))
    return details(nova, server["id"], args.minimal,
                   **{name: answer[name] for name in ("adminPass",) if name in answer})


@showing(SERVER, arg("--password", metavar="PASSWORD", help="of the rescue system's administrator"),
         arg("--image", metavar="IMAGE", help="the rescue system (default: the server's image)"))
def rescue(nova: Nova, args: argparse.Namespace) -> Any:
    """Start a server from a rescue system, its own disk beside it."""
    given = {"adminPass": args.password, "rescue_image_ref": find.image(nova, args.image)["id"] if args.image else None}
    wanted = {name: value for name, value in given.items() if value is not None}
    return nova.action(find.server(nova, args.server), "rescue", wanted or None)


@doing(SERVER, arg("flavor", metavar="FLAVOR", help="name or id of the new flavor"), _POLL)
def resize(nova: Nova, args: argparse.Namespace) -> None:
    """Resize a server; afterwards confirm it (nova resize-confirm) or revert it."""
    server = find.server(nova, args.server)
    nova.action(server, "resize", {"flavorRef": find.flavor(nova, args.flavor)["id"]})
    if args.poll:
        progress.wait(nova, server["id"], "resizing", ("ACTIVE", "SHUTOFF", "VERIFY_RESIZE"))


# --- passwords ---------------------------------------------------------------------------------------
@doing(SERVER)
def set_password(nova: Nova, args: argparse.Namespace) -> None:
    """Set the password of the guest's administrator; it is asked for."""
    server = find.server(nova, args.server)
    first = getpass.getpass("New password: ")
    if first != getpass.getpass("Again: "):
        raise UsageError("The passwords differ")
    nova.action(server, "changePassword", {"adminPass": first})


@doing(SERVER, arg("private_key", metavar="PRIVATE-KEY", nargs="?",
                   help="a file; without it the password is shown as it is, encrypted"))
def get_password(nova: Nova, args: argparse.Namespace) -> None:
    """Show the password that the guest has set for its administrator."""
    found = nova.get(f"/servers/{find.server(nova, args.server)['id']}/os-server-password")["password"]
    print(_decrypted(found, args.private_key) if found and args.private_key else found)


def _decrypted(password: str, path: str) -> str:
    """By openssl(1), as the guest has encrypted it with the public key."""
    import base64
    import subprocess

    command = ["openssl", "pkeyutl", "-decrypt", "-inkey", path]
    try:
        ended = subprocess.run(command, input=base64.b64decode(password), capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError, ValueError) as error:
        raise UsageError(f"The password cannot be decrypted with {path}: {error}") from error
    return ended.stdout.decode()


@doing(SERVER)
def clear_password(nova: Nova, args: argparse.Namespace) -> None:
    """Forget the password that the guest has set; it stays valid in the guest."""
    nova.delete(f"/servers/{find.server(nova, args.server)['id']}/os-server-password")
