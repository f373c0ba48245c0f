"""Which novads there are."""

from __future__ import annotations

import argparse
import contextlib
import time
from typing import Any

from nova.cli.declare import arg, doing, listing
from nova.cli.errors import CommandError
from nova.cli.platform.client import Novad
from nova.novad.api import novad_pb2 as pb
from nova.novad.mdns import Watch


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds <= 86400:
        raise argparse.ArgumentTypeError(f"{text} is not more than 0 and at most 86400 seconds")
    return seconds


@listing()
def nodes_list(novad: Novad, args: argparse.Namespace) -> Any:
    """List the nodes that a control node deploys to."""
    answer = novad.ask(novad.client.nodes.List, pb.Empty())
    return ("Node", "State", "Roles", "Address", "Why"), [
        (one.node, one.state, ", ".join(one.roles), one.address, one.error) for one in answer.nodes]


@doing(arg("node", metavar="NODE", help="its name or address"))
def nodes_forget(novad: Novad, args: argparse.Namespace) -> None:
    """Stop deploying to a node that was accepted."""
    novad.ask(novad.client.nodes.Forget, pb.NodeRequest(node=args.node))


@doing(arg("node", metavar="NODE", help="its name or address, as nova nodes list shows it"),
       arg("--role", action="append", default=[], metavar="ROLE", dest="roles",
           help="default: compute; may be repeated"))
def nodes_accept(novad: Novad, args: argparse.Namespace) -> None:
    """Give a discovered node roles, and deploy to it from now on."""
    one = novad.ask(novad.client.nodes.Accept, pb.AcceptRequest(node=args.node, roles=args.roles))
    print(f"{one.node} at {one.address} is {one.state}, with roles {', '.join(one.roles)}")


@doing(arg("node", metavar="NODE", help="its name"))
def nodes_secret(novad: Novad, args: argparse.Namespace) -> None:
    """Print the shared secret that another node has to have (secret_file in its novad.toml)."""
    print(novad.ask(novad.client.nodes.Secret, pb.NodeRequest(node=args.node)).secret)


@listing(arg("-t", "--timeout", type=_seconds, metavar="SECONDS",
             help="look so long, then list who is there; without it they are shown as they come (+) and go (-), until "
                  "it is interrupted"))
def discover(novad: Novad, args: argparse.Namespace) -> Any:
    """Watch novads come and go on the networks of this machine (mDNS)."""
    columns = ("Node", "Version", "Roles", "Addresses")
    try:
        watch = Watch()
    except OSError as error:
        raise CommandError(f"There is no network on which novads could be heard: {error}") from None
    there = {}
    with contextlib.closing(watch):
        for here, one in watch.events(args.timeout):
            row = (one.node, one.version, ", ".join(one.roles), " ".join(one.addresses))
            if args.timeout is None:
                print(time.strftime("%H:%M:%S"), "+" if here else "-", *row, flush=True)
            elif here:
                there[one.name] = row
            else:
                there.pop(one.name, None)
    return columns, sorted(there.values())
