"""Commands for backups and secrets."""

import argparse
from typing import Any

from nova.cli.declare import arg, doing, listing
from nova.cli.platform.client import Novad, size, when
from nova.novad.api import novad_pb2 as pb

_COMPONENT = arg("component", nargs="?", default="", metavar="COMPONENT", help="default: all")


def _table(answer: pb.BackupsAnswer) -> Any:
    return ("ID", "Component", "Version", "Before deployment", "Size", "Made"), [
        (backup.id, backup.component, backup.version, backup.deployment, size(backup.size), when(backup.made))
        for backup in answer.backups]


@listing(_COMPONENT)
def backup_list(novad: Novad, args: argparse.Namespace) -> Any:
    """List backups, newest first."""
    return _table(novad.ask(novad.client.backups.List, pb.BackupsRequest(component=args.component)))


@doing(_COMPONENT)
def backup_create(novad: Novad, args: argparse.Namespace) -> None:
    """Back up the data of components; a component without a dump command stops during the backup."""
    novad.follow(novad.client.backups.Create, pb.BackupsRequest(component=args.component))


@doing(arg("id", type=int, metavar="ID", help="id of a backup"))
def backup_restore(novad: Novad, args: argparse.Namespace) -> None:
    """Restore the data of a component from a backup, with the image that wrote the data."""
    novad.follow(novad.client.backups.Restore, pb.RestoreRequest(id=args.id))


@listing()
def backup_prune(novad: Novad, args: argparse.Namespace) -> Any:
    """Remove backups beyond the retention limits of novad (keep_backups, keep_days)."""
    return _table(novad.ask(novad.client.backups.Prune, pb.Empty()))


@listing()
def secrets_list(novad: Novad, args: argparse.Namespace) -> Any:
    """List the names of secrets and the components that use them; values are never shown."""
    answer = novad.ask(novad.client.secrets.List, pb.Empty())
    return ("Secret", "Used by"), [(secret.name, ", ".join(secret.used_by)) for secret in answer.secrets]


@doing(arg("names", nargs="+", metavar="SECRET", help="name of the secret in the platform file"))
def secrets_rotate(novad: Novad, args: argparse.Namespace) -> None:
    """Rotate secrets: generate new values and recreate the components that use them."""
    novad.follow(novad.client.secrets.Rotate, pb.RotateRequest(names=args.names))
