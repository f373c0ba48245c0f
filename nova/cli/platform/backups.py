"""Backups and secrets."""

from __future__ import annotations

import argparse
from typing import Any

from nova.cli.declare import arg, doing, listing
from nova.cli.platform.client import Novad, size, when
from nova.novad.api import novad_pb2 as pb

_COMPONENT = arg("component", nargs="?", default="", metavar="COMPONENT", help="default: all")


def _rows(answer: Any) -> Any:
    return ("ID", "Component", "Version", "Before deployment", "Size", "Made"), [
        (one.id, one.component, one.version, one.deployment, size(one.size), when(one.made)) for one in answer.backups]


@listing(_COMPONENT)
def backup_list(novad: Novad, args: argparse.Namespace) -> Any:
    """List backups, the newest first."""
    return _rows(novad.ask(novad.client.backups.List, pb.BackupsRequest(component=args.component)))


@doing(_COMPONENT)
def backup_create(novad: Novad, args: argparse.Namespace) -> None:
    """Back up the data of components; those without a dump command stop for it."""
    novad.follow(novad.client.backups.Create, pb.BackupsRequest(component=args.component))


@doing(arg("id", type=int, metavar="ID", help="of a backup"))
def backup_restore(novad: Novad, args: argparse.Namespace) -> None:
    """Put a component's data back as a backup has them, with the image that wrote them."""
    novad.follow(novad.client.backups.Restore, pb.RestoreRequest(id=args.id))


@listing()
def backup_prune(novad: Novad, args: argparse.Namespace) -> Any:
    """Remove the backups that are neither among the newest nor young (novad's keep_backups, keep_days)."""
    return _rows(novad.ask(novad.client.backups.Prune, pb.Empty()))


@listing()
def secrets_list(novad: Novad, args: argparse.Namespace) -> Any:
    """List secrets by name, and who uses them; never their values."""
    answer = novad.ask(novad.client.secrets.List, pb.Empty())
    return ("Secret", "Used by"), [(one.name, ", ".join(one.used_by)) for one in answer.secrets]


@doing(arg("names", nargs="+", metavar="SECRET", help="its name in the platform file"))
def secrets_rotate(novad: Novad, args: argparse.Namespace) -> None:
    """Give secrets new values, and make anew what uses them."""
    novad.follow(novad.client.secrets.Rotate, pb.RotateRequest(names=args.names))
