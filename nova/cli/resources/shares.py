"""Commands for shares of servers."""

from __future__ import annotations

import argparse
from typing import Any

from nova.cli import find
from nova.cli.client import Nova
from nova.cli.declare import SERVER, arg, doing, listing, showing

_SHARE = arg("share", metavar="SHARE", help="id of a share")


def _path(nova: Nova, name: str) -> str:
    return f"/servers/{find.server(nova, name)['id']}/shares"


@listing(SERVER, since=97)
def list_shares(nova: Nova, args: argparse.Namespace) -> Any:
    """List the shares of a server."""
    shares = nova.get(_path(nova, args.server))["shares"]
    return ("SHARE ID", "STATUS", "TAG"), [(share["share_id"], share["status"], share["tag"]) for share in shares]


@showing(SERVER, _SHARE, since=97)
def show_share(nova: Nova, args: argparse.Namespace) -> Any:
    """Show the attachment of a share to a server."""
    return dict(sorted(nova.get(f"{_path(nova, args.server)}/{args.share}")["share"].items()))


@showing(SERVER, _SHARE, arg("--tag", metavar="TAG", help="mount tag in the guest (default: the share id)"), since=97)
def attach(nova: Nova, args: argparse.Namespace) -> Any:
    """Attach a share to a stopped server; the guest can mount it by its tag after the next start."""
    wanted = {"share_id": args.share} | ({"tag": args.tag} if args.tag else {})
    return dict(sorted(nova.post(_path(nova, args.server), {"share": wanted})["share"].items()))


@doing(SERVER, _SHARE, since=97)
def detach(nova: Nova, args: argparse.Namespace) -> None:
    """Detach a share from a stopped server."""
    nova.delete(f"{_path(nova, args.server)}/{args.share}")
