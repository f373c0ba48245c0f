"""Commands that deploy, restart, roll back and remove components, list deployments, and manage backups and secrets."""

import argparse
import sys
from typing import Any

from nova.cli.declare import arg, doing, flag, listing
from nova.cli.errors import CommandError, UsageError
from nova.cli.platform.client import Novad, number, size, when
from nova.novad.api import novad_pb2 as pb

_COMPONENTS = arg("components", nargs="*", metavar="COMPONENT[=VERSION]",
                  help="components and versions (default: all components, in their newest version)")
_NAMES = arg("names", nargs="*", metavar="COMPONENT", help="names of components (default: all)")


def _wanted(words: list[str]) -> list[pb.ComponentVersion]:
    """Parse COMPONENT[=VERSION]. Raises UsageError."""
    wanted: dict[str, str] = {}
    for name, _equals, version in (word.partition("=") for word in words):
        if name in wanted:
            raise UsageError(f"{name} is named twice.")
        wanted[name] = version
    return [pb.ComponentVersion(component=name, version=version) for name, version in wanted.items()]


@doing(_COMPONENTS)
def deploy(novad: Novad, args: argparse.Namespace) -> None:
    """Deploy components; if a component fails, the deployment is rolled back."""
    novad.follow(novad.client.platform.Deploy, pb.DeployRequest(components=_wanted(args.components)))


@listing(_COMPONENTS)
def plan(novad: Novad, args: argparse.Namespace) -> Any:
    """Show what deploy would do."""
    answer = novad.ask(novad.client.platform.Plan, pb.DeployRequest(components=_wanted(args.components)))
    return ("Component", "Action", "Now", "Image", "Digest", "Backup", "Node"), [
        (change.component, "refuse: name the digest" if change.refused else change.action, change.before or "-",
         change.reference,
         # The running digest and, if it differs, the digest that the deployment would run.
         " -> ".join(dict.fromkeys(filter(None, (change.digest, change.fetched)))) or "-",
         size(change.backup), change.node) for change in answer.changes]


@listing(arg("--limit", type=number, default=20, help="maximum number of deployments (default: 20)"))
def history(novad: Novad, args: argparse.Namespace) -> Any:
    """List deployments, newest first."""
    answer = novad.ask(novad.client.platform.History, pb.HistoryRequest(limit=args.limit))
    return ("ID", "Kind", "State", "Started", "Seconds", "Components", "Nodes", "Error"), [
        (deployment.id, deployment.kind, deployment.state, when(deployment.started),
         f"{deployment.ended - deployment.started:.1f}" if deployment.ended else "-",
         " ".join(f"{component.component}={component.version}" if component.version else component.component
                  for component in deployment.components),
         f"for {deployment.control}" if deployment.control else "; ".join(
             f"{node.node}: {node.components or '-'}{'' if node.settled else ' (has not received the outcome yet)'}"
             for node in deployment.nodes), deployment.error) for deployment in answer.deployments]


@doing(_NAMES, arg("--to", type=number, default=0, metavar="ID",
                   help="restore the state after the deployment with this id (see nova history); default: the state "
                        "before the newest deployment that changed the components"))
def rollback(novad: Novad, args: argparse.Namespace) -> None:
    """Roll back components to an earlier deployment: images and data."""
    novad.follow(novad.client.platform.Rollback, pb.RollbackRequest(components=args.names, to=args.to))


@doing(_NAMES)
def restart(novad: Novad, args: argparse.Namespace) -> None:
    """Restart components in the order of their dependencies."""
    novad.follow(novad.client.platform.Restart, pb.RestartRequest(components=args.names))


@doing(flag("--remove-volumes", help="Remove all data volumes (default: false), but not the backups"),
       flag("--remove-secrets", help="Remove all secret data (default: false)"),
       flag("--yes", help="do not ask for confirmation"))
def remove(novad: Novad, args: argparse.Namespace) -> None:
    """Remove all components; keep data and secrets unless the options say otherwise."""
    if not args.yes:
        extras = [name for name, given in (("their data", args.remove_volumes), ("all secrets", args.remove_secrets))
                  if given]
        print(f"Remove all components{''.join(f' and {extra}' for extra in extras)}? [y/N] ", end="", file=sys.stderr,
              flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise CommandError("Not confirmed. Nothing was removed.")
    novad.follow(novad.client.platform.Remove, pb.RemoveRequest(volumes=args.remove_volumes,
                                                                secrets=args.remove_secrets))


# --- backups and secrets ---------------------------------------------------------------------------------
_COMPONENT = arg("component", nargs="?", default="", metavar="COMPONENT", help="name of a component (default: all)")


def _backups(answer: pb.BackupsAnswer) -> Any:
    return ("ID", "Component", "Version", "Before deployment", "Size", "Made"), [
        (backup.id, backup.component, backup.version, backup.deployment, size(backup.size), when(backup.made))
        for backup in answer.backups]


@listing(_COMPONENT)
def backup_list(novad: Novad, args: argparse.Namespace) -> Any:
    """List backups, newest first."""
    return _backups(novad.ask(novad.client.backups.List, pb.BackupsRequest(component=args.component)))


@doing(_COMPONENT)
def backup_create(novad: Novad, args: argparse.Namespace) -> None:
    """Back up the data of components; a component without a dump command stops during the backup."""
    novad.follow(novad.client.backups.Create, pb.BackupsRequest(component=args.component))


@doing(arg("id", type=number, metavar="ID", help="id of a backup"))
def backup_restore(novad: Novad, args: argparse.Namespace) -> None:
    """Restore the data of a component from a backup, with the image that wrote the data."""
    novad.follow(novad.client.backups.Restore, pb.RestoreRequest(id=args.id))


@listing()
def backup_prune(novad: Novad, args: argparse.Namespace) -> Any:
    """Remove backups beyond the retention limits of novad (keep_backups, keep_days)."""
    return _backups(novad.ask(novad.client.backups.Prune, pb.Empty()))


@listing()
def secrets_list(novad: Novad, args: argparse.Namespace) -> Any:
    """List the names of secrets and the components that use them; values are never shown."""
    answer = novad.ask(novad.client.secrets.List, pb.Empty())
    return ("Secret", "Used by"), [(secret.name, ", ".join(secret.used_by)) for secret in answer.secrets]


@doing(arg("names", nargs="+", metavar="SECRET", help="name of the secret in the platform file"))
def secrets_rotate(novad: Novad, args: argparse.Namespace) -> None:
    """Rotate secrets: generate new values and recreate the components that use them."""
    novad.follow(novad.client.secrets.Rotate, pb.RotateRequest(names=args.names))
