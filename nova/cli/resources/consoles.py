"""Commands for consoles of guests and ssh."""

import argparse
import os
import shlex
from collections.abc import Callable, Mapping
from typing import Any

from nova.cli import find
from nova.cli.client import Nova
from nova.cli.declare import SERVER, arg, doing, flag, listing
from nova.cli.errors import CommandError, UsageError

# The first minor microversion with remote-consoles; earlier versions have an action per console type.
_REMOTE = 6


@doing(SERVER, arg("--length", metavar="LINES", type=int, help="number of lines from the end (default: all)"))
def console_log(nova: Nova, args: argparse.Namespace) -> None:
    """Show the console log of a server."""
    wanted = {} if args.length is None else {"length": args.length}
    print(nova.action(find.server(nova, args.server), "os-getConsoleOutput", wanted)["output"])


def _console(protocol: str, old: str, kinds: tuple[str, ...], since: int = 1) -> Callable[..., Any]:
    """Return a command that gets the URL of a console."""
    kind = arg("console_type", metavar="TYPE", nargs="?" if len(kinds) == 1 else None, choices=kinds,
               default=kinds[0], help=" or ".join(kinds))

    def get(nova: Nova, args: argparse.Namespace) -> Any:
        server = find.server(nova, args.server)
        if nova.version >= _REMOTE:
            wanted = {"protocol": protocol, "type": args.console_type}
            answer = nova.post(f"/servers/{server['id']}/remote-consoles", {"remote_console": wanted})
            console = answer["remote_console"]
        else:
            console = nova.action(server, old, {"type": args.console_type})["console"]
        return ("Type", "Url"), [(console["type"], console["url"])]

    get.__doc__ = f"Get the URL of the {protocol.upper()} console of a server."
    return listing(SERVER, kind, since=since)(get)


get_vnc_console = _console("vnc", "os-getVNCConsole", ("novnc", "xvpvnc"))
get_spice_console = _console("spice", "os-getSPICEConsole", ("spice-html5", "spice-direct"))
get_serial_console = _console("serial", "os-getSerialConsole", ("serial",))
get_mks_console = _console("mks", "", ("webmks",), since=8)
get_rdp_console = _console("rdp", "os-getRDPConsole", ("rdp-html5",))


@doing(arg("server", metavar="[USER@]SERVER", help="name or id of a server"),
       arg("--port", metavar="PORT", type=int, default=22),
       arg("--login", metavar="USER", help="login name (default: root)"),
       arg("--address-type", choices=("floating", "fixed"), default="floating",
           help="type of the address to connect to; floating falls back to a fixed address"),
       arg("--network", metavar="NETWORK", help="connect to the address of the server in this network (name)"),
       flag("--ipv6", help="use an IPv6 address"), arg("-i", "--identity", metavar="FILE", help="private key file"),
       arg("--extra-opts", metavar="OPTIONS", default="", help="further options for ssh, as a single argument"))
def ssh(nova: Nova, args: argparse.Namespace) -> None:
    """Connect to a server with ssh."""
    login, at, name = args.server.rpartition("@")
    if at and args.login:
        raise UsageError("The user is specified twice: before @ and with --login")
    address = _address(find.server(nova, name), args)
    try:
        extra = shlex.split(args.extra_opts)
    except ValueError as error:
        raise UsageError(f"--extra-opts: {error}") from error
    command = ["ssh", "-6" if args.ipv6 else "-4", "-p", str(args.port),
             *(("-i", args.identity) if args.identity else ()),
             *extra, "--", f"{login or args.login or 'root'}@{address}"]
    try:
        os.execvp(command[0], command)  # noqa: S606 - arguments and ssh belong to the same user
    except OSError as error:
        raise CommandError(f"Cannot start ssh: {error.strerror}") from error


def _address(server: Mapping[str, Any], args: argparse.Namespace) -> str:
    """Return the address to connect to. Raises CommandError, which lists the addresses, if none matches."""
    networks = server["addresses"]
    if args.network and args.network not in networks:
        raise CommandError(f"Server {server['name']} is not in network {args.network}: "
                           f"it is in {', '.join(networks) or 'none'}.")
    matching = [address for label, addresses in networks.items() if args.network in (None, label)
                for address in addresses if address["version"] == (6 if args.ipv6 else 4)]
    kinds = ("floating", "fixed") if args.address_type == "floating" else ("fixed",)
    for kind in kinds:
        for address in matching:
            if address.get("OS-EXT-IPS:type", "fixed") == kind:
                return str(address["addr"])
    existing = ", ".join(address["addr"] for addresses in networks.values() for address in addresses)
    raise CommandError(f"Server {server['name']} has no such address. Its addresses: {existing or 'none'}. "
                       "nova interface-list shows its interfaces.")
