"""Commands that deploy, restart, roll back and remove components, and list deployments."""

import argparse
import sys
from typing import Any

from nova.cli.declare import arg, doing, flag, listing
from nova.cli.errors import CommandError
from nova.cli.platform.client import Novad, size, when
from nova.novad.api import novad_pb2 as pb

_COMPONENTS = arg("components", nargs="*", metavar="COMPONENT[=VERSION]", help="default: all, at their latest version")
_NAMES = arg("names", nargs="*", metavar="COMPONENT", help="default: all")


def _wanted(words: list[str]) -> list[pb.ComponentVersion]:
    return [pb.ComponentVersion(component=name, version=version)
            for name, _equals, version in (word.partition("=") for word in words)]


@doing(_COMPONENTS)
def deploy(novad: Novad, args: argparse.Namespace) -> None:
    """Deploy components; if one fails, the deployment is rolled back."""
    novad.follow(novad.client.platform.Deploy, pb.DeployRequest(components=_wanted(args.components)))


@listing(_COMPONENTS)
def plan(novad: Novad, args: argparse.Namespace) -> Any:
    """Show what deploy would do."""
    answer = novad.ask(novad.client.platform.Plan, pb.DeployRequest(components=_wanted(args.components)))
    return ("Component", "Action", "Now", "Image", "Digest", "Backup", "Node"), [
        (change.component, "refuse: name the digest" if change.refused else change.action, change.before or "-",
         change.reference,
         # The digest that runs, and the digest that would run if it differs.
         " -> ".join(dict.fromkeys(filter(None, (change.digest, change.fetched)))) or "-",
         size(change.backup), change.node) for change in answer.changes]


@listing(arg("--limit", type=int, default=20, help="maximum number of deployments (default: 20)"))
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


@doing(_NAMES, arg("--to", type=int, default=0, metavar="ID",
                   help="restore the state after this deployment (nova history); default: the state before the last "
                        "deployment that changed the components"))
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
            raise CommandError("Nothing was removed.")
    novad.follow(novad.client.platform.Remove, pb.RemoveRequest(volumes=args.remove_volumes,
                                                                secrets=args.remove_secrets))
