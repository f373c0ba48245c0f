"""Shares of servers."""

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
    found = nova.get(_path(nova, args.server))["shares"]
    return ("SHARE ID", "STATUS", "TAG"), [(one["share_id"], one["status"], one["tag"]) for one in found]


@showing(SERVER, _SHARE, since=97)
def show_share(nova: Nova, args: argparse.Namespace) -> Any:
    """Show how a server has a share."""
    return dict(sorted(nova.get(f"{_path(nova, args.server)}/{args.share}")["share"].items()))


@showing(SERVER, _SHARE, arg("--tag", metavar="TAG", help="by which the guest mounts it (default: its id)"), since=97)
def attach(nova: Nova, args: argparse.Namespace) -> Any:
    """Give a stopped server a share; its guest mounts it by its tag from the next start on."""
    wanted = {"share_id": args.share} | ({"tag": args.tag} if args.tag else {})
    return dict(sorted(nova.post(_path(nova, args.server), {"share": wanted})["share"].items()))


@doing(SERVER, _SHARE, since=97)
def detach(nova: Nova, args: argparse.Namespace) -> None:
    """Take a share away from a stopped server."""
    nova.delete(f"{_path(nova, args.server)}/{args.share}")
