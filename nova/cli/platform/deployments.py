"""Deploying, and what was deployed before."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from nova.cli.declare import arg, doing, flag, listing
from nova.cli.errors import CommandError
from nova.cli.platform.client import Novad, size, when
from nova.novad.api import novad_pb2 as pb

_COMPONENTS = arg("components", nargs="*", metavar="COMPONENT[=VERSION]", help="default: all, at their latest version")
_NAMES = arg("names", nargs="*", metavar="COMPONENT", help="default: all")
Rows = tuple[tuple[str, ...], list[tuple[Any, ...]]]


def _wanted(words: list[str]) -> list[pb.ComponentVersion]:
    return [pb.ComponentVersion(component=name, version=version)
            for name, _equals, version in (word.partition("=") for word in words)]


@doing(_COMPONENTS)
def deploy(novad: Novad, args: argparse.Namespace) -> None:
    """Deploy components: all of them, or nothing is changed."""
    novad.follow(novad.client.platform.Deploy, pb.DeployRequest(components=_wanted(args.components)))


@listing(_COMPONENTS)
def plan(novad: Novad, args: argparse.Namespace) -> Rows:
    """Show what deploy would do."""
    answer = novad.ask(novad.client.platform.Plan, pb.DeployRequest(components=_wanted(args.components)))
    return ("Component", "Action", "Now", "Image", "Digest", "Backup", "Node"), [
        (one.component, "refuse: name the digest" if one.refused else one.action, one.before or "-", one.reference,
         _digests(one), size(one.backup), one.node) for one in answer.changes]


def _digests(change: pb.PlannedChange) -> str:
    """The digest that runs now, and the one that would run, if that is another one."""
    digests = [one for one in (change.digest, change.fetched) if one]
    return " -> ".join(dict.fromkeys(digests)) or "-"


@listing(arg("--limit", type=int, default=20, help="how many (20)"))
def history(novad: Novad, args: argparse.Namespace) -> Rows:
    """List deployments, the newest first."""
    answer = novad.ask(novad.client.platform.History, pb.HistoryRequest(limit=args.limit))
    return ("ID", "Kind", "State", "Started", "Seconds", "Components", "Nodes", "Error"), [
        (one.id, one.kind, one.state, when(one.started), f"{one.ended - one.started:.1f}" if one.ended else "-",
         " ".join(f"{each.component}={each.version}" if each.version else each.component for each in one.components),
         f"for {one.control}" if one.control else "; ".join(
             f"{each.node}: {each.components or '-'}{'' if each.settled else ' (does not know yet)'}"
             for each in one.nodes), one.error) for one in answer.deployments]


@doing(_NAMES, arg("--to", type=int, default=0, metavar="ID",
                   help="how they were after this deployment (nova history); default: before the last one that "
                        "changed them"))
def rollback(novad: Novad, args: argparse.Namespace) -> None:
    """Go back to an earlier deployment, images and data."""
    novad.follow(novad.client.platform.Rollback, pb.RollbackRequest(components=args.names, to=args.to))


@doing(_NAMES)
def restart(novad: Novad, args: argparse.Namespace) -> None:
    """Restart components in the order of their dependencies."""
    novad.follow(novad.client.platform.Restart, pb.RestartRequest(components=args.names))


@doing(flag("--remove-volumes", help="their data as well (not the backups)"),
       flag("--remove-secrets", help="the secrets as well"), flag("--yes", help="do not ask"))
def remove(novad: Novad, args: argparse.Namespace) -> None:
    """Remove all components; data and secrets stay unless it is said."""
    if not args.yes:
        what = [name for name, given in (("their data", args.remove_volumes), ("all secrets", args.remove_secrets))
                if given]
        print(f"Remove all components{''.join(f' and {one}' for one in what)}? [y/N] ", end="", file=sys.stderr,
              flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise CommandError("Nothing was removed.")
    novad.follow(novad.client.platform.Remove, pb.RemoveRequest(volumes=args.remove_volumes,
                                                                secrets=args.remove_secrets))
