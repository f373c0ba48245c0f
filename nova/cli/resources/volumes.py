"""Commands for the volumes of servers."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from nova.cli import find
from nova.cli.client import Nova
from nova.cli.declare import SERVER, arg, doing, either, flag, listing, showing

_VOLUME = arg("volume", metavar="VOLUME", help="name or id of a volume")


def _path(nova: Nova, name: str) -> str:
    return f"/servers/{find.server(nova, name)['id']}/os-volume_attachments"


@listing(SERVER)
def attachments(nova: Nova, args: argparse.Namespace) -> Any:
    """List the volumes attached to a server."""
    columns = _columns(nova)
    entries = nova.get(_path(nova, args.server))["volumeAttachments"]
    return tuple(columns), [tuple(entry.get(name) for name in columns.values()) for entry in entries]


def _columns(nova: Nova) -> dict[str, str]:
    columns = {"ID": "id"} if nova.version < 89 else {}
    columns |= {"DEVICE": "device", "SERVER ID": "serverId", "VOLUME ID": "volumeId"}
    if nova.version >= 89:
        columns |= {"ATTACHMENT ID": "attachment_id", "BDM UUID": "bdm_uuid"}
    if nova.version >= 70:
        columns["TAG"] = "tag"
    if nova.version >= 79:
        columns["DELETE ON TERMINATION"] = "delete_on_termination"
    return columns


@showing(SERVER, _VOLUME, arg("device", metavar="DEVICE", nargs="?", help="such as /dev/vdb; auto: the next one"),
         arg("--tag", metavar="TAG", since=49),
         flag("--delete-on-termination", since=79, help="delete the volume with the server"))
def attach(nova: Nova, args: argparse.Namespace) -> Any:
    """Attach a volume to a server."""
    values = {"volumeId": find.volume(nova, args.volume)["id"], "tag": args.tag,
              "device": None if args.device == "auto" else args.device,
              "delete_on_termination": args.delete_on_termination or None}
    wanted = {name: value for name, value in values.items() if value is not None}
    answer: Mapping[str, Any] | None = nova.post(_path(nova, args.server), {"volumeAttachment": wanted})
    # since 2.101 the response has no body
    return dict(sorted((answer["volumeAttachment"] if answer else wanted).items()))


@doing(SERVER, _VOLUME)
def detach(nova: Nova, args: argparse.Namespace) -> None:
    """Detach a volume from a server."""
    nova.delete(f"{_path(nova, args.server)}/{find.volume(nova, args.volume)['id']}")


@doing(SERVER, arg("src_volume", metavar="VOLUME", help="name or id of the attached volume"),
       arg("dest_volume", metavar="NEW", help="name or id of the replacement; the same volume: only apply the option"),
       either(arg("--delete-on-termination", dest="delete", action="store_true", default=None, since=85,
                  help="delete the volume with the server"),
              arg("--no-delete-on-termination", dest="delete", action="store_false", since=85,
                  help="keep the volume when the server is deleted")))
def update(nova: Nova, args: argparse.Namespace) -> None:
    """Replace an attached volume with another volume, or update the attachment."""
    source, target = find.volume(nova, args.src_volume)["id"], find.volume(nova, args.dest_volume)["id"]
    wanted = {"volumeId": target} | ({} if args.delete is None else {"delete_on_termination": args.delete})
    nova.put(f"{_path(nova, args.server)}/{source}", {"volumeAttachment": wanted})
