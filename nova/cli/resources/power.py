"""Commands that send a single action to servers: power, lock, shelve, resize confirmation and others."""

import argparse
from collections.abc import Callable
from typing import Any

from nova.cli import find, progress
from nova.cli.client import Nova
from nova.cli.declare import ALL_TENANTS, SERVER, SERVERS, Argument, arg, doing, flag, without_none
from nova.cli.resources.servers import for_servers

Command = Callable[[Nova, argparse.Namespace], Any]


def _server_action(action: str, help: str, *arguments: Argument,
                   value: Callable[[argparse.Namespace], Any] | None = None, since: int = 1) -> Command:
    """Return a command that sends the action to a server."""
    def act(nova: Nova, args: argparse.Namespace) -> None:
        nova.action(find.server(nova, args.server), action, (value(args) or None) if value else None)

    act.__doc__ = help
    return doing(SERVER, *arguments, since=since)(act)


def _for_many(action: str, help: str, done: str, *arguments: Argument,
              value: Callable[[argparse.Namespace], Any] | None = None) -> Command:
    """Return a command that sends the action to several servers."""
    def act(nova: Nova, args: argparse.Namespace) -> int:
        return for_servers(nova, args.servers, args.all_tenants,
                           lambda server: nova.action(server, action, value(args) if value else None), done)

    act.__doc__ = help
    return doing(SERVERS, ALL_TENANTS, *arguments)(act)


start = _for_many("os-start", "Start servers.", "Request to start server {} has been accepted.")
stop = _for_many("os-stop", "Stop servers.", "Request to stop server {} has been accepted.")
reset_state = _for_many(
    "os-resetState", "Set the state of servers (administrators).",
    "Reset state for server {} succeeded; new state is set",
    flag("--active", help='set the state "active" (default: "error")'),
    value=lambda args: {"state": "active" if args.active else "error"})

pause = _server_action("pause", "Pause a server: its memory stays allocated, its CPUs stop.")
unpause = _server_action("unpause", "Unpause a server.")
suspend = _server_action("suspend", "Suspend a server: its memory is saved to disk.")
resume = _server_action("resume", "Resume a suspended server.")
lock = _server_action("lock", "Lock a server: only administrators can act on it.",
                      arg("--reason", metavar="TEXT", since=73, help="reason of the lock, shown by nova show"),
                      value=lambda args: without_none({"locked_reason": args.reason}))
unlock = _server_action("unlock", "Unlock a server.")
restore = _server_action("restore", "Restore a soft-deleted server.")
force_delete = _server_action("forceDelete", "Force delete a server: immediately, even during another operation.")
shelve = _server_action("shelve", "Shelve a server: save it in an image and release its host.")
shelve_offload = _server_action("shelveOffload", "Offload a shelved server from its host.")
unshelve = _server_action(
    "unshelve", "Unshelve a server.",
    arg("--availability-zone", metavar="ZONE", since=77, help="destination availability zone"),
    arg("--host", metavar="HOST", since=91, help="destination host (only administrators)"),
    value=lambda args: without_none({"availability_zone": args.availability_zone, "host": args.host}))
unrescue = _server_action("unrescue", "Unrescue a server: start it from its own disk again.")
resize_confirm = _server_action("confirmResize", "Confirm a resize or a migration.")
resize_revert = _server_action("revertResize", "Revert a resize or a migration.")
trigger_crash_dump = _server_action("trigger_crash_dump", "Trigger a crash dump in a server.", since=17)
refresh_network = _server_action("injectNetworkInfo", "Send the network information of a server to its host again.")
add_secgroup = _server_action("addSecurityGroup", "Add a security group to a server.",
                              arg("secgroup", metavar="SECGROUP"), value=lambda args: {"name": args.secgroup})
remove_secgroup = _server_action("removeSecurityGroup", "Remove a security group from a server.",
                                 arg("secgroup", metavar="SECGROUP"), value=lambda args: {"name": args.secgroup})


@doing(SERVERS, flag("--hard", help="power cycle (default: request a shutdown from the guest)"),
       flag("--poll", help="report the progress until the reboot completes"))
def reboot(nova: Nova, args: argparse.Namespace) -> int:
    """Reboot servers."""
    servers = []

    def request_reboot(server: Any) -> None:
        nova.action(server, "reboot", {"type": "HARD" if args.hard else "SOFT"})
        servers.append(server)

    try:
        return for_servers(nova, args.servers, False, request_reboot, "Request to reboot server {} has been accepted.")
    finally:
        for server in servers if args.poll else ():
            progress.wait(nova, server["id"], "rebooting", ("ACTIVE",))
