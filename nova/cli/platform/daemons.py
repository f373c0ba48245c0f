"""Commands for novad daemons: discovery with mDNS, nodes of a control node, and updates."""

import argparse
import contextlib
import time
from typing import Any

from nova.cli.declare import arg, doing, flag, listing
from nova.cli.errors import CommandError
from nova.cli.platform.client import Novad
from nova.novad.api import novad_pb2 as pb
from nova.novad.mdns import Watch

_RETURN = 300.0  # seconds within which the updated novad must answer again
_PAUSE = 0.5  # seconds between two requests


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds <= 86400:
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds above 0 and up to 86400")
    return seconds


@listing()
def nodes_list(novad: Novad, args: argparse.Namespace) -> Any:
    """List the nodes that a control node deploys to."""
    answer = novad.ask(novad.client.nodes.List, pb.Empty())
    return ("Node", "State", "Roles", "Address", "Why"), [
        (node.node, node.state, ", ".join(node.roles), node.address, node.error) for node in answer.nodes]


@doing(arg("node", metavar="NODE", help="name or address of the node"))
def nodes_forget(novad: Novad, args: argparse.Namespace) -> None:
    """Stop deploying to an accepted node."""
    novad.ask(novad.client.nodes.Forget, pb.NodeRequest(node=args.node))


@doing(arg("node", metavar="NODE", help="name or address of the node, as nova nodes list shows it"),
       arg("--role", action="append", default=[], metavar="ROLE", dest="roles",
           help="role of the node in the platform (default: compute); may be repeated"))
def nodes_accept(novad: Novad, args: argparse.Namespace) -> None:
    """Accept a discovered node with roles, and deploy to the node from now on."""
    node = novad.ask(novad.client.nodes.Accept, pb.AcceptRequest(node=args.node, roles=args.roles))
    print(f"{node.node} at {node.address} is {node.state}, with roles {', '.join(node.roles)}")


@doing(arg("node", metavar="NODE", help="name of the node"))
def nodes_secret(novad: Novad, args: argparse.Namespace) -> None:
    """Print the shared secret that another node needs (secret_file in its novad.toml)."""
    print(novad.ask(novad.client.nodes.Secret, pb.NodeRequest(node=args.node)).secret)


@listing(arg("-t", "--timeout", type=_seconds, metavar="SECONDS",
             help="time to watch before listing the daemons; unset: print each daemon that appears (+) or disappears "
                  "(-) until interrupted"))
def discover(novad: Novad, args: argparse.Namespace) -> Any:
    """Discover novad daemons on the networks of this machine (mDNS)."""
    columns = ("Node", "Version", "Roles", "Addresses")
    try:
        watch = Watch()
    except OSError as error:
        raise CommandError(f"No network is available for mDNS discovery: {error}") from None
    daemons = {}
    with contextlib.closing(watch):
        for present, daemon in watch.events(args.timeout):
            row = (daemon.node, daemon.version, ", ".join(daemon.roles), " ".join(daemon.addresses))
            if args.timeout is None:
                print(time.strftime("%H:%M:%S"), "+" if present else "-", *row, flush=True)
            elif present:
                daemons[daemon.name] = row
            else:
                daemons.pop(daemon.name, None)
    return columns, sorted(daemons.values())


@doing(flag("--check", help="only report whether a newer release is available"))
def update(novad: Novad, args: argparse.Namespace) -> None:
    """Update novad to its latest release; novad rolls back if the new release does not become healthy."""
    before = novad.ask(novad.client.updates.Show, pb.UpdatesRequest(ask=args.check))
    if args.check:
        print(f"novad {before.version} runs. Latest release: {before.latest or 'none'}")
        return
    restarts = False
    for event in novad.stream(novad.client.updates.Update, pb.Empty()):
        print(event.message, flush=True)
        restarts = event.message.startswith("starting ")
    if not restarts:
        return
    now = _status_after_update(novad, before.version)
    if now.version == before.version:
        raise CommandError(f"novad {now.failed} does not become healthy: {now.why}. novad {now.version} runs again.")
    print(f"novad {now.version} runs, and is healthy")


def _status_after_update(novad: Novad, before: str) -> Any:
    """Return the status of novad after the trial of the new release. Raises CommandError after _RETURN seconds."""
    end, status = time.monotonic() + _RETURN, None
    time.sleep(_PAUSE)
    while time.monotonic() < end:
        try:
            status = novad.ask(novad.client.updates.Show, pb.UpdatesRequest())
        except CommandError:
            status = None
        # After the switch, the old release or a failed new one still answers for a moment: wait for the final release.
        if status is not None and not status.trial and status.version != status.failed:
            return status
        time.sleep(_PAUSE)
    raise CommandError(f"novad {before} did not respond again within {_RETURN:.0f} seconds.")
