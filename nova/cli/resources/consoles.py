"""Ways into a guest: its console and ssh."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Callable, Mapping
from typing import Any

from nova.cli import find
from nova.cli.client import Nova
from nova.cli.declare import SERVER, arg, doing, flag, listing
from nova.cli.errors import CommandError, UsageError

# From here on one request asks for any console; before, each has an action of its own.
_REMOTE = 6


@doing(SERVER, arg("--length", metavar="LINES", type=int, help="so many lines of its end (default: all)"))
def log(nova: Nova, args: argparse.Namespace) -> None:
    """Show what a guest has written to its console."""
    wanted = {} if args.length is None else {"length": args.length}
    print(nova.action(find.server(nova, args.server), "os-getConsoleOutput", wanted)["output"])


def _console(protocol: str, old: str, kinds: tuple[str, ...], since: int = 1) -> Callable[..., Any]:
    """A command that asks for the URL of a console."""
    kind = arg("console_type", metavar="TYPE", nargs="?" if len(kinds) == 1 else None, choices=kinds,
               default=kinds[0], help=" or ".join(kinds))

    def get(nova: Nova, args: argparse.Namespace) -> Any:
        server = find.server(nova, args.server)
        if nova.version >= _REMOTE:
            wanted = {"protocol": protocol, "type": args.console_type}
            found = nova.post(f"/servers/{server['id']}/remote-consoles", {"remote_console": wanted})["remote_console"]
        else:
            found = nova.action(server, old, {"type": args.console_type})["console"]
        return ("Type", "Url"), [(found["type"], found["url"])]

    get.__doc__ = f"Get the URL of the {protocol.upper()} console of a server."
    return listing(SERVER, kind, since=since)(get)


vnc = _console("vnc", "os-getVNCConsole", ("novnc", "xvpvnc"))
spice = _console("spice", "os-getSPICEConsole", ("spice-html5", "spice-direct"))
serial = _console("serial", "os-getSerialConsole", ("serial",))
mks = _console("mks", "", ("webmks",), since=8)
rdp = _console("rdp", "os-getRDPConsole", ("rdp-html5",))


@doing(arg("server", metavar="[USER@]SERVER", help="name or id of a server"),
       arg("--port", metavar="PORT", type=int, default=22), arg("--login", metavar="USER", help="default: root"),
       arg("--address-type", choices=("floating", "fixed"), default="floating",
           help="which address; without a floating one a fixed one is taken"),
       arg("--network", metavar="NETWORK", help="the address in this network"),
       flag("--ipv6", help="an IPv6 address"), arg("-i", "--identity", metavar="FILE", help="the private key"),
       arg("--extra-opts", metavar="OPTIONS", default="", help="further options of ssh, in one word"))
def ssh(nova: Nova, args: argparse.Namespace) -> None:
    """Log in to a guest with ssh."""
    login, at, name = args.server.rpartition("@")
    if at and args.login:
        raise UsageError("The user is said twice: before @, and with --login")
    address = _address(find.server(nova, name), args)
    try:
        extra = shlex.split(args.extra_opts)
    except ValueError as error:
        raise UsageError(f"--extra-opts: {error}") from error
    words = ["ssh", "-6" if args.ipv6 else "-4", "-p", str(args.port),
             *(("-i", args.identity) if args.identity else ()),
             *extra, "--", f"{login or args.login or 'root'}@{address}"]
    try:
        os.execvp(words[0], words)  # noqa: S606 - the words of the user for the user's ssh
    except OSError as error:
        raise CommandError(f"ssh cannot be started: {error.strerror}") from error


def _address(server: Mapping[str, Any], args: argparse.Namespace) -> str:
    """The one to connect to. Raises CommandError with those that there are."""
    networks = server["addresses"]
    if args.network and args.network not in networks:
        raise CommandError(f"Server {server['name']} is not in network {args.network}: "
                           f"it is in {', '.join(networks) or 'none'}.")
    fitting = [one for label, found in networks.items() if args.network in (None, label) for one in found
               if one["version"] == (6 if args.ipv6 else 4)]
    kinds = ("floating", "fixed") if args.address_type == "floating" else ("fixed",)
    for kind in kinds:
        for one in fitting:
            if one.get("OS-EXT-IPS:type", "fixed") == kind:
                return str(one["addr"])
    known = ", ".join(one["addr"] for found in networks.values() for one in found)
    raise CommandError(f"Server {server['name']} has no such address: it has {known or 'none'}. "
                       "nova interface-list shows its interfaces.")
