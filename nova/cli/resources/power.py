"""What is done to a server in one request without an answer."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from nova.cli import find, progress
from nova.cli.client import Nova
from nova.cli.declare import ALL_TENANTS, SERVER, SERVERS, Argument, arg, doing, flag
from nova.cli.resources.servers import each

Command = Callable[[Nova, argparse.Namespace], Any]


def _one(action: str, help: str, *arguments: Argument, value: Callable[[argparse.Namespace], Any] | None = None,
         since: int = 1) -> Command:
    """A command that sends this action to one server."""
    def act(nova: Nova, args: argparse.Namespace) -> None:
        nova.action(find.server(nova, args.server), action, value(args) if value else None)

    act.__doc__ = help
    return doing(SERVER, *arguments, since=since)(act)


def _many(action: str, help: str, done: str, *arguments: Argument,
          value: Callable[[argparse.Namespace], Any] | None = None) -> Command:
    """A command that sends this action to several servers."""
    def act(nova: Nova, args: argparse.Namespace) -> int:
        return each(nova, args.servers, args.all_tenants,
                    lambda server: nova.action(server, action, value(args) if value else None), done)

    act.__doc__ = help
    return doing(SERVERS, ALL_TENANTS, *arguments)(act)


def _given(**values: Any) -> dict[str, Any] | None:
    return {name: value for name, value in values.items() if value is not None} or None


start = _many("os-start", "Start servers.", "Request to start server {} has been accepted.")
stop = _many("os-stop", "Stop servers.", "Request to stop server {} has been accepted.")
reset_state = _many(
    "os-resetState", "Set the state of servers (administrators).",
    "Reset state for server {} succeeded; new state is set",
    flag("--active", help='to "active" (default: to "error")'),
    value=lambda args: {"state": "active" if args.active else "error"})

pause = _one("pause", "Pause a server: it stays in memory, and does not run.")
unpause = _one("unpause", "Let a paused server run again.")
suspend = _one("suspend", "Suspend a server: its memory goes to disk.")
resume = _one("resume", "Resume a suspended server.")
lock = _one("lock", "Lock a server: only administrators may do something to it.",
            arg("--reason", metavar="TEXT", since=73, help="which others are shown"),
            value=lambda args: _given(locked_reason=args.reason))
unlock = _one("unlock", "Unlock a server.")
restore = _one("restore", "Restore a server that was deleted and is not yet gone.")
force_delete = _one("forceDelete", "Delete a server at once, whatever is done with it.")
shelve = _one("shelve", "Shelve a server: save it in an image, and give its host back.")
shelve_offload = _one("shelveOffload", "Take a shelved server from its host.")
unshelve = _one(
    "unshelve", "Bring a shelved server back.",
    arg("--availability-zone", metavar="ZONE", since=77, help="where it shall be"),
    arg("--host", metavar="HOST", since=91, help="on which host it shall be (administrators)"),
    value=lambda args: _given(availability_zone=args.availability_zone, host=args.host))
unrescue = _one("unrescue", "Start a rescued server from its own disk again.")
resize_confirm = _one("confirmResize", "Confirm a resize or a migration.")
resize_revert = _one("revertResize", "Revert a resize or a migration.")
trigger_crash_dump = _one("trigger_crash_dump", "Have the kernel of a server write a crash dump.", since=17)
refresh_network = _one("injectNetworkInfo", "Tell the host of a server its network anew.")
add_secgroup = _one("addSecurityGroup", "Add a security group to a server.", arg("secgroup", metavar="SECGROUP"),
                    value=lambda args: {"name": args.secgroup})
remove_secgroup = _one("removeSecurityGroup", "Remove a security group from a server.",
                       arg("secgroup", metavar="SECGROUP"),
                       value=lambda args: {"name": args.secgroup})


@doing(SERVERS, flag("--hard", help="switch off and on (default: ask the guest)"),
       flag("--poll", help="wait until it is done, and show how far it is"))
def reboot(nova: Nova, args: argparse.Namespace) -> int:
    """Reboot servers."""
    servers = []

    def one(server: Any) -> None:
        nova.action(server, "reboot", {"type": "HARD" if args.hard else "SOFT"})
        servers.append(server)

    try:
        return each(nova, args.servers, False, one, "Request to reboot server {} has been accepted.")
    finally:
        for server in servers if args.poll else ():
            progress.wait(nova, server["id"], "rebooting", ("ACTIVE",))
