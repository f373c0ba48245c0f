"""Commands for the volumes and shares of servers."""

import argparse
from collections.abc import Mapping
from typing import Any

from nova.cli import find
from nova.cli.client import Nova
from nova.cli.declare import SERVER, arg, doing, either, flag, listing, showing, table, without_none

_VOLUME = arg("volume", metavar="VOLUME", help="name or id of a volume")
_SHARE = arg("share", metavar="SHARE", help="id of a share")


def _attachments(nova: Nova, args: argparse.Namespace) -> str:
    return f"{find.server_path(nova, args.server)}/os-volume_attachments"


def _shares(nova: Nova, args: argparse.Namespace) -> str:
    return f"{find.server_path(nova, args.server)}/shares"


@listing(SERVER)
def volume_attachments(nova: Nova, args: argparse.Namespace) -> Any:
    """List the volumes attached to a server."""
    columns = {"ID": "id"} if nova.version < 89 else {}
    columns |= {"DEVICE": "device", "SERVER ID": "serverId", "VOLUME ID": "volumeId"}
    if nova.version >= 89:
        columns |= {"ATTACHMENT ID": "attachment_id", "BDM UUID": "bdm_uuid"}
    if nova.version >= 70:
        columns["TAG"] = "tag"
    if nova.version >= 79:
        columns["DELETE ON TERMINATION"] = "delete_on_termination"
    return table(columns, nova.get(_attachments(nova, args))["volumeAttachments"])


@showing(SERVER, _VOLUME, arg("device", metavar="DEVICE", nargs="?", help="device name (default or auto: a free name)"),
         arg("--tag", metavar="TAG", since=49),
         flag("--delete-on-termination", since=79, help="delete the volume with the server"))
def volume_attach(nova: Nova, args: argparse.Namespace) -> Any:
    """Attach a volume to a server."""
    wanted = without_none({
        "volumeId": find.volume(nova, args.volume)["id"], "tag": args.tag,
        "device": None if args.device == "auto" else args.device,
        "delete_on_termination": args.delete_on_termination or None})
    answer: Mapping[str, Any] | None = nova.post(_attachments(nova, args), {"volumeAttachment": wanted})
    # since 2.101 the response has no body
    return dict(sorted((answer["volumeAttachment"] if answer else wanted).items()))


@doing(SERVER, _VOLUME)
def volume_detach(nova: Nova, args: argparse.Namespace) -> None:
    """Detach a volume from a server."""
    nova.delete(f"{_attachments(nova, args)}/{find.volume(nova, args.volume)['id']}")


@doing(SERVER, arg("src_volume", metavar="VOLUME", help="name or id of the attached volume"),
       arg("dest_volume", metavar="NEW", help="name or id of the new volume; if it is VOLUME, only the options apply"),
       either(arg("--delete-on-termination", dest="delete", action="store_true", default=None, since=85,
                  help="delete the volume with the server"),
              arg("--no-delete-on-termination", dest="delete", action="store_false", since=85,
                  help="keep the volume when the server is deleted")))
def volume_update(nova: Nova, args: argparse.Namespace) -> None:
    """Replace an attached volume with another volume, or update the attachment."""
    source, target = find.volume(nova, args.src_volume)["id"], find.volume(nova, args.dest_volume)["id"]
    wanted = {"volumeId": target} | ({} if args.delete is None else {"delete_on_termination": args.delete})
    nova.put(f"{_attachments(nova, args)}/{source}", {"volumeAttachment": wanted})


@listing(SERVER, since=97)
def share_list(nova: Nova, args: argparse.Namespace) -> Any:
    """List the shares of a server."""
    return table({"SHARE ID": "share_id", "STATUS": "status", "TAG": "tag"}, nova.get(_shares(nova, args))["shares"])


@showing(SERVER, _SHARE, since=97)
def share_show(nova: Nova, args: argparse.Namespace) -> Any:
    """Show the attachment of a share to a server."""
    return dict(sorted(nova.get(f"{_shares(nova, args)}/{args.share}")["share"].items()))


@showing(SERVER, _SHARE, arg("--tag", metavar="TAG", help="mount tag in the guest (default: the share id)"), since=97)
def share_attach(nova: Nova, args: argparse.Namespace) -> Any:
    """Attach a share to a stopped server; the guest can mount it by its tag after the next start."""
    wanted = {"share_id": args.share} | ({"tag": args.tag} if args.tag else {})
    return dict(sorted(nova.post(_shares(nova, args), {"share": wanted})["share"].items()))


@doing(SERVER, _SHARE, since=97)
def share_detach(nova: Nova, args: argparse.Namespace) -> None:
    """Detach a share from a stopped server."""
    nova.delete(f"{_shares(nova, args)}/{args.share}")
