"""Commands that show components, their health and logs, and novad itself."""

import argparse
import json
import time
from typing import Any

from nova.cli.declare import arg, doing, listing, showing
from nova.cli.errors import CommandError
from nova.cli.output import TEXT
from nova.cli.platform.client import Novad, number, when
from nova.novad.api import novad_pb2 as pb

_NAME = arg("name", metavar="COMPONENT", help="name of the component in the platform file")


@listing(title="Services")
def platform_info(novad: Novad, args: argparse.Namespace) -> Any:
    """Show the deployed components and the versions that they report.

    The text format includes the state of components that are not running, and the node if there are several nodes.
    """
    components = novad.ask(novad.client.platform.Show, pb.Empty()).components
    if args.formatter == TEXT:
        several = len({component.node for component in components}) > 1
        return ("Name", "Version", "Node", "State"), [
            (component.name, component.version, component.node if several else "",
             "" if component.state == "running" else component.state) for component in components]
    return ("Component", "Version", "State", "Since", "Image", "Digest", "Node"), [
        (component.name, component.version, component.state, when(component.started), component.image,
         component.digest, component.node) for component in components]


@listing()
def health(novad: Novad, args: argparse.Namespace) -> Any:
    """List components with their state, and the reason for those that are unhealthy."""
    answer = novad.ask(novad.client.platform.Show, pb.Empty())
    return ("Component", "State", "Why", "Node"), [
        (component.name, component.state, component.health, component.node) for component in answer.components]


@doing(_NAME)
def service_info(novad: Novad, args: argparse.Namespace) -> None:
    """Print a component's image, volumes, environment and commands as JSON, secrets masked."""
    service = novad.ask(novad.client.services.Show, pb.ServiceRequest(name=args.name))
    print(json.dumps({
        "name": service.name, "image": service.image, "volumes": [
            {"type": volume.type, "name": volume.name, "destination": volume.destination,
             "options": list(volume.options)} for volume in service.volumes],
        "env": dict(sorted(service.env.items())), "cmd": list(service.cmd),
        "versionCmd": list(service.version_cmd)}, indent=2))


@doing(_NAME, arg("-f", "--follow", action=argparse.BooleanOptionalAction, default=True,
                  help="follow the log until the component ends (default), or only print the existing lines"),
       arg("--tail", type=number, default=100, metavar="LINES",
           help="number of earlier lines to print, at most 10000 (default: 100)"))
def service_logs(novad: Novad, args: argparse.Namespace) -> None:
    """Stream the standard output and error of a component."""
    wanted = pb.LogsRequest(name=args.name, follow=args.follow, tail=args.tail)
    for line in novad.stream(novad.client.logs.Read, wanted):
        print(line.text, flush=args.follow)


@showing()
def info(novad: Novad, args: argparse.Namespace) -> Any:
    """Show novad itself: its version, address and node."""
    daemon = novad.ask(novad.client.daemon.Show, pb.Empty())
    if not daemon.version:
        raise CommandError("The server at this address is not novad.")
    return {"version": daemon.version, "address": daemon.address, "uptime": f"{time.time() - daemon.started:.0f} s",
            "node": daemon.node, "roles": ", ".join(daemon.roles), "runtime": daemon.runtime,
            "platform": daemon.platform}
