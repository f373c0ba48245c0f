"""What runs, and how it does."""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from nova.cli.declare import arg, doing, listing, showing
from nova.cli.errors import CommandError
from nova.cli.output import TEXT
from nova.cli.platform.client import Novad, when
from nova.novad.api import novad_pb2 as pb

_NAME = arg("name", metavar="COMPONENT", help="its name in the platform file")


@listing(title="Services")
def platform_info(novad: Novad, args: argparse.Namespace) -> Any:
    """Show the deployed components and the versions that they report.

    The text format names a component's state if it does not run, and its node if there are several nodes.
    """
    components = novad.ask(novad.client.platform.Show, pb.Empty()).components
    if args.formatter == TEXT:
        several = len({one.node for one in components}) > 1
        return ("Name", "Version", "Node", "State"), [
            (one.name, one.version, one.node if several else "", "" if one.state == "running" else one.state)
            for one in components]
    return ("Component", "Version", "State", "Since", "Image", "Digest", "Node"), [
        (one.name, one.version, one.state, when(one.started), one.image, one.digest, one.node) for one in components]


@listing()
def health(novad: Novad, args: argparse.Namespace) -> Any:
    """List components with their state, and why one is not healthy."""
    answer = novad.ask(novad.client.platform.Show, pb.Empty())
    return ("Component", "State", "Why", "Node"), [
        (one.name, one.state, one.health, one.node) for one in answer.components]


@doing(_NAME)
def service_info(novad: Novad, args: argparse.Namespace) -> None:
    """Print a component's image, volumes, environment and commands as JSON, secrets masked."""
    one = novad.ask(novad.client.services.Show, pb.ServiceRequest(name=args.name))
    print(json.dumps({
        "name": one.name, "image": one.image, "volumes": [
            {"type": each.type, "name": each.name, "destination": each.destination, "options": list(each.options)}
            for each in one.volumes],
        "env": dict(sorted(one.env.items())), "cmd": list(one.cmd), "versionCmd": list(one.version_cmd)}, indent=2))


@doing(_NAME, arg("-f", "--follow", action=argparse.BooleanOptionalAction, default=True,
                  help="follow the log until the component ends, or print what is there and end"),
       arg("--tail", type=int, default=100, metavar="LINES", help="number of earlier lines to print (default: 100)"))
def service_logs(novad: Novad, args: argparse.Namespace) -> None:
    """Stream the standard output and error of a component."""
    wanted = pb.LogsRequest(name=args.name, follow=args.follow, tail=args.tail)
    for line in novad.stream(novad.client.logs.Read, wanted):
        print(line.text, flush=args.follow)


@showing()
def info(novad: Novad, args: argparse.Namespace) -> Any:
    """Show novad itself: its version, address and node."""
    one = novad.ask(novad.client.daemon.Show, pb.Empty())
    if not one.version:
        raise CommandError("It is no novad that answers.")
    return {"version": one.version, "address": one.address, "uptime": f"{time.time() - one.started:.0f} s",
            "node": one.node, "roles": ", ".join(one.roles), "runtime": one.runtime, "platform": one.platform}
